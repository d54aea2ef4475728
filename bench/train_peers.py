"""The language model of libgma_lm's preset "paper" in PyTorch, with SDPA or GMA in its blocks. Parameters carry the names of
libgma_lm's, so that values can be copied by name."""
import torch
import torch.nn as nn
import torch.nn.functional as F

import peers


class Mixer(nn.Module):
    def __init__(self, width, heads, components, kind):
        super().__init__()
        self.heads, self.kind = heads, kind
        self.qkv = nn.Linear(width, 3 * width, bias=False)  # one product for q, k and v
        self.out_proj = nn.Linear(width, width, bias=False)
        if kind == "gma":
            shape = (heads, components, width // heads)
            self.mu, self.omega = nn.Parameter(torch.randn(*shape)), nn.Parameter(torch.zeros(*shape))
            self.alpha = nn.Parameter(torch.zeros(heads, components))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.kind == "sdpa":
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            o = peers.gma_product({"q": q, "k": k, "v": v, "mu": self.mu, "omega": self.omega, "alpha": self.alpha}, True)
        return self.out_proj(o.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, components, kind):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = Mixer(width, heads, components, kind)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 4 * width, bias=False),
                                  "down": nn.Linear(4 * width, width, bias=False)})

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp["down"](F.gelu(self.mlp["up"](self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    """Embedding and head are tied; learned positions; loss in nats per token."""

    def __init__(self, vocab, length, layers, width, heads, components, kind):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, components, kind) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.embed(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    def load(self, values):
        """values: {libgma_lm's name: tensor}; q, k and v become one matrix."""
        own = {}
        for name, value in values.items():
            if name.endswith("q_proj.weight"):
                parts = [values[name.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
                own[name.replace("q_proj", "qkv")] = torch.cat(parts)
            elif "k_proj" not in name and "v_proj" not in name:
                own[name] = value
        wanted = self.state_dict()
        self.load_state_dict({n: v for n, v in own.items() if n in wanted})
        return set(own) - set(wanted)  # what this model has no use for


class Trainer:
    """The step of libgma_lm: AdamW (decay on matrices and embeddings only), norm of the gradient clipped to 1."""

    def __init__(self, model, settings, compiled=False):
        decays = lambda n, p: p.dim() > 1 and not n.endswith((".mu", ".omega", ".alpha"))
        groups = [{"params": [p for n, p in model.named_parameters() if decays(n, p) == d],
                   "weight_decay": settings["weight_decay"] if d else 0.0} for d in (True, False)]
        self.model, self.clip = model, settings["clip"]
        self.optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=(settings["beta1"], settings["beta2"]),
                                           eps=settings["adam_eps"], fused=True)
        self.forward = torch.compile(model) if compiled else model

    def step(self, tokens, targets):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()
