/* Training with the mixer interface: create, ask for sizes, forward, backward. The mixture of one causal layer is
 * fitted by gradient descent to the outputs of another one. cc mixer.c $(pkg-config --cflags --libs gma) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <gma/gma.h>

enum { H = 2, R = 4, D = 4, K = 8, N = 256, STEPS = 60 };

static float q[H * N * R], k[H * N * R], v[H * N * D], o[H * N * D], target[H * N * D], grad_o[H * N * D];
static float mu[H * K * R], omega[H * K * R], alpha[H * K];
static float grad_mu[H * K * R], grad_omega[H * K * R], grad_alpha[H * K];

static void fill(float *x, int n, float phase, float size) {
    for (int i = 0; i < n; i++) {
        x[i] = size * sinf(phase + 1.7f * (float)i);
    }
}

static int failed(void) {
    fprintf(stderr, "%s\n", gma_last_error());
    return 1;
}

/* What forward takes; backward takes it too, and the gradients after it. An optional tensor is one more row. */
enum { FORWARD_ARGS = 7, BACKWARD_ARGS = 11 };
static void list(gma_arg *a) {
    a[0] = (gma_arg){GMA_Q, gma_tensor_of(q, GMA_F32, 4, 1, H, N, R)};
    a[1] = (gma_arg){GMA_K, gma_tensor_of(k, GMA_F32, 4, 1, H, N, R)};
    a[2] = (gma_arg){GMA_V, gma_tensor_of(v, GMA_F32, 4, 1, H, N, D)};
    a[3] = (gma_arg){GMA_MU, gma_tensor_of(mu, GMA_F32, 3, H, K, R, 0)};
    a[4] = (gma_arg){GMA_OMEGA, gma_tensor_of(omega, GMA_F32, 3, H, K, R, 0)};
    a[5] = (gma_arg){GMA_ALPHA, gma_tensor_of(alpha, GMA_F32, 2, H, K, 0, 0)};
    a[6] = (gma_arg){GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, H, N, D)};
    a[7] = (gma_arg){GMA_GRAD(GMA_O), gma_tensor_of(grad_o, GMA_F32, 4, 1, H, N, D)};
    a[8] = (gma_arg){GMA_GRAD(GMA_MU), gma_tensor_of(grad_mu, GMA_F32, 3, H, K, R, 0)};
    a[9] = (gma_arg){GMA_GRAD(GMA_OMEGA), gma_tensor_of(grad_omega, GMA_F32, 3, H, K, R, 0)};
    a[10] = (gma_arg){GMA_GRAD(GMA_ALPHA), gma_tensor_of(grad_alpha, GMA_F32, 2, H, K, 0, 0)};
}

/* L = mean (o - target)^2; its gradient goes to grad_o. */
static double loss(void) {
    double sum = 0;
    for (int i = 0; i < H * N * D; i++) {
        const float difference = o[i] - target[i];
        sum += (double)difference * difference;
        grad_o[i] = 2 * difference / (H * N * D);
    }
    return sum / (H * N * D);
}

static void descend(float *x, const float *gradient, int n) {
    for (int i = 0; i < n; i++) {
        x[i] -= 20 * gradient[i];
    }
}

static int train(const gma_mixer *mixer, const gma_exec *exec) {
    gma_arg args[BACKWARD_ARGS];
    double first = 0, last = 0;
    list(args);
    for (int step = 0; step < STEPS; step++) {
        if (gma_mixer_forward(mixer, args, FORWARD_ARGS, exec) != GMA_OK) {
            return failed();
        }
        last = loss();
        if (step == 0) {
            first = last;
        }
        if (gma_mixer_backward(mixer, args, BACKWARD_ARGS, exec) != GMA_OK) {
            return failed();
        }
        descend(mu, grad_mu, H * K * R);
        descend(omega, grad_omega, H * K * R);
        descend(alpha, grad_alpha, H * K);
    }
    printf("loss %.2e before, %.2e after %d steps\n", first, last, STEPS);
    return last < first / 2 ? 0 : 1;
}

static int run(const gma_mixer *mixer) {
    gma_mixer_size size = {.struct_size = sizeof size};
    if (gma_mixer_sizes(mixer, 0, &size) != GMA_OK) {
        return failed();
    }
    /* scratch: for the larger of the two. saved: what forward leaves for backward. */
    gma_exec exec = {.struct_size = sizeof exec};
    exec.scratch_bytes = size.forward_scratch > size.backward_scratch ? size.forward_scratch : size.backward_scratch;
    exec.saved_bytes = size.saved;
    exec.scratch = aligned_alloc(64, (exec.scratch_bytes + 63) / 64 * 64);
    exec.saved = aligned_alloc(64, (exec.saved_bytes + 63) / 64 * 64);
    int code = 1;
    if (exec.scratch != NULL && exec.saved != NULL) {
        code = train(mixer, &exec);
    }
    free(exec.scratch);
    free(exec.saved);
    return code;
}

int main(void) {
    gma_mixer_desc desc;
    gma_mixer *mixer = NULL;
    fill(q, H * N * R, 0.1f, 1);
    fill(k, H * N * R, 0.2f, 1);
    fill(v, H * N * D, 0.3f, 1);

    /* The outputs to reach, by the short way in. */
    fill(mu, H * K * R, 0.4f, 1);
    if (gma_attention(q, k, v, mu, omega, alpha, target, 1, H, N, N, R, D, K, 1, 0) != GMA_OK) {
        return failed();
    }
    fill(mu, H * K * R, 0.9f, 0.5f); /* and start elsewhere */

    if (gma_mixer_desc_init(&desc, GMA_MIXER_GMA) != GMA_OK) {
        return failed();
    }
    desc.causal = 1;
    desc.batch = 1;
    desc.heads = H;
    desc.q_len = desc.k_len = N;
    desc.routing_dim = R;
    desc.value_dim = D;
    desc.components = K;
    if (gma_mixer_create(&desc, &mixer) != GMA_OK) {
        return failed();
    }
    const int code = run(mixer);
    gma_mixer_destroy(mixer);
    return code;
}
