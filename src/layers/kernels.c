/* Which kernels run: one table a CPU tier, picked once a process; and the double kernels. */
#include "layers/kernels.h"

#include <stdatomic.h>
#include <stddef.h>

#define GMAL_JOIN_(a, b) a##__##b
#define GMAL_JOIN(a, b) GMAL_JOIN_(a, b)

/* Two levels of list (tiers x kernels) cannot nest in the preprocessor, so each tier declares its table by hand. */
#define GMAL_DECLARE(suffix, name, ret, params) ret gmal_##name##__##suffix params;

#define DECLARE_scalar(name, ret, params) GMAL_DECLARE(scalar, name, ret, params)
#define DECLARE_neon(name, ret, params) GMAL_DECLARE(neon, name, ret, params)
#define DECLARE_avx2(name, ret, params) GMAL_DECLARE(avx2, name, ret, params)
#define DECLARE_avx512(name, ret, params) GMAL_DECLARE(avx512, name, ret, params)
#define DECLARE_f64(name, ret, params) GMAL_DECLARE(f64, name, ret, params)
#define ENTRY_scalar(name, ret, params) .name = gmal_##name##__scalar,
#define ENTRY_neon(name, ret, params) .name = gmal_##name##__neon,
#define ENTRY_avx2(name, ret, params) .name = gmal_##name##__avx2,
#define ENTRY_avx512(name, ret, params) .name = gmal_##name##__avx512,
#define ENTRY_f64(name, ret, params) .name = gmal_##name##__f64,

GMAL_KERNEL_LIST(DECLARE_f64, double)
static const gmal_kernels_f64 table_f64 = {GMAL_KERNEL_LIST(ENTRY_f64, double)};

GMAL_KERNEL_LIST(DECLARE_scalar, float)
static const gmal_kernels_f32 table_scalar = {GMAL_KERNEL_LIST(ENTRY_scalar, float)};
#ifdef GMAI_HAVE_neon
GMAL_KERNEL_LIST(DECLARE_neon, float)
static const gmal_kernels_f32 table_neon = {GMAL_KERNEL_LIST(ENTRY_neon, float)};
#endif
#ifdef GMAI_HAVE_avx2
GMAL_KERNEL_LIST(DECLARE_avx2, float)
static const gmal_kernels_f32 table_avx2 = {GMAL_KERNEL_LIST(ENTRY_avx2, float)};
#endif
#ifdef GMAI_HAVE_avx512
GMAL_KERNEL_LIST(DECLARE_avx512, float)
static const gmal_kernels_f32 table_avx512 = {GMAL_KERNEL_LIST(ENTRY_avx512, float)};
#endif

static const gmal_kernels_f32 *table_of(gma_isa isa) {
    switch (isa) {
#ifdef GMAI_HAVE_neon
    case GMA_ISA_NEON: return &table_neon;
#endif
#ifdef GMAI_HAVE_avx2
    case GMA_ISA_AVX2: return &table_avx2;
#endif
#ifdef GMAI_HAVE_avx512
    case GMA_ISA_AVX512: return &table_avx512;
#endif
    case GMA_ISA_SCALAR: return &table_scalar;
    default: return NULL;
    }
}

/* A tier that has no elementwise kernels of its own (AMX only multiplies matrices) uses the next lower one. */
static const gmal_kernels_f32 *best_up_to(gma_isa isa) {
    for (int i = (int)isa; i > (int)GMA_ISA_SCALAR; i--)
        if (gma_isa_supported((gma_isa)i) && table_of((gma_isa)i)) return table_of((gma_isa)i);
    return &table_scalar;
}

gma_status gmal_kernels_init(void) {
    gma_isa isa;
    return gma_isa_default(&isa);
}

/* Found once: asking the CPU what it can do (cpuid) costs microseconds in a virtual machine. Threads that come first at
 * the same time all find the same table. */
const gmal_kernels_f32 *gmal_get_kernels_f32(void) {
    static _Atomic(const gmal_kernels_f32 *) found;
    const gmal_kernels_f32 *table = atomic_load_explicit(&found, memory_order_relaxed);
    if (!table) {
        gma_isa isa;
        table = gma_isa_default(&isa) == GMA_OK ? best_up_to(isa) : &table_scalar;
        atomic_store_explicit(&found, table, memory_order_relaxed);
    }
    return table;
}

const gmal_kernels_f64 *gmal_get_kernels_f64(void) { return &table_f64; }

const gmal_kernels_f32 *gmal_kernels_of_tier(gma_isa isa) {
    return gma_isa_built(isa) && gma_isa_supported(isa) ? table_of(isa) : NULL;
}
