/* One token at a time: gma_mixer_step() keeps a state whose size does not depend on how many tokens it has seen.
 *   cc stream.c $(pkg-config --cflags --libs gma) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <gma/gma.h>

enum { H = 2, R = 4, D = 4, K = 8, N = 1000 };

static float q[H * N * R], k[H * N * R], v[H * N * D], whole[H * N * D], step[H * N * D];
static float mu[H * K * R], omega[H * K * R], alpha[H * K];

static void fill(float *x, int n, float phase) {
    for (int i = 0; i < n; i++) {
        x[i] = sinf(phase + 1.7f * (float)i);
    }
}

static int failed(void) {
    fprintf(stderr, "%s\n", gma_last_error());
    return 1;
}

/* Token t of (H, N, width): one row a head, N rows apart. */
static gma_arg token(int32_t slot, float *x, int t, int width) {
    gma_arg a = {slot, gma_tensor_of(x + t * width, GMA_F32, 4, 1, H, 1, width)};
    a.tensor.stride[1] = N * width;
    return a;
}

static int run(const gma_mixer *mixer) {
    const gma_arg params[] = {{GMA_MU, gma_tensor_of(mu, GMA_F32, 3, H, K, R, 0)},
                              {GMA_OMEGA, gma_tensor_of(omega, GMA_F32, 3, H, K, R, 0)},
                              {GMA_ALPHA, gma_tensor_of(alpha, GMA_F32, 2, H, K, 0, 0)}};
    gma_mixer_size size = {.struct_size = sizeof size};
    if (gma_mixer_sizes(mixer, 1, &size) != GMA_OK) {
        return failed();
    }
    void *state = aligned_alloc(64, (size.state + 63) / 64 * 64);
    if (state == NULL || gma_mixer_state_init(mixer, params, 3, state) != GMA_OK) {
        free(state);
        return failed();
    }
    for (int t = 0; t < N; t++) {
        const gma_arg args[] = {token(GMA_Q, q, t, R), token(GMA_K, k, t, R), token(GMA_V, v, t, D),
                                token(GMA_O, step, t, D)};
        if (gma_mixer_step(mixer, args, 4, state, 1) != GMA_OK) {
            free(state);
            return failed();
        }
    }
    free(state);
    printf("%d tokens through a state of %zu bytes\n", N, size.state);
    return 0;
}

int main(void) {
    gma_mixer_desc desc;
    gma_mixer *mixer = NULL;
    fill(q, H * N * R, 0.1f);
    fill(k, H * N * R, 0.2f);
    fill(v, H * N * D, 0.3f);
    fill(mu, H * K * R, 0.4f);

    if (gma_mixer_desc_init(&desc, GMA_MIXER_GMA) != GMA_OK) {
        return failed();
    }
    desc.causal = 1;
    desc.batch = 1;
    desc.heads = H;
    desc.q_len = desc.k_len = 1;
    desc.routing_dim = R;
    desc.value_dim = D;
    desc.components = K;
    if (gma_mixer_create(&desc, &mixer) != GMA_OK) {
        return failed();
    }
    int code = run(mixer);
    gma_mixer_destroy(mixer);
    if (code != 0) {
        return code;
    }

    /* The same in one call over the whole sequence. */
    if (gma_attention(q, k, v, mu, omega, alpha, whole, 1, H, N, N, R, D, K, 1, 0) != GMA_OK) {
        return failed();
    }
    float largest = 0.0f;
    for (int i = 0; i < H * N * D; i++) {
        largest = fmaxf(largest, fabsf(step[i] - whole[i]));
    }
    printf("largest difference from the call over the whole sequence: %.1e\n", (double)largest);
    return largest < 1e-4f ? 0 : 1;
}
