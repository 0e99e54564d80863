# SPDX-License-Identifier: Apache-2.0
"""A character-level transformer, with everything in one file."""
import math
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser

import torch
from torch import nn
from torch.nn import functional as F

ap = ArgumentParser(formatter_class=ArgumentDefaultsHelpFormatter)
ap.add_argument("corpus")
ap.add_argument("--context", type=int, default=128)
ap.add_argument("--layers", type=int, default=4)
ap.add_argument("--width", type=int, default=256)
ap.add_argument("--steps", type=int, default=5000)
ap.add_argument("--batch", "-b", default=32)  # expect: XL003
ap.add_argument("--no-compile", dest="compile", action="store_false", default=False)  # expect: XL002
ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = ap.parse_args()

text = open(args.corpus).read()
vocabulary = sorted(set(text))
index = {c: i for i, c in enumerate(vocabulary)}
data = torch.tensor([index[c] for c in text])
split = int(0.9 * len(data))


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(args.width, 4, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(len(vocabulary), args.width)
        self.position = nn.Parameter(torch.zeros(args.context, args.width))
        self.body = nn.TransformerEncoder(layer, args.layers)
        self.out = nn.Linear(args.width, len(vocabulary))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        h = self.embed(x) + self.position[: x.size(1)]
        return self.out(self.body(h, mask=mask, is_causal=True))


def get_batch(part):
    source = data[:split] if part == "train" else data[split:]
    starts = torch.randint(len(source) - args.context - 1, (args.batch,))
    x = torch.stack([source[s : s + args.context] for s in starts])
    y = torch.stack([source[s + 1 : s + args.context + 1] for s in starts])
    return x.to(args.device), y.to(args.device)


@torch.no_grad()
def estimate(model, batches=50):
    model.eval()
    losses = torch.zeros(batches)
    for k in range(batches):
        x, y = get_batch("valid")
        losses[k] = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return losses.mean()


model = CharLM().to(args.device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
started = time.time()
for step in range(args.steps):
    if args.compile:
        model = torch.compile(model)
    for group in opt.param_groups:
        group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
    x, y = get_batch("train")
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 500 == 0:
        perplexity = math.exp(estimate(model).item())
        print(f"{step} perplexity {perplexity:.2f} after {time.time() - started:.0f} s")
