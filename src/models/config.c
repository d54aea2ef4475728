/* The model's configuration: fields, defaults, what 0 stands for, what must hold. */
#include <math.h>
#include <stddef.h>

#include "models/fields.h"
#include "models/layer_spec.h"

#define F(type, name, min, max, hint, help) \
    {#name, GMAL_FIELD_##type, offsetof(gma_lm_config, name), min, max, hint, help}

const gmal_field gmal_model_fields[] = {
    F(LAYERS, layers, 1, 1000, "N|PATTERN",
      "how many, or the mixer of each: gma,gma,softmax:window=128; 3xgma stands for gma,gma,gma"),
    F(MIXER, mixer, 0, 0, "NAME", "the sequence mixer of every layer: gma, linear, performer, softmax, mamba"),
    F(LAYERS, encoder_layers, 0, 1000, "N|PATTERN", "seq2seq: the same for the encoder, which is bidirectional; 0 = as the decoder"),
    {"cross_mixer", GMAL_FIELD_PATTERN, offsetof(gma_lm_config, cross_pattern), 0, 0, "PATTERN",
     "seq2seq: what a decoder layer reads the encoder's output with: one for all, or one each; auto = the layer's own mixer"},
    F(INT, width, 1, 1 << 20, "N", "width of the residual stream"),
    F(INT, heads, 1, 4096, "N", "query heads"),
    F(INT, kv_heads, 0, 4096, "N", "key and value heads, a divisor of heads; 0 = heads"),
    F(INT, routing_dim, 0, 65536, "N", "width of a query or key in one head; 0 = width / heads"),
    F(INT, value_dim, 0, 65536, "N", "width of a value in one head; 0 = width / heads"),
    F(COUNT, components, 0, 65536, "N", "Gaussians (gma) or random features (performer) per head; auto = 64"),
    F(INT, context, 1, 1 << 24, "N", "tokens of a training sequence"),
    F(INT, vocab, 1, 1 << 24, "N", "number of token ids; 256 for bytes"),
    F(CHOICE, tokenizer, 0, 0, "bytes|none|words|bpe", "what tokens are: bytes, ids from elsewhere, or those of the tokenizer beside the model"),
    F(INT, mlp_width, 0, 1 << 22, "N", "hidden width of the MLP; 0 = 4 width (gelu), 8/3 width (swiglu)"),
    F(CHOICE, mlp, 0, 0, "gelu|swiglu", "form of the MLP"),
    F(CHOICE, norm, 0, 0, "rms|layer", "normalisation"),
    F(PICK, positions, 0, 0, "none|learned|rotary",
      "position information; auto = rotary in softmax layers, none in the others"),
    F(CHOICE, task, 0, 0, "lm|classify|seq2seq", "what the model is for"),
    F(SWITCH, causal, 0, 0, NULL, "a token sees what is before it; off (task classify): all of its sequence"),
    F(CHOICE, pooling, 0, 0, "mean|cls", "task classify: what stands for a sequence, the mean of its tokens or one of its own before them"),
    F(INT, classes, 0, 1 << 24, "N", "task classify: how many; 0 = as the data says"),
    F(FLAG, tied, 0, 0, NULL, "the head is the embedding (not in task classify)"),
    F(SWITCH, logit_scale, 0, 0, NULL,
      "learned factor on the log-likelihoods, per head, where the mixer has one"),
    F(SWITCH, forget_gate, 0, 0, NULL, "data-dependent forgetting, per head, where the mixer has it"),
    F(SWITCH, output_gate, 0, 0, NULL, "SiLU gate on the mixer's output, where it has none of its own"),
    F(COUNT, conv, 0, 64, "TAPS", "short causal convolution on q, k and v; 0 = none; auto = 4"),
    F(COUNT, states, 0, 256, "N", "mamba: numbers of state per channel; auto = 16"),
    F(COUNT, expand, 0, 16, "N", "mamba: channels per unit of width; auto = 2"),
    F(INT, window, 0, 1 << 24, "N", "softmax: how many tokens a query sees, itself included; 0 = all before it"),
    F(REAL, logit_scale_init, 1e-6, 1e6, "X", "where the logit scale starts"),
    F(REAL, dropout, 0, 0.999, "P", "dropout in training"),
    F(REAL, rotary_base, 1, 1e12, "X", "base of the rotary frequencies"),
    F(REAL, norm_eps, 1e-12, 1, "X", "epsilon of the norms"),
    F(REAL, eps, 1e-30, 1, "X", "epsilon of the mixer's normaliser"),
    F(REAL, eps_sigma, 1e-30, 1e6, "X", "least variance of a Gaussian"),
};
const int gmal_model_field_count = (int)(sizeof gmal_model_fields / sizeof gmal_model_fields[0]);

gma_status gma_lm_config_init(gma_lm_config *config) {
    if (!config) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "config is NULL");
    *config = (gma_lm_config){
        .struct_size = sizeof *config,
        .norm = GMA_LM_NORM_RMS,
        .mlp = GMA_LM_MLP_GELU,
        .positions = GMA_LM_POSITIONS_AUTO,
        .tied = 1,
        .logit_scale = -1,
        .forget_gate = -1,
        .output_gate = -1,
        .tokenizer = GMA_LM_TOKENIZER_BYTES,
        .causal = -1,
        .conv = -1,
        .vocab = 256,
        .context = 256,
        .layers = 4,
        .width = 192,
        .heads = 3,
        .components = -1,
        .states = -1,
        .expand = -1,
        .logit_scale_init = 0.1,
        .rotary_base = 10000,
        .norm_eps = 1e-5,
        .eps = 1e-6,
        .eps_sigma = 1e-4,
    };
    return GMA_OK;
}

#define FAIL(...) return gma_fail(GMA_ERR_INVALID_ARGUMENT, __VA_ARGS__)

/* The largest model we address: keeps every product of extents far from overflow. */
static const double most_parameters = 1e12;

gma_status gma_lm_config_resolve(gma_lm_config *c) {
    if (!c) FAIL("config is NULL");
    if (c->struct_size != sizeof *c) FAIL("config.struct_size is not that of this library; call gma_lm_config_init");
    for (int i = 0; i < gmal_model_field_count; i++) {
        const gma_status s = gmal_field_check(&gmal_model_fields[i], c);
        if (s != GMA_OK) return s;
    }
    if (c->causal < 0) c->causal = c->task != GMA_LM_TASK_CLASSIFY;
    if (!c->causal && c->task != GMA_LM_TASK_CLASSIFY)
        FAIL("causal cannot be off: this task predicts a token from those before it");
    if (c->task == GMA_LM_TASK_SEQ2SEQ && (c->vocab < 3 || c->tokenizer != GMA_LM_TOKENIZER_NONE))
        FAIL("a seq2seq model reads ids (tokenizer none), a vocabulary of at least 3 of them: the last two begin and end a target");
    if (c->task == GMA_LM_TASK_CLASSIFY) {
        c->tied = 0; /* the head has a row a class */
        if (c->classes < 2) FAIL("classes must be at least 2 for task classify, not %lld", (long long)c->classes);
        if (c->pooling == GMA_LM_POOLING_CLS && c->context < 2)
            FAIL("context must be at least 2 with pooling cls: its own token is one of them");
    } else if (c->classes || c->pooling) {
        FAIL("%s is of task classify", c->classes ? "classes" : "pooling cls");
    }
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        FAIL("kv_heads (%lld) must divide heads (%lld)", (long long)c->kv_heads, (long long)c->heads);
    if ((!c->routing_dim || !c->value_dim) && c->width % c->heads)
        FAIL("heads (%lld) must divide width (%lld), or routing_dim and value_dim be given", (long long)c->heads,
             (long long)c->width);
    if (!c->routing_dim) c->routing_dim = c->width / c->heads;
    if (!c->value_dim) c->value_dim = c->width / c->heads;
    if (!c->mlp_width)
        c->mlp_width = c->mlp == GMA_LM_MLP_GELU ? 4 * c->width : (8 * c->width / 3 + 31) / 32 * 32;
    if (c->tokenizer == GMA_LM_TOKENIZER_BYTES && c->vocab != 256)
        FAIL("vocab must be 256 when tokens are bytes, not %lld", (long long)c->vocab);
    const double per_layer = (double)c->width * (double)(c->heads * (c->routing_dim + 3 * c->value_dim)) +
                             2.0 * (double)c->kv_heads * fmax((double)c->components, 64) * (double)c->routing_dim +
                             3.0 * (double)c->width * (double)c->mlp_width;
    if (per_layer * (double)(2 * c->layers + c->encoder_layers) + (double)c->vocab * (double)c->width > most_parameters)
        FAIL("the model would have more than 10^12 parameters");
    const gma_status s = gmal_layers_resolve(c);
    if (s == GMA_OK && c->pooling == GMA_LM_POOLING_CLS && !gmal_config_looks_ahead(c))
        FAIL("pooling cls: its token stands before the sequence, and no layer lets it see what follows; use mean");
    return s;
}
