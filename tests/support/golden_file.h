/* The golden files: a strict reader of the few things they hold, independent of the library's own safetensors code. */
#ifndef TEST_GOLDEN_FILE_H
#define TEST_GOLDEN_FILE_H

#include "support/problem.h"

typedef struct tst_golden {
    tst_problem problem; /* inputs, upstream gradients, descriptor; backward is on */
    tst_result want;     /* outputs and gradients the file holds */
    tst_array gamma_q, gamma_k;
} tst_golden;

/* Load tests/golden/data/<name>.safetensors. A file that is not exactly as expected fails the test by name. */
tst_golden tst_golden_load(const char *name);
void tst_golden_free(tst_golden *g);

#endif
