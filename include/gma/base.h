/* gma/base.h - what every part of the library shares: version, status, dtypes, tensors, CPU tiers.
 *
 * Shape letters, the same in every header, comment and document:
 *   B batch   Hq query heads   H key/value heads   Nq, Nk tokens   K components
 *   R routing width   D value width   G packed sequences
 *
 * Everything here is thread-safe unless its block says otherwise. Since 0.1.
 */
#ifndef GMA_BASE_H
#define GMA_BASE_H

#include <stddef.h>
#include <stdint.h>

#include "gma/version.h" /* GMA_VERSION_MAJOR, _MINOR, _PATCH, _STRING; generated from VERSION */

#if defined(__GNUC__) || defined(__clang__)
#define GMA_API __attribute__((visibility("default")))
#else
#define GMA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** gma_version() - the version of the library that runs, "MAJOR.MINOR.PATCH".
 *  Compare it with GMA_VERSION_STRING to see that header and library match. */
GMA_API const char *gma_version(void);

/* ---- Status ------------------------------------------------------------------------------- */

/* One row per code: X(name, value, text). Values are pinned; new ones go into the gaps. */
#define GMA_STATUS_LIST(X)                                    \
    X(GMA_OK, 0, "ok")                                        \
    X(GMA_ERR_INVALID_ARGUMENT, 10, "invalid argument")       \
    X(GMA_ERR_SHAPE, 20, "wrong shape")                       \
    X(GMA_ERR_DTYPE, 30, "wrong data type")                   \
    X(GMA_ERR_UNSUPPORTED, 40, "not supported")               \
    X(GMA_ERR_OUT_OF_MEMORY, 50, "out of memory")             \
    X(GMA_ERR_IO, 60, "input/output error")                   \
    X(GMA_ERR_FORMAT, 70, "malformed file")                   \
    X(GMA_ERR_NON_FINITE, 80, "value is not finite")          \
    X(GMA_ERR_INTERRUPTED, 90, "interrupted")

typedef enum gma_status {
#define GMA_STATUS_ENUM(name, value, text) name = value,
    GMA_STATUS_LIST(GMA_STATUS_ENUM)
#undef GMA_STATUS_ENUM
} gma_status;

/** gma_status_string() - the text of a code; "unknown status" for a value that is none. */
GMA_API const char *gma_status_string(gma_status status);

/** gma_last_error() - what the last failing call of THIS thread found wrong, one line that names the
 *  argument, option or file. Empty when no call has failed. Valid until the thread's next failure. */
GMA_API const char *gma_last_error(void);

/** gma_fail() - set this thread's error line (printf format) and return `status`, so that a caller can write
 *  `return gma_fail(GMA_ERR_IO, "%s: %s", path, strerror(errno));`. For code built on top of the library. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
GMA_API gma_status gma_fail(gma_status status, const char *format, ...);

/* ---- Data types --------------------------------------------------------------------------- */

typedef enum gma_dtype {
    GMA_F32 = 1,
    GMA_BF16 = 2,
    GMA_F64 = 3,
    GMA_BOOL = 4, /* one byte, 0 or 1 */
    GMA_U8 = 5,
    GMA_I32 = 6,
    GMA_I64 = 7,
    GMA_U16 = 8
} gma_dtype;

/** gma_dtype_size() - bytes of one element, 0 for a value that is no dtype.
 *  gma_dtype_name() - "F32", "BF16", ... as safetensors spells it. */
GMA_API size_t gma_dtype_size(gma_dtype dtype);
GMA_API const char *gma_dtype_name(gma_dtype dtype);

/** Round to nearest, ties to even; NaN stays NaN, subnormals are kept, overflow goes to infinity. */
GMA_API uint16_t gma_f32_to_bf16(float x);
GMA_API float gma_bf16_to_f32(uint16_t x);

/* ---- Tensors ------------------------------------------------------------------------------ */

#define GMA_MAX_RANK 4

/** gma_tensor - a strided view of the caller's memory; the library never owns or frees it.
 *  stride[] counts ELEMENTS and may be zero (broadcast) or negative for inputs; the last dimension of
 *  a tensor that has a width (q, k, v, o and their gradients) must be contiguous (stride 1).
 *  Offsets are computed in 64 bits. data may be NULL only when the tensor has no element. */
typedef struct gma_tensor {
    void *data;
    int32_t dtype; /* a gma_dtype */
    int32_t rank;
    int64_t shape[GMA_MAX_RANK];
    int64_t stride[GMA_MAX_RANK];
} gma_tensor;

/** gma_tensor_of() - a dense row-major view; extents past `rank` are ignored.
 *  The const of an input is cast away here: inputs are only ever read. */
GMA_API gma_tensor gma_tensor_of(const void *data, gma_dtype dtype, int rank, int64_t n0, int64_t n1,
                                 int64_t n2, int64_t n3);

/* ---- CPU tiers ---------------------------------------------------------------------------- */

typedef enum gma_isa {
    GMA_ISA_AUTO = 0, /* the best tier this CPU has, no higher than GMA_ISA in the environment; amx only if that says so */
    GMA_ISA_SCALAR = 1,
    GMA_ISA_NEON = 2,
    GMA_ISA_AVX2 = 3, /* AVX2 and FMA */
    GMA_ISA_AVX512 = 4, /* AVX-512 F, BW, DQ, VL */
    GMA_ISA_AMX = 5 /* AVX-512 with BF16, and AMX-BF16 tiles, which cost accuracy: see below */
} gma_isa;

/* GMA_ISA_AMX computes as GMA_ISA_AVX512 does, bit for bit, unless the mixer is GMA and q, k and v are all stored as BF16.
 * Then forward multiplies in bf16 with f32 sums:
 *   - responsibilities, values, states and the products of a chunk are rounded to bf16 (2^-9) where they are multiplied;
 *     the states themselves stay f32
 *   - logits: two bf16 terms of each factor, and only for chunks whose tokens have |x-c|^2/s 2^-16 <= 1e-2, where also
 *     |mu-c|^2/s 2^-16 <= 1e-2 (c: near the mean of mu, or 0 where that is near; s: sigma2 by logit_scale, of the narrowest
 *     component in each dimension); elsewhere f32. A logit is then off by 1e-2 at most, typically by less than 1e-3.
 *   - the exponentials of the softmax over components: 1e-4
 * A token that is not finite, or beyond that limit, sends its chunk of 64 tokens through f32: what comes before it in the chunk then
 * differs by that rounding from what it would be without the token.
 * backward takes the same responsibilities and states and multiplies in two bf16 terms of each factor (2^-16), the
 * mixture's gradients within the limit for logits, elsewhere f32; decoding is in f32. Measured errors: docs/performance.md. */

/** gma_isa_name() - "scalar", "neon", "avx2", "avx512", "amx"; NULL for a value that is none. */
GMA_API const char *gma_isa_name(gma_isa isa);

/** gma_isa_from_name() - the tier of that name.  Returns GMA_ERR_INVALID_ARGUMENT for any other name. */
GMA_API gma_status gma_isa_from_name(const char *name, gma_isa *isa);

/** gma_isa_built() / gma_isa_supported() - 1 when this library contains the tier / when this CPU and
 *  operating system can also run it. */
GMA_API int gma_isa_built(gma_isa isa);
GMA_API int gma_isa_supported(gma_isa isa);

/** gma_isa_default() - the tier GMA_ISA_AUTO stands for. The environment variable GMA_ISA is a ceiling (avx512 if unset):
 *  a known tier that cannot run here falls to the next lower one, an unknown name is an error.
 *  Read once, at the first call; later changes of the environment have no effect. */
GMA_API gma_status gma_isa_default(gma_isa *isa);

/** gma_max_threads() - the threads a call uses when it is asked for 0: OMP_NUM_THREADS or the CPUs
 *  this process may run on; 1 in a build without OpenMP. */
GMA_API int gma_max_threads(void);

#ifdef __cplusplus
}
#endif
#endif
