/* The double kernels: the same bodies once more. */
#define GMAL_KERNELS_F64
#include "layers/kernels/activation.c"
#include "layers/kernels/conv.c"
#include "layers/kernels/gemm.c"
#include "layers/kernels/loss.c"
#include "layers/kernels/norm.c"
#include "layers/kernels/optimizer.c"
