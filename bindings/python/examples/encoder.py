#!/usr/bin/env python3
"""A small encoder written for nn.MultiheadAttention, its attention replaced, trained on a toy task.

The task: sequences of letters, padded to one length; is 'a' more frequent than 'b'?

    python encoder.py [--steps 200] [--attention gma|softmax]
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

import libgma

LETTERS, LENGTH, WIDTH = 6, 64, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, padding):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens, padding):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, padding)
        kept = ~padding[..., None]
        return self.head((x * kept).sum(1) / kept.sum(1))


class InPlaceOfMultihead(nn.Module):
    """GaussianMixtureAttention called as nn.MultiheadAttention is."""

    def __init__(self, old, num_components):
        super().__init__()
        self.inner = libgma.GaussianMixtureAttention(old.embed_dim, old.num_heads, num_components)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False):
        if need_weights or key is not value:
            raise ValueError("there are no pairwise weights, and keys and values come from one sequence")
        return self.inner(query, key, key_padding_mask=key_padding_mask), None


def replace_attention(module, num_components):
    for name, child in module.named_children():
        if isinstance(child, nn.MultiheadAttention):
            setattr(module, name, InPlaceOfMultihead(child, num_components))
        else:
            replace_attention(child, num_components)


def batch(size):
    tokens = torch.randint(0, LETTERS, (size, LENGTH))
    padding = torch.arange(LENGTH) >= torch.randint(LENGTH // 2, LENGTH + 1, (size, 1))
    count = lambda letter: ((tokens == letter) & ~padding).sum(1)
    return tokens, padding, (count(0) > count(1)).long()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--attention", choices=("gma", "softmax"), default="gma")
    options = p.parse_args()
    torch.manual_seed(0)
    model = Encoder()
    if options.attention == "gma":
        replace_attention(model, num_components=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps + 1):
        tokens, padding, want = batch(64)
        loss = F.cross_entropy(model(tokens, padding), want)
        if step % 20 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens, padding, want = batch(500)
    print(f"right: {(model(tokens, padding).argmax(1) == want).float().mean().item():.1%}")


if __name__ == "__main__":
    main()
