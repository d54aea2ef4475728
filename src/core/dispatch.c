/* From a tier to its table of kernels. */
#include "gma/base.h"
#include "kernels/kernels.h"

#ifdef GMAI_HAVE_scalar
extern const gmai_kernels gmai_kernels__scalar;
#endif
#ifdef GMAI_HAVE_neon
extern const gmai_kernels gmai_kernels__neon;
#endif
#ifdef GMAI_HAVE_avx2
extern const gmai_kernels gmai_kernels__avx2;
#endif
#ifdef GMAI_HAVE_avx512
extern const gmai_kernels gmai_kernels__avx512;
#endif
#ifdef GMAI_HAVE_amx
extern const gmai_kernels gmai_kernels__amx;
#endif

const gmai_kernels *gmai_kernels_of(int isa)
{
    switch (isa) {
#ifdef GMAI_HAVE_neon
    case GMA_ISA_NEON: return &gmai_kernels__neon;
#endif
#ifdef GMAI_HAVE_avx2
    case GMA_ISA_AVX2: return &gmai_kernels__avx2;
#endif
#ifdef GMAI_HAVE_avx512
    case GMA_ISA_AVX512: return &gmai_kernels__avx512;
#endif
#ifdef GMAI_HAVE_amx
    case GMA_ISA_AMX: return &gmai_kernels__amx;
#endif
    default: return &gmai_kernels__scalar;
    }
}
