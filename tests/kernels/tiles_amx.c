/* The words for tiles: for tests/conformance/test_tiles.c. */
#include "kernels/kernels.h"

void tst_tile_product(float *c, const uint16_t *a, const uint32_t *b);

/* C(16,16) += A(16,32) B(32,16), through tiles 2, 6 and 7. */
void tst_tile_product(float *c, const uint16_t *a, const uint32_t *b)
{
    t_begin();
    T_LOAD(2, c, 64);
    T_LOAD(6, a, 64);
    T_LOAD(7, b, 64);
    T_MULTIPLY(2, 6, 7);
    T_STORE(2, c, 64);
    t_end();
}
