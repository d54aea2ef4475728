/* Small models that between them use every option, for the tests of the network. */
#ifndef TEST_LM_NET_CASES_H
#define TEST_LM_NET_CASES_H

#include "gma/lm.h"

typedef struct net_case {
    const char *name;
    int norm, mlp, positions, tied, logit_scale, forget_gate, output_gate, conv;
    int64_t kv_heads;
    double dropout;
} net_case;

static const net_case net_cases[] = {
    {"paper", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, 0, 0, 0, 0, 2, 0},
    {"every option", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_NONE, 1, 1, 1, 1, 4, 2, 0},
    {"logit scale", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 0, 1, 0, 0, 0, 2, 0},
    {"forget gate", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 1, 0, 1, 0, 0, 1, 0},
    {"convolution, rotary", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_ROTARY, 0, 0, 0, 0, 3, 2, 0},
    {"output gate", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_ROTARY, 1, 0, 0, 1, 0, 2, 0},
    {"grouped heads", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_ROTARY, 1, 1, 1, 1, 2, 1, 0},
    {"dropout", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, 1, 1, 1, 4, 2, 0.4},
};
enum { NET_CASES = sizeof net_cases / sizeof net_cases[0] };

static inline gma_lm_config net_config(const net_case *c) {
    gma_lm_config m;
    gma_lm_config_init(&m);
    m.norm = c->norm;
    m.mlp = c->mlp;
    m.positions = c->positions;
    m.tied = c->tied;
    m.logit_scale = c->logit_scale;
    m.forget_gate = c->forget_gate;
    m.output_gate = c->output_gate;
    m.conv = c->conv;
    m.kv_heads = c->kv_heads;
    m.dropout = c->dropout;
    m.tokenizer = GMA_LM_TOKENIZER_NONE;
    m.vocab = 11;
    m.context = 9;
    m.layers = 2;
    m.width = 12;
    m.heads = 2;
    m.routing_dim = 4;
    m.value_dim = 5;
    m.components = 3;
    m.mlp_width = 10;
    return m;
}

#endif
