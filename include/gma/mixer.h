/* gma/mixer.h - sequence mixers: descriptor -> create -> query sizes -> forward / backward / step -> destroy.
 *
 * One interface for every mixer. A mixer's tensors are passed as a list of (slot, tensor) pairs, so a mixer with
 * other inputs needs no new function. Which slots a mixer knows, and their shapes, can be asked for
 * (gma_mixer_slots). Since 0.1.
 *
 * The GMA operator (Huang & Raza 2026, arXiv 2606.18283), per head:
 *
 *   sigma2    = softplus(omega) + eps_sigma           pi = softmax(alpha)
 *   gamma(x)  = softmax_k( logit_scale * log( pi_k N(x | mu_k, diag sigma2_k) ) )
 *   S_t       = exp(log_decay_t) S_{t-1} + gamma(k_t) v_t^T        (K,D)
 *   Z_t       = exp(log_decay_t) Z_{t-1} + gamma(k_t)              (K)
 *   o_i       = gamma(q_i) S / (gamma(q_i) . Z + eps)
 *
 * with S, Z the totals over all keys (bidirectional) or those after the last key that query i sees (causal:
 * key j <= i + Nk - Nq, aligned at the end). logit_scale = 1 and log_decay = 0 when absent: the paper's operator.
 *
 * GMA_MIXER_LINEAR and GMA_MIXER_PERFORMER are the same with another phi in the place of gamma, and take every option
 * below except what belongs to the mixture (mu, omega, alpha, logit_scale, eps_sigma):
 *
 *   linear      phi(x)_r = elu(x_r) + 1                                        R features; components = 0 or R
 *   performer   phi(x)_m = exp(w_m . y - |y|^2/2) / sqrt(M), y = x / R^(1/4)   w = GMA_FEATURES (M,R), shared by all
 *               heads, M = components. The features are fixed: they have no gradient.
 *               eps is added to the product of these literal features, and S and Z hold them. A key feature beyond the
 *               range of f32 (e^88) becomes Inf and shows as such; for random features that cannot happen in practice.
 *
 * Three are of another kind; their READMEs (src/mixers/<name>/) have the formulas in full:
 *
 *   softmax     softmax attention: o_i = sum_j p_ij v_j, p = softmax over the keys that query i sees of
 *               scale <rot(q_i), rot(k_j)>. It has the mask, packed sequences, grouped heads and alignment described below and
 *               the options scale, window and rotary_base of the descriptor; no (S, Z), log_decay, components or eps. A logit
 *               of -inf is a weight of 0.
 *   linformer   k' = proj_k k,  v' = proj_v v  along the sequence (P rows instead of Nk; P = components),
 *               o_i = softmax_p(scale q_i . k'_p) v'.  A masked key counts as a row of zeros. Bidirectional only;
 *               no packed sequences, no states, no steps: asked for, they are errors.
 *   mamba       delta <- softplus(delta + delta_bias);  h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t;
 *               y_t = C_t . h_t + D u_t, for each of E = heads x value_dim channels a state h of S = components numbers.
 *               Always causal (gma_mixer_desc_init sets causal = 1; 0 is an error), Nq = Nk = N, no key mask.
 *
 * Of all others:
 *
 *   - Key mask: a masked key writes nothing, but still decays. A query that sees no key gives exactly 0 and passes
 *     no gradient.
 *   - Packed: cu_seqlens splits one row (B = 1, Nq = Nk) into G sequences that never mix; the results are those of
 *     separate calls.
 *   - Grouped heads: Hq = g H; query head h uses key head h / g and its mixture.
 *   - State: (S, Z) may come in (added to every prefix, or to the total when bidirectional; it decays too) and go out.
 *     Calling in pieces equals calling at once.
 *   - alpha_k = -inf removes component k; log_decay = -inf forgets all before.
 *   - B, H, N or D = 0 is valid and empty (Nk = 0 gives zeros). K = 0 or R = 0 is an error.
 *   - Inf or NaN in an input shows in the outputs it influences, and nowhere else. Subnormal numbers count as 0.
 *
 * Threads: a gma_mixer never changes after creation and may be used by many threads at once, as long as their outputs,
 * `saved`, `scratch` and state buffers differ. Results have the same bits for every thread count of one tier.
 * Memory: the caller owns every buffer. forward, backward and step allocate nothing.
 * Aliasing: no output may overlap an input or another output, except the gradients the caller wants overwritten.
 */
#ifndef GMA_MIXER_H
#define GMA_MIXER_H

#include "gma/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Slots -------------------------------------------------------------------------------- */

/* X(enumerator, value, tensor name in files and messages). Values are pinned. Of the mixer GMA:
 *   q (B,Hq,Nq,R)  k (B,H,Nk,R)  v (B,H,Nk,D)  o (B,Hq,Nq,D)   mu, omega (H,K,R)  alpha (H,K)  logit_scale (H)
 *   key_mask (B,Nk), 0 = masked   log_decay (B,H,Nk) <= 0   cu_seqlens (G+1)
 *   state_S, out_S (B,H,K,D) and state_Z, out_Z (B,H,K); packed: G in the place of B
 * Of linformer, besides q k v o key_mask: proj_k, proj_v (P,Nk) shared by the heads, or (H,P,Nk), each by itself.
 * Of mamba: u, delta, y (B,N,E)   A (E,S)   B, C (B,N,S)   D, delta_bias (E)   state_h, out_h (B,E,S) or (G,E,S) */
#define GMA_SLOT_LIST(X)                          \
    X(GMA_Q, 1, "q")                              \
    X(GMA_K, 2, "k")                              \
    X(GMA_V, 3, "v")                              \
    X(GMA_MU, 4, "mu")                            \
    X(GMA_OMEGA, 5, "omega")                      \
    X(GMA_ALPHA, 6, "alpha")                      \
    X(GMA_KEY_MASK, 7, "key_mask")                \
    X(GMA_CU_SEQLENS, 8, "cu_seqlens")            \
    X(GMA_STATE_S, 9, "state_S")                  \
    X(GMA_STATE_Z, 10, "state_Z")                 \
    X(GMA_LOG_DECAY, 11, "log_decay")             \
    X(GMA_LOGIT_SCALE, 12, "logit_scale")         \
    X(GMA_FEATURES, 13, "features")               \
    X(GMA_U, 14, "u")                             \
    X(GMA_DELTA, 15, "delta")                     \
    X(GMA_SSM_A, 16, "A")                         \
    X(GMA_SSM_B, 17, "B")                         \
    X(GMA_SSM_C, 18, "C")                         \
    X(GMA_SSM_D, 19, "D")                         \
    X(GMA_DELTA_BIAS, 21, "delta_bias")           \
    X(GMA_STATE_H, 22, "state_h")                 \
    X(GMA_PROJ_K, 23, "proj_k")                   \
    X(GMA_PROJ_V, 24, "proj_v")                   \
    X(GMA_O, 32, "o")                             \
    X(GMA_OUT_S, 33, "out_S")                     \
    X(GMA_OUT_Z, 34, "out_Z")                     \
    X(GMA_Y, 35, "y")                             \
    X(GMA_OUT_H, 36, "out_h")

typedef enum gma_slot {
#define GMA_SLOT_ENUM(name, value, text) name = value,
    GMA_SLOT_LIST(GMA_SLOT_ENUM)
#undef GMA_SLOT_ENUM
} gma_slot;

/** GMA_GRAD(slot) - the gradient of the loss with respect to that tensor; same shape.
 *  Those of outputs (GMA_O, GMA_OUT_S, GMA_Y, ...) are inputs of backward, the others its outputs. */
#define GMA_GRAD_BIT 0x100
#define GMA_GRAD(slot) ((slot) | GMA_GRAD_BIT)

/** gma_arg - one tensor of a call. A slot given twice is an error; an optional slot not given is absent. */
typedef struct gma_arg {
    int32_t slot; /* a gma_slot, or GMA_GRAD(slot) */
    gma_tensor tensor;
} gma_arg;

/** gma_slot_name() - "q", "grad_q", ...; NULL for a value that is no slot. */
GMA_API const char *gma_slot_name(int32_t slot);

typedef enum gma_role { GMA_ROLE_INPUT = 1, GMA_ROLE_PARAM = 2, GMA_ROLE_OUTPUT = 3 } gma_role;

/** gma_slot_info - what a mixer accepts in a slot.
 *  dims: one letter an extent: B batch, h query heads (Hq), H key heads, q Nq, k Nk, K components (as M features and P
 *  rows of a projection: the same field), R, D, E = heads x D, S states (B, or G when packed), + G + 1.
 *  "?H...": that first extent may be left out, and the tensor then serves all of it. gma_slot_dims() tells which it is.
 *  dtypes: a set of bits 1 << gma_dtype, for forward and backward.  has_grad: backward can give its gradient (for an output: takes it). */
typedef struct gma_slot_info {
    int32_t slot;
    const char *dims;
    int32_t role;
    int32_t required;
    uint32_t dtypes;
    int32_t has_grad;
} gma_slot_info;

/** gma_slot_dims() - the letters of info->dims for a tensor with `rank` dimensions, without '?'; for a rank it cannot
 *  have, those of the smallest. The pointer goes into info->dims. */
GMA_API const char *gma_slot_dims(const gma_slot_info *info, int rank);

/* ---- Mixers ------------------------------------------------------------------------------- */

typedef enum gma_mixer_kind {
    GMA_MIXER_GMA = 1, /* Gaussian Mixture Attention */
    GMA_MIXER_LINEAR = 2, /* Linear Transformer: phi = elu + 1 */
    GMA_MIXER_PERFORMER = 3, /* Performer: positive random features */
    GMA_MIXER_SOFTMAX = 4, /* softmax attention */
    GMA_MIXER_LINFORMER = 5, /* Linformer: keys and values projected along the sequence */
    GMA_MIXER_MAMBA = 6 /* the selective scan of Mamba */
} gma_mixer_kind;

/** gma_mixer_kind_name() - "gma"; NULL for a value that is none.
 *  gma_mixer_kind_from_name() - the reverse; GMA_ERR_INVALID_ARGUMENT names what there is. */
GMA_API const char *gma_mixer_kind_name(gma_mixer_kind kind);
GMA_API gma_status gma_mixer_kind_from_name(const char *name, gma_mixer_kind *kind);

/** gma_mixer_slots() - the table of slots of a mixer; *count rows, static memory. NULL for no such mixer. */
GMA_API const gma_slot_info *gma_mixer_slots(gma_mixer_kind kind, int *count);

/** gma_mixer_desc - what a mixer is created from. Fill it with gma_mixer_desc_init(), then set the shape. */
typedef struct gma_mixer_desc {
    size_t struct_size; /* set by gma_mixer_desc_init */
    int32_t kind; /* a gma_mixer_kind */
    int32_t isa; /* a gma_isa; GMA_ISA_AUTO by default. A tier this CPU lacks is an error. */
    int32_t causal; /* 0 or 1; default 0 (mamba: 1) */
    int32_t reserved;
    int64_t batch; /* B */
    int64_t heads; /* Hq */
    int64_t kv_heads; /* H; divides Hq. 0 = as many as heads */
    int64_t q_len; /* Nq */
    int64_t k_len; /* Nk */
    int64_t routing_dim; /* R >= 1; mamba has none: 0, or as value_dim */
    int64_t value_dim; /* D */
    int64_t components; /* K >= 1; performer M, linformer P, mamba S >= 1; linear: 0 or R; softmax: 0 */
    int64_t segments; /* G, the number of packed sequences; -1 = not packed (the default) */
    double eps; /* > 0 (at least 1.2e-38, the smallest normal f32); default 1e-6 */
    double eps_sigma; /* likewise; default 1e-4 */
    /* Options of some mixers only; one that a mixer does not have must keep its default 0. */
    double scale; /* softmax, linformer: factor of the logits, > 0; 0 = 1/sqrt(R) */
    double rotary_base; /* softmax: rotary positions with this base, > 1 (10000 is usual); 0 = none. R must be even */
    int64_t window; /* softmax, causal: query i sees keys i - window < j <= i; 0 = all before it */
    int64_t cache_len; /* softmax without a window: how many tokens a decoding state has room for; 0 = no decoding */
    int32_t store_scores; /* softmax: 1 = keep all Nq x Nk scores, as the textbook does; for comparisons. Default 0 */
    int32_t reserved2;
} gma_mixer_desc;

typedef struct gma_mixer gma_mixer;

GMA_API gma_status gma_mixer_desc_init(gma_mixer_desc *desc, gma_mixer_kind kind);

/** gma_mixer_create() - check the descriptor and plan. *mixer is NULL after a failure.
 *  Errors: INVALID_ARGUMENT naming the field; UNSUPPORTED for a tier that is absent; OUT_OF_MEMORY. */
GMA_API gma_status gma_mixer_create(const gma_mixer_desc *desc, gma_mixer **mixer);
GMA_API void gma_mixer_destroy(gma_mixer *mixer); /* NULL is fine */

/** gma_mixer_get_desc() - the descriptor with every default filled in (the tier that was chosen among them). */
GMA_API gma_status gma_mixer_get_desc(const gma_mixer *mixer, gma_mixer_desc *desc);

/** gma_mixer_size - bytes of the buffers a call with `threads` threads needs (0 = gma_max_threads()).
 *  saved carries from forward to backward and must stay unchanged between them; scratch may be thrown away or shared by
 *  calls that do not overlap in time. All need 64-byte alignment. scratch stays below a bound
 *  that does not depend on the sequence length; saved holds one (K,D+1) state for some hundred tokens of each head.
 *  softmax: saved is one float a query and head, backward_scratch holds dk and dv of one head for each thread; with
 *  store_scores, scratch and saved grow with Nq x Nk. */
typedef struct gma_mixer_size {
    size_t struct_size; /* set by the caller to sizeof(gma_mixer_size) */
    size_t forward_scratch;
    size_t backward_scratch;
    size_t saved;
    size_t state; /* decoding state of all B x H, with its compensation terms and prepared parameters; 0: no decoding */
} gma_mixer_size;

GMA_API gma_status gma_mixer_sizes(const gma_mixer *mixer, int threads, gma_mixer_size *size);

/** gma_exec - where and how a call runs. Zero-initialise it, set struct_size. */
typedef struct gma_exec {
    size_t struct_size; /* sizeof(gma_exec) */
    int32_t threads; /* 0 = gma_max_threads() */
    int32_t reserved;
    void *scratch;
    size_t scratch_bytes;
    void *saved; /* forward: NULL = no backward will follow */
    size_t saved_bytes;
} gma_exec;

/** gma_mixer_forward() - inputs and parameters in, GMA_O (and, if given, GMA_OUT_S and GMA_OUT_Z) out.
 *  q, k, v, o (u, delta, B, C, y): F32 or BF16, any strides with a contiguous last dimension. Parameters, states,
 *  log_decay: F32, any strides. key_mask: BOOL or U8, 0 = masked. cu_seqlens: I32 or I64.
 *  Errors: the first argument that is missing, unknown, of wrong shape or type is named; a buffer too small or misaligned
 *  is named with the size it needs; cu_seqlens that do not rise from 0 to N; logit_scale not > 0; log_decay > 0. */
GMA_API gma_status gma_mixer_forward(const gma_mixer *mixer, const gma_arg *args, int count, const gma_exec *exec);

/** gma_mixer_backward() - what forward took, plus GMA_O as forward wrote it, exec->saved as forward left it, and
 *  GMA_GRAD(GMA_O) and/or GMA_GRAD(GMA_OUT_S) with GMA_GRAD(GMA_OUT_Z) (mamba: of GMA_Y, GMA_OUT_H). Writes (overwrites, never adds to) every
 *  gradient that is in the list; the others are not stored. A BF16 o is taken as rounded: where a gradient is a small
 *  difference (a query that sees one or two keys), that rounding shows in grad_q and grad_k. */
GMA_API gma_status gma_mixer_backward(const gma_mixer *mixer, const gma_arg *args, int count, const gma_exec *exec);

/* ---- Decoding one token at a time (causal mixers) --------------------------------------------------- */

/** gma_mixer_state_init() - prepare `state` (gma_mixer_size.state bytes, 64-byte aligned) from the parameters
 *  (GMA_MU, GMA_OMEGA, GMA_ALPHA, optional GMA_LOGIT_SCALE; GMA_FEATURES; none for linear; mamba's A, D, delta_bias) and
 *  an optional GMA_STATE_S with GMA_STATE_Z, mamba GMA_STATE_H (F32 or F64).
 *  The parameters are copied in prepared form; change them and the state must be made anew.
 *  softmax: optional GMA_K, GMA_V (B,H,Nk,..) and GMA_KEY_MASK, the tokens before the first step; the state can be used by
 *  every mixer that differs in q_len and k_len only. UNSUPPORTED when window and cache_len are both 0. */
GMA_API gma_status gma_mixer_state_init(const gma_mixer *mixer, const gma_arg *args, int count, void *state);

/** gma_mixer_step() - one token a sequence: GMA_Q (B,Hq,1,R), GMA_K (B,H,1,R), GMA_V (B,H,1,D), optional
 *  GMA_LOG_DECAY (B,H,1) and GMA_KEY_MASK (B,1); writes GMA_O (B,Hq,1,D) and updates the state. The descriptor's q_len
 *  and k_len play no part. The sums are compensated: 10^8 steps keep a relative error below 1e-5.
 *  softmax: the rotary position is the number of tokens so far; UNSUPPORTED once cache_len tokens are in the state.
 *  mamba: GMA_U, GMA_DELTA (B,1,E), GMA_SSM_B, GMA_SSM_C (B,1,S); writes GMA_Y (B,1,E). */
GMA_API gma_status gma_mixer_step(const gma_mixer *mixer, const gma_arg *args, int count, void *state, int threads);

/** gma_mixer_state_export() - (S, Z) of the state into GMA_OUT_S (B,H,K,D) and GMA_OUT_Z (B,H,K), F32 or F64;
 *  mamba: h into GMA_OUT_H (B,E,S). UNSUPPORTED for softmax. */
GMA_API gma_status gma_mixer_state_export(const gma_mixer *mixer, const void *state, const gma_arg *args, int count);

/* ---- The definition, in double ---------------------------------------------------------------------- */

/** gma_mixer_naive_forward() / gma_mixer_naive_backward() - the same calls straight from the definition, in double, one thread,
 *  with memory of their own (they allocate). Tensors may be F64 as well. For tests, for checking, and to be read.
 *  backward needs neither the output nor saved. */
GMA_API gma_status gma_mixer_naive_forward(const gma_mixer *mixer, const gma_arg *args, int count);
GMA_API gma_status gma_mixer_naive_backward(const gma_mixer *mixer, const gma_arg *args, int count);

/* ---- Performer's features ---------------------------------------------------------------------------- */

/** gma_performer_features() - orthogonal random features for GMA_FEATURES: w (count, width) = (M,R), dense. In blocks of at most
 *  R rows that are orthogonal to each other; each row's length is that of an independent normal vector, so a row alone
 *  is N(0, I). The same seed gives the same bits on every machine; features are redrawn by another seed, and a model must keep
 *  those it was trained with. Source: Choromanski et al. 2021. Allocates one block while it runs.
 *  Errors: INVALID_ARGUMENT for count or width < 1, or beyond 2^15 (width) and 2^40 (product); OUT_OF_MEMORY. */
GMA_API gma_status gma_performer_features(uint64_t seed, int64_t count, int64_t width, float *w);

#ifdef __cplusplus
}
#endif
#endif
