/* Gaussian Mixture Attention in one call: 8 tokens, 2 heads, 4 components.
 *   cc operator_min.c $(pkg-config --cflags --libs gma) -lm */
#include <math.h>
#include <stdio.h>

#include <gma/gma.h>

enum { B = 1, H = 2, N = 8, R = 4, D = 3, K = 4 };

static float q[B * H * N * R], k[B * H * N * R], v[B * H * N * D], o[B * H * N * D];
static float mu[H * K * R], omega[H * K * R], alpha[H * K];

/* Some numbers that are all different. */
static void fill(float *x, int n, float phase) {
    for (int i = 0; i < n; i++) {
        x[i] = sinf(phase + 1.7f * (float)i);
    }
}

int main(void) {
    fill(q, B * H * N * R, 0.1f);
    fill(k, B * H * N * R, 0.2f);
    fill(v, B * H * N * D, 0.3f);
    fill(mu, H * K * R, 0.4f); /* omega = alpha = 0: variance softplus(0), equal weights */

    if (gma_attention(q, k, v, mu, omega, alpha, o, B, H, N, N, R, D, K, /* causal */ 1, /* threads */ 0) != GMA_OK) {
        fprintf(stderr, "%s\n", gma_last_error());
        return 1;
    }
    printf("libgma %s: head 0, causal\n", gma_version());
    for (int t = 0; t < N; t++) {
        printf("token %d  v = %6.3f %6.3f %6.3f  o = %6.3f %6.3f %6.3f\n", t, v[t * D], v[t * D + 1], v[t * D + 2],
               o[t * D], o[t * D + 1], o[t * D + 2]);
    }
    /* The first token sees only itself, so up to eps its output is its value. */
    for (int d = 0; d < D; d++) {
        if (fabsf(o[d] - v[d]) > 1e-3f) {
            fprintf(stderr, "token 0 should give back its own value\n");
            return 1;
        }
    }
    return 0;
}
