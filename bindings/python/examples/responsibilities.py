#!/usr/bin/env python3
"""Draw through which Gaussians a trained model routes the bytes of a text.

    python responsibilities.py [--model FOLDER] [--layer 0] [--text "To be, or not to be"] [--out routing.png]

Needs matplotlib. --model is a folder of `gma train` or of LanguageModel.save_pretrained().
"""
import argparse
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import torch  # noqa: E402

import libgma  # noqa: E402

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "models", "shakespeare-gma")


def routing(model, layer, text):
    """gamma (H,N,K) of the queries of one layer."""
    block, seen = model.blocks[layer], []
    hook = block.norm1.register_forward_hook(lambda module, given, result: seen.append(result))
    with torch.no_grad():
        model(torch.tensor([list(text)]))
        hook.remove()
        return block.mixer.responsibilities(seen[0])[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--layer", type=int, default=0)
    p.add_argument("--text", default="ROMEO:\nBut, soft! what light through yonder window breaks?")
    p.add_argument("--out", default="routing.png")
    options = p.parse_args()
    model = libgma.load_pretrained(options.model)
    data = options.text.encode()
    gamma = routing(model, options.layer, data)
    figure, axes = plt.subplots(len(gamma), 1, figsize=(0.16 * len(data) + 2, 2.2 * len(gamma)), sharex=True, squeeze=False)
    for head, axis in enumerate(axes[:, 0]):
        order = gamma[head].argmax(0).argsort()  # components in the order of the byte that uses each most
        image = axis.imshow(gamma[head].T[order], aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        axis.set_ylabel(f"head {head}\ncomponent")
    axes[-1, 0].set_xticks(range(len(data)), [repr(chr(b))[1:-1] for b in data], fontfamily="monospace", fontsize=8)
    figure.colorbar(image, ax=axes, label="responsibility")
    figure.suptitle(f"Queries of layer {options.layer}")
    figure.savefig(options.out, dpi=120)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
