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

/* Two vectors rounded to bf16, one behind the other in memory order. Every CPU with tiles has the instruction (AVX512_BF16,
 * asked for in core/cpu.c); like the tiles it takes subnormals as 0. */
static inline __m512i words_bf16(vf first, vf second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }
static inline vf v_words_bf16(vf first, vf second) { return _mm512_castsi512_ps(words_bf16(first, second)); }
static inline void v_store2_bf16(uint16_t *p, vf first, vf second) { _mm512_storeu_si512(p, words_bf16(first, second)); }
static inline vf v_pair_bf16(vf low, vf high)
{
    const __m512i alternate = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                               5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(alternate, words_bf16(low, high)));
}
/* x - floor x, and a 2^(floor n). */
static inline vf v_fraction(vf x)
{
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
static inline vf v_scale2_floor(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf v_pair_low(vf pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pair), 16)); }
static inline vf v_pair_high(vf pair)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pair), _mm512_set1_epi32((int)0xffff0000u)));
}
/* As v_pair_bf16, but cut off instead of rounded. */
static inline vf v_pair_cut(vf low, vf high)
{
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                                         _mm512_castps_si512(high), _mm512_set1_epi32((int)0xffff0000u),
                                                         0xf8)); /* a | (b & c) */
}

#endif

#endif
