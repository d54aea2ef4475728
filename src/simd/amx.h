/* Tier amx: the vectors of AVX-512, and tiles of 16 rows of 64 bytes. C(16,16) f32 += A(16,32) B(32,16), both bf16:
 * A as rows, B as 16 rows of pairs (B(2p,n), B(2p+1,n)). See simd/README.md. */
#ifndef GMA_SIMD_AMX_H
#define GMA_SIMD_AMX_H

#include "simd/avx512.h"

#define GMAI_TILES 1

#ifndef GMAI_EMULATE /* tests bring the words themselves: tests/emulation/amx.h */

/* Tiles belong to the thread that configured them. */
static inline void t_begin(void)
{
    _Alignas(64) unsigned char config[64] = {0};
    config[0] = 1; /* palette */
    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64; /* bytes a row */
        config[48 + i] = 16; /* rows */
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
static inline void t_end(void) { _tile_release(); }

/* The compiler does not know that these read and write memory: it is told. Tile numbers must be literals. */
#define T_FENCE __asm__ volatile("" : : : "memory")
#define T_ZERO(tile) _tile_zero(tile)
#define T_LOAD(tile, p, bytes)            \
    do {                                  \
        T_FENCE;                          \
        _tile_loadd(tile, (p), (bytes));  \
    } while (0)
#define T_STORE(tile, p, bytes)           \
    do {                                  \
        _tile_stored(tile, (p), (bytes)); \
        T_FENCE;                          \
    } while (0)
#define T_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)

static inline __m512i bits_bf16(vf a)
{
    const __m512i u = _mm512_castps_si512(a);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), near, nan);
}
static inline vf v_round_bf16(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bits_bf16(a), _mm512_set1_epi32((int)0xffff0000u)));
}
static inline vf v_pair_bf16(vf low, vf high)
{
    const __m512i h = _mm512_and_si512(bits_bf16(high), _mm512_set1_epi32((int)0xffff0000u));
    return _mm512_castsi512_ps(_mm512_or_si512(h, _mm512_srli_epi32(bits_bf16(low), 16)));
}

#endif

#endif
