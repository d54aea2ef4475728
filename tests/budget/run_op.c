/* One fixed call for callgrind to count: run_op forward | backward | step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gma/gma.h"

enum { B = 1, H = 2, N = 200, W = 64, K = 128, STEPS = 20, MAX = 16 };

static void *allocate(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (p == NULL) {
        fputs("no memory\n", stderr);
        exit(1);
    }
    return memset(p, 0, (bytes + 63) / 64 * 64 + 64);
}

static void must(gma_status status) {
    if (status != GMA_OK) {
        fprintf(stderr, "%s\n", gma_last_error());
        exit(1);
    }
}

/* Values from -1 to 1 by a fixed rule. */
static gma_tensor tensor(int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    static uint32_t seed = 1;
    const size_t count = (size_t)(a * b * (rank > 2 ? c : 1) * (rank > 3 ? d : 1));
    float *x = allocate(count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return gma_tensor_of(x, GMA_F32, rank, a, b, c, d);
}

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    const int step = strcmp(mode, "step") == 0, backward = strcmp(mode, "backward") == 0;
    if (!step && !backward && strcmp(mode, "forward") != 0) {
        fputs("run_op forward | backward | step\n", stderr);
        return 2;
    }
    const int64_t n = step ? 1 : N;
    gma_mixer_desc d;
    gma_mixer *mixer;
    gma_mixer_size size = {.struct_size = sizeof size};
    must(gma_mixer_desc_init(&d, GMA_MIXER_GMA));
    d.causal = 1;
    d.batch = B;
    d.heads = H;
    d.q_len = d.k_len = n;
    d.routing_dim = d.value_dim = W;
    d.components = K;
    must(gma_mixer_create(&d, &mixer));
    must(gma_mixer_sizes(mixer, 1, &size));

    const gma_arg parameters[] = {
        {GMA_MU, tensor(3, H, K, W, 1)}, {GMA_OMEGA, tensor(3, H, K, W, 1)}, {GMA_ALPHA, tensor(2, H, K, 1, 1)}};
    const gma_arg tokens[] = {{GMA_Q, tensor(4, B, H, n, W)},
                              {GMA_K, tensor(4, B, H, n, W)},
                              {GMA_V, tensor(4, B, H, n, W)},
                              {GMA_O, tensor(4, B, H, n, W)}};
    gma_arg args[MAX];
    memcpy(args, tokens, sizeof tokens);
    memcpy(args + 4, parameters, sizeof parameters);
    gma_exec exec = {.struct_size = sizeof exec, .threads = 1, .saved = allocate(size.saved), .saved_bytes = size.saved};
    exec.scratch_bytes = size.backward_scratch > size.forward_scratch ? size.backward_scratch : size.forward_scratch;
    exec.scratch = allocate(exec.scratch_bytes);
    if (step) {
        void *state = allocate(size.state);
        must(gma_mixer_state_init(mixer, parameters, 3, state));
        for (int i = 0; i < STEPS; i++) {
            must(gma_mixer_step(mixer, tokens, 4, state, 1));
        }
        return 0;
    }
    must(gma_mixer_forward(mixer, args, 7, &exec));
    if (backward) {
        int count = 7;
        args[count++] = (gma_arg){GMA_GRAD(GMA_O), tensor(4, B, H, n, W)};
        for (int i = 0; i < 7; i++) {
            if (args[i].slot != GMA_O) {
                const gma_tensor *t = &args[i].tensor;
                args[count++] =
                    (gma_arg){GMA_GRAD(args[i].slot), tensor(t->rank, t->shape[0], t->shape[1], t->shape[2], t->shape[3])};
            }
        }
        must(gma_mixer_backward(mixer, args, count, &exec));
    }
    return 0;
}
