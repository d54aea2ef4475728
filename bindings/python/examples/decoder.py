#!/usr/bin/env python3
"""A small GPT-like decoder of our own, with softmax attention or Gaussian Mixture Attention, trained on the bytes of a text.

    python decoder.py [--attention gma|softmax] [--text FILE] [--steps 300]

After training it continues a prompt. With GMA each new byte costs the same, however long the text before it is.
"""
import argparse
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

import libgma

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "data", "tinyshakespeare", "input.txt")
WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 96, 4, 2, 128, 8


class SoftmaxAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def make_attention(kind):
    if kind == "softmax":
        return SoftmaxAttention()
    return libgma.GaussianMixtureAttention(WIDTH, HEADS, num_components=32, is_causal=True)


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), make_attention(kind)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mix=None):
        x = x + (mix or self.attention)(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def stream(self, tokens, length):
        """Bytes one at a time from the states of the GMA layers."""
        states = [block.attention.init_state(1) for block in self.blocks]
        out = list(tokens)
        for i in range(min(length, CONTEXT - 1)):
            x = self.embed(torch.tensor([[out[i]]])) + self.positions.weight[i]
            for block, state in zip(self.blocks, states):
                x = block(x, lambda y, b=block, s=state: b.attention.step(y, s))
            if i + 1 >= len(out):
                out.append(int(torch.multinomial((self.head(self.norm(x))[0, 0] / 0.8).softmax(-1), 1)))
        return bytes(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--attention", choices=("gma", "softmax"), default="gma")
    p.add_argument("--text", default=TEXT)
    p.add_argument("--steps", type=int, default=300)
    options = p.parse_args()
    torch.manual_seed(0)
    with open(options.text, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    model = Decoder(options.attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps + 1):
        at = torch.randint(0, len(data) - CONTEXT - 1, (BATCH, 1)) + torch.arange(CONTEXT + 1)
        loss = F.cross_entropy(model(data[at[:, :-1]]).flatten(0, 1), data[at[:, 1:]].flatten())
        if step % 20 == 0:
            print(f"step {step:4}  loss {loss.item():.3f} nats, {loss.item() / math.log(2):.3f} bits a byte")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if options.attention == "gma":
        print(model.stream(b"ROMEO:", CONTEXT).decode(errors="replace"))


if __name__ == "__main__":
    main()
