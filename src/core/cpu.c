/* Which tiers are built, which of them this CPU and operating system can run, and which one is used by default. */
#define _GNU_SOURCE /* syscall */
#include "core/cpu.h"

#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#include <stdatomic.h>
#ifndef __linux__
#include <unistd.h>
#endif
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define GMAI_X86 1
#endif

#include "core/once.h"

const char *gma_isa_name(gma_isa isa)
{
    switch (isa) {
    case GMA_ISA_AUTO: return "auto";
#define X(name, value) \
    case value: return #name;
#include "core/isa.inc"
#undef X
    }
    return NULL;
}

gma_status gma_isa_from_name(const char *name, gma_isa *isa)
{
    if (!name || !isa) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "isa: no name given");
#define X(tier, value)                                    \
    if (strcmp(name, #tier) == 0) return *isa = value, GMA_OK;
#include "core/isa.inc"
#undef X
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "isa '%s' is unknown; there are scalar, neon, avx2, avx512, amx", name);
}

int gma_isa_built(gma_isa isa)
{
    switch (isa) {
#ifdef GMAI_HAVE_scalar
    case GMA_ISA_SCALAR: return 1;
#endif
#ifdef GMAI_HAVE_neon
    case GMA_ISA_NEON: return 1;
#endif
#ifdef GMAI_HAVE_avx2
    case GMA_ISA_AVX2: return 1;
#endif
#ifdef GMAI_HAVE_avx512
    case GMA_ISA_AVX512: return 1;
#endif
#ifdef GMAI_HAVE_amx
    case GMA_ISA_AMX: return 1;
#endif
    default: return 0;
    }
}

#ifdef GMAI_X86
/* XCR0: which register states the operating system saves. The CPU bit alone does not make a tier usable. */
static unsigned long long xcr0(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) return 0;
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((unsigned long long)hi << 32) | lo;
}

static int x86_has(gma_isa isa)
{
    unsigned a, b, c, d, b7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const int fma = (c >> 12) & 1, f16c = (c >> 29) & 1, avx = (c >> 28) & 1;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d7)) return 0;
    const unsigned long long os = xcr0();
    const int avx2 = avx && fma && f16c && ((b7 >> 5) & 1) && (os & 0x6) == 0x6;
#ifdef GMAI_EMULATE
    const int avx512 = avx2 || !gma_isa_built(GMA_ISA_AVX2); /* compiled for the tier below */
#else
    const int avx512 = avx2 && ((b7 >> 16) & 1) && ((b7 >> 17) & 1) && ((b7 >> 30) & 1) && ((b7 >> 31) & 1) &&
                       (os & 0xe6) == 0xe6;
#endif
#ifdef GMAI_EMULATE
    const int amx = avx512;
    (void)d7;
#else
    unsigned a71 = 0;
    if (!__get_cpuid_count(7, 1, &a71, &b, &c, &d)) a71 = 0;
    const int avx512_bf16 = (a71 >> 5) & 1; /* every CPU with tiles has it; a virtual machine may hide it */
    const int amx = avx512 && avx512_bf16 && ((d7 >> 22) & 1) && ((d7 >> 24) & 1) && (os & 0x60000) == 0x60000;
#endif
    return isa == GMA_ISA_AVX2 ? avx2 : isa == GMA_ISA_AVX512 ? avx512 : isa == GMA_ISA_AMX ? amx : 0;
}
#endif

#ifdef GMAI_X86
/* Asked once: in a virtual machine every cpuid is a trap into the host. */
static gmai_once x86_once = GMAI_ONCE_INIT;
static int x86_tiers; /* bit 1 << gma_isa */

static void find_x86_tiers(void)
{
    for (int isa = GMA_ISA_AVX2; isa <= GMA_ISA_AMX; isa++) x86_tiers |= x86_has((gma_isa)isa) << isa;
}
#endif

#ifdef GMAI_X86
/* Linux gives a process the 8 KiB of tiles only after it has asked, once for all its threads. Only asked for when the tier
 * is: from then on alternate signal stacks must have room for them. */
static gmai_once tiles_once = GMAI_ONCE_INIT;
static int tiles_granted;

static void ask_for_tiles(void)
{
#if defined(GMAI_EMULATE)
    tiles_granted = 1;
#elif defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    tiles_granted = syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#endif
}
#endif

int gma_isa_supported(gma_isa isa)
{
    if (!gma_isa_built(isa)) return 0;
    if (isa == GMA_ISA_SCALAR) return 1;
#ifdef GMAI_X86
    gmai_call_once(&x86_once, find_x86_tiers);
    if (isa == GMA_ISA_AMX && (x86_tiers >> isa & 1)) {
        gmai_call_once(&tiles_once, ask_for_tiles);
        return tiles_granted;
    }
    return x86_tiers >> isa & 1;
#else
    return isa == GMA_ISA_NEON; /* part of every AArch64 */
#endif
}

static gma_isa best_up_to(gma_isa ceiling)
{
    gma_isa best = GMA_ISA_SCALAR;
#define X(name, value) \
    if ((value) <= ceiling && gma_isa_supported(value)) best = value;
#include "core/isa.inc"
#undef X
    return best;
}

static gmai_once default_once = GMAI_ONCE_INIT;
static gma_isa default_isa; /* AUTO: the environment names no tier */
static char default_name[64];

static void choose_default(void)
{
    const char *env = getenv("GMA_ISA");
    gma_isa ceiling = GMA_ISA_AVX512; /* amx costs accuracy: only for those who name it */
    if (env && *env) {
        if (gma_isa_from_name(env, &ceiling) != GMA_OK) {
            strncpy(default_name, env, sizeof default_name - 1);
            default_isa = GMA_ISA_AUTO;
            return;
        }
    }
    default_isa = best_up_to(ceiling);
}

gma_status gma_isa_default(gma_isa *isa)
{
    if (!isa) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "isa is NULL");
    gmai_call_once(&default_once, choose_default);
    if (default_isa == GMA_ISA_AUTO)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "environment variable GMA_ISA: '%s' is no tier; there are scalar, neon, avx2, avx512, amx",
                        default_name);
    *isa = default_isa;
    return GMA_OK;
}

gma_status gmai_isa_resolve(int32_t wanted, gma_isa *isa)
{
    if (wanted == GMA_ISA_AUTO) return gma_isa_default(isa);
    const char *name = wanted < 0 ? NULL : gma_isa_name((gma_isa)wanted);
    if (!name) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "isa: %d is no tier", (int)wanted);
    *isa = (gma_isa)wanted;
    if (!gma_isa_built(*isa)) return gma_fail(GMA_ERR_UNSUPPORTED, "isa '%s' is not in this build", name);
    if (!gma_isa_supported(*isa))
        return gma_fail(GMA_ERR_UNSUPPORTED, "isa '%s' is not supported by this CPU", name);
    return GMA_OK;
}

int gma_max_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

#ifdef _OPENMP
/* The process whose OpenMP pool this library has used; 0: none yet. */
static atomic_long pool_owner;
#endif

int gmai_threads(int threads)
{
#ifdef _OPENMP
    /* A pool does not survive fork(): a child that asked for it would wait for threads that are not there. One thread
     * gives the same bits. */
    const long me = (long)getpid(), owner = atomic_load(&pool_owner);
    if (owner != 0 && owner != me) return 1;
    if (owner == 0) atomic_store(&pool_owner, me);
    return threads > 0 ? threads : gma_max_threads();
#else
    (void)threads;
    return 1;
#endif
}

int gmai_thread(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
