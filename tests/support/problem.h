/* One operator call as a test sees it: values in double, whatever the engine's types and layout are.
 *
 * A problem is a descriptor and its tensors; tst_run() lays them out in memory, runs forward (and backward) on one
 * engine (naive, or one CPU tier with so many threads and this storage type), with every output, scratch and saved
 * buffer filled with NaN beforehand, and reads the results back as double. */
#ifndef TEST_PROBLEM_H
#define TEST_PROBLEM_H

#include "gma/gma.h"
#include "support/rng.h"

enum { TST_SLOTS = 64 };

typedef struct tst_array {
    double *x; /* dense row-major; NULL = absent */
    int64_t n; /* elements */
    int rank;
    int64_t shape[GMA_MAX_RANK];
} tst_array;

typedef struct tst_problem {
    gma_mixer_desc desc;
    tst_array in[TST_SLOTS]; /* inputs and parameters, by slot */
    tst_array up[TST_SLOTS]; /* upstream gradients of outputs, by slot */
    int out_state;           /* ask for out_S and out_Z */
    int backward;            /* run backward too; needs up[GMA_O] or up[GMA_OUT_S], up[GMA_OUT_Z] */
} tst_problem;

typedef struct tst_result {
    tst_array out[TST_SLOTS];  /* outputs, by slot */
    tst_array grad[TST_SLOTS]; /* gradients, by slot */
} tst_result;

typedef struct tst_engine {
    int naive;
    gma_isa isa;
    int threads;
    gma_dtype io; /* q k v o and their gradients: F64 (naive only), F32, BF16 */
} tst_engine;

/* Where tensors lie; bits to combine. 0: dense, each right before a guard page of its own. */
enum {
    TST_GUARD_START = 1, /* right behind a guard page instead */
    TST_SWAP_HEADS = 4,  /* (B,H,N,W) stored as (B,N,H,W) */
    TST_PAD_ROWS = 8,    /* 3 elements of NaN between rows, and 5 before the first */
    TST_INNER2 = 16,     /* every other element, in tensors without a width (parameters, states, log_decay, mask) */
    TST_REVERSED = 32,   /* first dimension stored backwards: a negative stride */
    TST_CU32 = 64,       /* cu_seqlens as I32 */
    TST_MASK_U8 = 128,   /* mask as U8, 2 for true */
    TST_EXPAND_B = 256,  /* q k v stored once for all of B (they must be equal): stride 0 */
    TST_EXPAND_UP = 512, /* grad_o is one row for all of B, heads, N: strides 0 */
    TST_WIDTH2 = 1024    /* every other element in the last dimension of q k v: must be refused */
};

/* ---- building ---------------------------------------------------------------------------------------- */

const gma_slot_info *tst_slot_info(const gma_mixer_desc *desc, int slot); /* NULL for a slot the mixer lacks */

/* The shape a slot has under a descriptor, from the mixer's slot table; fails the test for a slot it lacks. */
tst_array tst_array_of(const gma_mixer_desc *desc, int slot);
int tst_token_dim(const gma_mixer_desc *desc, int slot); /* the dimension that counts tokens; -1: none */
/* Tokens first .. first + count of an array of that slot; one without tokens is copied. */
tst_array tst_array_tokens(const gma_mixer_desc *desc, int slot, const tst_array *a, int64_t first, int64_t count);
tst_array tst_array_like(const tst_array *a); /* same shape, zeros */
tst_array tst_array_copy(const tst_array *a);
void tst_array_free(tst_array *a);

/* The mixer that tst_desc() describes: GMA unless tst_for_linear_mixers() or tst_for_every_mixer() is at work. */
extern gma_mixer_kind tst_mixer;

/* K: components or features; linear takes its R for it, mamba has no R. */
gma_mixer_desc tst_desc(int causal, int64_t B, int64_t Hq, int64_t H, int64_t Nq, int64_t Nk, int64_t K, int64_t R,
                        int64_t D);

/* 1 when the mixer takes that descriptor; 0 when it refuses it, which must be INVALID_ARGUMENT and name the mixer. */
int tst_fits(const gma_mixer_desc *desc);

enum { TST_MASK = 1, TST_STATE = 2, TST_DECAY = 4, TST_SCALE = 8, TST_GRAD_STATE = 16, TST_BACKWARD = 32, TST_PER_HEAD = 64 };

/* Random problem of that shape; every value is exact in f32. cu: desc.segments + 1 offsets, or NULL.
 * extras: TST_MASK (about 3 of 10 keys masked), ... which optional tensors it has, where the mixer has such;
 * TST_PER_HEAD: with the extents that may be left out. */
tst_problem tst_problem_random(const gma_mixer_desc *desc, const int64_t *cu, unsigned extras, tst_rng *rng);

/* All present tensors zero, alpha, mu, omega of config A of the cases when K = 2 (mu = -1, 1, sigma2 = 1), else mu = 0.
 * Then phi(q) . phi(k) is 1 (GMA: 1/K) for every query and key, whatever the mixer. */
tst_problem tst_problem_plain(const gma_mixer_desc *desc, const int64_t *cu);
double tst_plain_sum(void); /* the sum of the features of a key there, with K = 2 and R = 1 */

/* Add a tensor (zeros) and return its values. */
double *tst_add(tst_problem *p, int slot);
double *tst_add_up(tst_problem *p, int slot);
/* Set every value of a present tensor (adding it if absent): TST_SET(&p, GMA_V, 1, 2, 3). */
void tst_set(tst_problem *p, int slot, const double *values, int64_t n);
#define TST_SET(p, slot, ...)                                                                                          \
    tst_set(p, slot, (const double[]){__VA_ARGS__}, (int64_t)(sizeof(double[]){__VA_ARGS__} / sizeof(double)))
void tst_set_up(tst_problem *p, int slot, double value); /* upstream gradient, everywhere the same; backward is on */

tst_problem tst_problem_copy(const tst_problem *p);
void tst_problem_free(tst_problem *p);

/* ---- running ----------------------------------------------------------------------------------------- */

/* Run a group of tests once for every mixer of the manifest that has q k v and a state (S, Z). In main():
 * return tst_for_linear_mixers(tests, n). What holds for GMA alone starts with TST_GMA_ONLY. Returns what failed. */
struct CMUnitTest;
int tst_for_linear_mixers(const struct CMUnitTest *tests, size_t n);
/* ... once for every mixer of the manifest, whatever its tensors are. */
int tst_for_every_mixer(const struct CMUnitTest *tests, size_t n);
#define TST_GMA_ONLY()                 \
    do {                               \
        if (tst_mixer != GMA_MIXER_GMA) \
            skip();                    \
    } while (0)

#define TST_NAIVE ((tst_engine){1, GMA_ISA_AUTO, 1, GMA_F64})

/* Every engine to test: with_naive puts the naive one first; then each supported tier with each of the n thread counts,
 * F32. Returns how many; list has room for 32. */
int tst_engines(tst_engine *list, int with_naive, const int *threads, int n);
const char *tst_engine_name(const tst_engine *e);

/* Returns the status of the first call that fails; *r is then empty. Fails the test when a call writes outside a view.
 */
gma_status tst_run(const tst_problem *p, const tst_engine *e, unsigned layout, tst_result *r);
void tst_result_free(tst_result *r);

/* As tst_run, but a failing call fails the test. */
tst_result tst_must_run(const tst_problem *p, const tst_engine *e, unsigned layout);

/* Outputs and gradients have the same bits (NaN included). The first difference is printed. */
int tst_same_bits(const tst_result *a, const tst_result *b);

/* gamma of x (B,Hx,N,R) under the problem's mixture, by that engine. */
tst_array tst_gamma(const tst_problem *p, int slot, const tst_engine *e);

/* The limits of tol.h: got against want, slot by slot; prints what is off. */
int tst_compare(const tst_result *got, const tst_result *want, double tol_o, double tol_grad, const char *what);

/* The same for a problem with data of any kind, want from the naive version. The gradients of alpha and logit_scale
 * have few entries, each a sum over all tokens that may cancel by chance: their floor is what is summed, not what is
 * left. For alpha (sum of dl) that is max |grad_mu| (sums of dl (x - mu) / s), for logit_scale R times it. */
int tst_compare_to_naive(const tst_problem *p, const tst_result *got, const tst_result *want, double tol_o,
                         double tol_grad, const char *what);

/* The forward of a causal problem with Nq = Nk by single steps on a tier: every output, states as well. */
tst_result tst_steps(const tst_problem *p, const tst_engine *e);

#endif
