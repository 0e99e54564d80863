# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits, to 97 % on held-out images.

    xlaunch --instances 1 --ncores 2 examples/train.py
    python examples/train.py --epochs 10

The data are the 1,797 images of 8 x 8 pixels that scikit-learn carries. One in five is held out.
Prints images/s of training and the accuracy reached; below --goal the exit code is 1.

Needs `pip install scikit-learn`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn

SEED = 0


class Digits(NamedTuple):
    """Images, (n, 1, 8, 8) in 0..1, and what they show."""

    images: torch.Tensor
    labels: torch.Tensor


def load() -> tuple[Digits, Digits]:
    """The images to learn from and the held-out ones; the same split every time."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    held_out, learnt = order[: len(order) // 5], order[len(order) // 5 :]
    return Digits(images[learnt], labels[learnt]), Digits(images[held_out], labels[held_out])


def network() -> nn.Sequential:
    """Two convolutions of 3 x 3, a halving of the size, and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(model: nn.Sequential, digits: Digits, *, epochs: int, batch: int) -> float:
    """Train in place; return the images seen in a second."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    loss_of = nn.CrossEntropyLoss()
    model.train()
    start = time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(digits.labels)).split(batch):
            loss = loss_of(model(digits.images[chosen]), digits.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        print(f"epoch {epoch + 1:2}: loss {total / len(digits.labels):.4f}")
    return epochs * len(digits.labels) / (time.perf_counter() - start)


@torch.inference_mode()
def accuracy(model: nn.Sequential, digits: Digits) -> float:
    """The share of images that the model reads right."""
    model.eval()
    return float((model(digits.images).argmax(dim=1) == digits.labels).float().mean())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data (default 10)")
    parser.add_argument("--batch", type=int, default=64, help="images at a time (default 64)")
    parser.add_argument("--goal", type=float, default=0.97, help="accuracy to reach (default 0.97)")
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch < 1:
        parser.error("--epochs and --batch are at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(SEED)
    learnt, held_out = load()
    model = network()
    rate = train(model, learnt, epochs=arguments.epochs, batch=arguments.batch)
    reached = accuracy(model, held_out)
    print(f"{rate:.1f} images/s on {torch.get_num_threads()} thread(s)")
    print(
        f"accuracy on {len(held_out.labels)} held-out images:"
        f" {reached:.2%} (goal {arguments.goal:.0%})"
    )
    return 0 if reached >= arguments.goal else 1


if __name__ == "__main__":
    sys.exit(main())
