"""What libgma is compared with, in PyTorch. x: dict of q k v (B,H,N,R), mu omega (H,K,R), alpha (H,K)."""
import math

import torch
import torch.nn.functional as F

EPS, EPS_SIGMA, CHUNK = 1e-6, 1e-4, 64


def sdpa(x, causal):
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=causal)


def _log_weights(x):
    """log pi_k - 1/2 sum log (2 pi sigma2), and sigma2."""
    sigma2 = F.softplus(x["omega"]) + EPS_SIGMA
    width = x["mu"].shape[-1]
    return F.log_softmax(x["alpha"], -1) - 0.5 * (sigma2.log().sum(-1) + width * math.log(2 * math.pi)), sigma2


def published_gamma(x, tokens):
    """As published: (B,H,N,K,R) differences, squared, divided, summed."""
    weights, sigma2 = _log_weights(x)
    difference = tokens.unsqueeze(-2) - x["mu"].unsqueeze(1)
    distance = (difference * difference / sigma2.unsqueeze(1)).sum(-1)
    return torch.softmax(weights.unsqueeze(1) - 0.5 * distance, -1)


def gma_published(x, causal):
    gq, gk = published_gamma(x, x["q"]), published_gamma(x, x["k"])
    if causal:
        state = torch.cumsum(gk.unsqueeze(-1) * x["v"].unsqueeze(-2), 2)
        total = torch.cumsum(gk, 2)
        return (gq.unsqueeze(-2) @ state).squeeze(-2) / ((gq * total).sum(-1, keepdim=True) + EPS)
    state, total = gk.transpose(-1, -2) @ x["v"], gk.sum(2)
    return gq @ state / (gq @ total.unsqueeze(-1) + EPS)


def linear_attention(fq, fk, v, causal):
    """sum_j fq_i . fk_j v_j / (sum_j fq_i . fk_j + eps), in chunks of 64 when causal, all chunks side by side."""
    if not causal:
        state, total = fk.transpose(-1, -2) @ v, fk.sum(2)
        return fq @ state / (fq @ total.unsqueeze(-1) + EPS)
    b, h, n, k = fq.shape
    split = lambda t: t.reshape(b, h, n // CHUNK, CHUNK, t.shape[-1])
    fq, fk, v = split(fq), split(fk), split(v)
    local = fk.transpose(-1, -2) @ v
    total = fk.sum(-2)
    state = torch.cumsum(local, 2) - local
    before = torch.cumsum(total, 2) - total
    inside = torch.tril(fq @ fk.transpose(-1, -2))
    den = inside.sum(-1, keepdim=True) + fq @ before.unsqueeze(-1) + EPS
    return ((inside @ v + fq @ state) / den).reshape(b, h, n, -1)


def product_gamma(x, tokens):
    """One product for all logits: |x - mu|^2 / sigma2 opened out."""
    weights, sigma2 = _log_weights(x)
    inverse = 1 / sigma2
    weights = weights - 0.5 * (x["mu"] * x["mu"] * inverse).sum(-1)
    both = torch.cat((tokens * tokens, tokens), -1)
    matrix = torch.cat((-0.5 * inverse, x["mu"] * inverse), -1)
    return torch.softmax(both @ matrix.transpose(-1, -2) + weights.unsqueeze(1), -1)


def gma_product(x, causal):
    return linear_attention(product_gamma(x, x["q"]), product_gamma(x, x["k"]), x["v"], causal)


def linear_transformer(x, causal):
    return linear_attention(F.elu(x["q"]) + 1, F.elu(x["k"]) + 1, x["v"], causal)


# ---- What they must equal: the definitions, all tokens with all, in double --------------------------------------


def _quadratic(weights, v, causal, eps):
    weights = torch.tril(weights) if causal else weights
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)


def define_gma(x, causal):
    return _quadratic(published_gamma(x, x["q"]) @ published_gamma(x, x["k"]).transpose(-1, -2), x["v"], causal, EPS)


def define_linear(x, causal):
    return _quadratic((F.elu(x["q"]) + 1) @ (F.elu(x["k"]) + 1).transpose(-1, -2), x["v"], causal, EPS)


def define_sdpa(x, causal):
    return _quadratic(torch.exp(x["q"] @ x["k"].transpose(-1, -2) / math.sqrt(x["q"].shape[-1])), x["v"], causal, 0.0)


PARAMETERS = {"sdpa": (), "linear": (), "published": ("mu", "omega", "alpha"), "product": ("mu", "omega", "alpha")}
FUNCTIONS = {"sdpa": sdpa, "linear": linear_transformer, "published": gma_published, "product": gma_product}
DEFINITIONS = {"sdpa": define_sdpa, "linear": define_linear, "published": define_gma, "product": define_gma}
NAMES = {"gma": "libgma", "kept": "libgma, memory kept", "sdpa": "PyTorch SDPA", "product": "PyTorch GMA, one product", "linear": "PyTorch Linear Transformer",
         "published": "PyTorch GMA as published"}
