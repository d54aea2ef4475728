/* The table of one tier. */
#include "kernels/decl.h"

extern const gmai_kernels GMAI_K(kernels);

/* All but what differs between the tables of a tier. */
#define SHARED \
    .lanes = VL, \
    .unpack = GMAI_K(unpack), \
    .transpose = GMAI_K(transpose), \
    .softmax_backward = GMAI_K(softmax_backward), \
    .elu_features = GMAI_K(elu_features), \
    .elu_backward = GMAI_K(elu_backward), \
    .square_sums = GMAI_K(square_sums), \
    .exp_features = GMAI_K(exp_features), \
    .exp_features_scaled = GMAI_K(exp_features_scaled), \
    .exp_backward = GMAI_K(exp_backward), \
    .row_sums = GMAI_K(row_sums), \
    .column_sums = GMAI_K(column_sums), \
    .scale_columns = GMAI_K(scale_columns), \
    .output_backward = GMAI_K(output_backward), \
    .lower_decay = GMAI_K(lower_decay), \
    .combine = GMAI_K(combine), \
    .accumulate = GMAI_K(accumulate), \
    .axpy = GMAI_K(axpy), \
    .prepare_row = GMAI_K(prepare_row), \
    .row_infinite = GMAI_K(row_infinite), \
    .row_spread = GMAI_K(row_spread), \
    .interleave = GMAI_K(interleave), \
    .step_logits = GMAI_K(step_logits), \
    .step_softmax = GMAI_K(step_softmax), \
    .step_exp = GMAI_K(step_exp), \
    .step_sums = GMAI_K(step_sums), \
    .step_fold = GMAI_K(step_fold), \
    .step_read = GMAI_K(step_read), \
    .scan_prepare = GMAI_K(scan_prepare), \
    .scan_forward = GMAI_K(scan_forward), \
    .scan_backward = GMAI_K(scan_backward), \
    .tile_softmax = GMAI_K(tile_softmax), \
    .tile_backward = GMAI_K(tile_backward), \
    .rotate = GMAI_K(rotate)

#ifdef GMAI_TILES
static const gmai_kernels forward = {
    SHARED,
    .pack = GMAI_K(tile_pack),
    .logits = GMAI_K(tile_logits),
    .softmax = GMAI_K(tile_gammas),
    .product = GMAI_K(tile_product),
    .read_chunk = GMAI_K(tile_read),
    .write_chunk = GMAI_K(tile_write),
    .flush_on = GMAI_K(tile_on),
    .flush_restore = GMAI_K(tile_restore),
};
static const gmai_kernels backward = {
    SHARED,
    .pack = GMAI_K(tile_pack),
    .logits = GMAI_K(tile_logits),
    .softmax = GMAI_K(tile_gammas),
    .product = GMAI_K(tile_product_two),
    .write_chunk = GMAI_K(tile_write),
    .mixture_backward = GMAI_K(tile_mixture_backward),
    .flush_on = GMAI_K(tile_on),
    .flush_restore = GMAI_K(tile_restore),
};
#endif

const gmai_kernels GMAI_K(kernels) = {
    SHARED,
    .pack = GMAI_K(pack),
    .logits = GMAI_K(logits),
    .softmax = GMAI_K(softmax),
    .product = GMAI_K(product),
    .mixture_backward = GMAI_K(mixture_backward),
    .flush_on = GMAI_K(flush_on),
    .flush_restore = GMAI_K(flush_restore),
#ifdef GMAI_TILES
    .bf16_forward = &forward,
    .bf16_backward = &backward,
    .tile_floats = GMAI_K(tile_floats),
    .tile_prepare = GMAI_K(tile_prepare),
#endif
};
