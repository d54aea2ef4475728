/* The tiles of tier amx in plain C, beside the vectors of emulation/avx512.h. Sums are rounded in the order of the
 * instruction TDPBF16PS: for each row and column the products with the even and with the odd members of the pairs are
 * summed apart, by fused multiply-adds from 0, then added to each other, then to C; subnormals count as 0 throughout. */
#ifndef GMA_EMULATION_AMX_H
#define GMA_EMULATION_AMX_H

#include <stddef.h>
#include <stdlib.h>

#include "avx512.h"

#include "simd/amx.h" /* that the tier has tiles */

typedef struct tile_file {
    int configured;
    uint32_t tile[8][16][16];
} tile_file;

/* Of this thread, shared by all files of code. Using a tile before t_begin() ends a program on a real CPU too. */
__attribute__((weak, visibility("hidden"))) _Thread_local tile_file tst_tiles;
static inline tile_file *tiles(int configured)
{
    if (configured >= 0)
        tst_tiles.configured = configured;
    else if (!tst_tiles.configured)
        abort();
    return &tst_tiles;
}

static inline void t_begin(void) { (void)tiles(1); }
static inline void t_end(void) { (void)tiles(0); }
static inline void t_zero(int i) { memset(tiles(-1)->tile[i], 0, 1024); }
static inline void t_load(int i, const void *p, ptrdiff_t bytes)
{
    for (int r = 0; r < 16; r++) memcpy(tiles(-1)->tile[i][r], (const char *)p + r * bytes, 64);
}
static inline void t_store(int i, void *p, ptrdiff_t bytes)
{
    for (int r = 0; r < 16; r++) memcpy((char *)p + r * bytes, tiles(-1)->tile[i][r], 64);
}
static inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0.0f * x : x; }

static inline void t_multiply(int c, int a, int b)
{
    tile_file *t = tiles(-1);
    for (int m = 0; m < 16; m++) {
        float even[16] = {0}, odd[16] = {0};
        for (int k = 0; k < 16; k++) {
            const uint32_t pair = t->tile[a][m][k];
            const float a0 = flushed(lane_of(pair << 16)), a1 = flushed(lane_of(pair & 0xffff0000u));
            for (int n = 0; n < 16; n++) {
                const uint32_t with = t->tile[b][k][n];
                even[n] = flushed(lane_fma(a0, flushed(lane_of(with << 16)), even[n]));
                odd[n] = flushed(lane_fma(a1, flushed(lane_of(with & 0xffff0000u)), odd[n]));
            }
        }
        for (int n = 0; n < 16; n++) {
            const float sum = flushed(even[n] + odd[n]);
            t->tile[c][m][n] = lane_bits(flushed(flushed(lane_of(t->tile[c][m][n])) + sum));
        }
    }
}

#define T_ZERO(tile) t_zero(tile)
#define T_LOAD(tile, p, bytes) t_load(tile, p, bytes)
#define T_STORE(tile, p, bytes) t_store(tile, p, bytes)
#define T_MULTIPLY(c, a, b) t_multiply(c, a, b)

LANES_2(v_pair_bf16, lane_of(lane_bf16(flushed(y)) << 16 | lane_bf16(flushed(x))))
LANES_1(v_fraction, x - x == 0.0f ? x - floorf(x) : x != x ? x : 0.0f)
LANES_2(v_scale2_floor, lane_scale2(x, floorf(y)))
LANES_1(v_pair_low, lane_of(lane_bits(x) << 16))
LANES_1(v_pair_high, lane_of(lane_bits(x) & 0xffff0000u))
LANES_2(v_pair_cut, lane_of((lane_bits(y) & 0xffff0000u) | lane_bits(x) >> 16))
static inline vf v_words_bf16(vf first, vf second)
{
    vf r;
    uint16_t w[32];
    EACH_LANE w[l] = (uint16_t)lane_bf16(flushed(first.lane[l])), w[16 + l] = (uint16_t)lane_bf16(flushed(second.lane[l]));
    memcpy(&r, w, sizeof r);
    return r;
}
static inline void v_store2_bf16(uint16_t *p, vf first, vf second)
{
    EACH_LANE p[l] = (uint16_t)lane_bf16(flushed(first.lane[l]));
    EACH_LANE p[16 + l] = (uint16_t)lane_bf16(flushed(second.lane[l]));
}

#endif
