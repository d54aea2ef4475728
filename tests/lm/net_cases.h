/* Small models that between them use every option, for the tests of the network. */
#ifndef TEST_LM_NET_CASES_H
#define TEST_LM_NET_CASES_H

#include <stdio.h>
#include <string.h>

#include "gma/lm.h"

typedef struct net_case {
    const char *name;
    int norm, mlp, positions, tied, logit_scale, forget_gate, output_gate, conv;
    int64_t kv_heads;
    double dropout;
    const char *layers; /* a pattern of two; NULL = gma in both */
} net_case;

static const net_case net_cases[] = {
    {"paper", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, 0, 0, 0, 0, 2, 0, NULL},
    {"every option", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_NONE, 1, 1, 1, 1, 4, 2, 0, NULL},
    {"logit scale", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 0, 1, 0, 0, 0, 2, 0, NULL},
    {"forget gate", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 1, 0, 1, 0, 0, 1, 0, NULL},
    {"convolution, rotary", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_ROTARY, 0, 0, 0, 0, 3, 2, 0, NULL},
    {"output gate", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_ROTARY, 1, 0, 0, 1, 0, 2, 0, NULL},
    {"grouped heads", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_ROTARY, 1, 1, 1, 1, 2, 1, 0, NULL},
    {"dropout", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, 1, 1, 1, 4, 2, 0.4, NULL},
    {"linear", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 1, -1, -1, -1, -1, 1, 0, "2xlinear"},
    {"performer", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 0, 0, 0, 0, 0, 2, 0,
     "2xperformer:components=5"},
    {"gma and linear", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_NONE, 1, -1, 1, 1, 2, 2, 0.2,
     "linear:rotary=1:forget_gate=0,gma:components=4:output_gate=0"},
    {"performer and gma", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 1, 0, -1, -1, 0, 1, 0,
     "performer:components=7:conv=3,gma:components=3:logit_scale=1:rotary=1"},
    {"softmax", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_AUTO, 1, -1, -1, -1, -1, 1, 0, "2xsoftmax"},
    {"window", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 0, 0, 0, 0, 0, 2, 0,
     "2xsoftmax:window=4"},
    {"gma and window", GMA_LM_NORM_RMS, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_AUTO, 1, -1, -1, -1, -1, 2, 0.2,
     "gma:components=3,softmax:window=3"},
    {"mamba", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_AUTO, 1, -1, -1, -1, -1, 2, 0,
     "2xmamba:states=3"},
    {"mamba and window", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_AUTO, 0, -1, -1, -1, -1, 1, 0.1,
     "mamba:expand=1,softmax:window=5"},
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
    m.components = c->layers ? -1 : 3;
    m.mlp_width = 10;
    if (c->layers) strcpy(m.pattern, c->layers);
    return m;
}

#endif
