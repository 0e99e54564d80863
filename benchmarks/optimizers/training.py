# SPDX-License-Identifier: Apache-2.0
"""Two networks to train, and their loss curves for each way of storing the weights.

The digits are scikit-learn's, in a network of two layers. The sentences have a grammar of which the entropy
is known; a transformer of two layers predicts each next character.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from xruntime import optim

Optimizers = dict[str, tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer], Any]]
INTERVAL = 10
"""Steps from one value of a curve to the next."""


class Work(NamedTuple):
    """A network and what it learns."""

    name: str
    network: Callable[[], nn.Module]
    inputs: torch.Tensor
    """Rows of pixels in fp32, or of character numbers."""
    targets: torch.Tensor
    batch: int
    optimizers: Optimizers
    """torch's, the one of xruntime, and the options of both, by a short name. The rates are small, so that
    most updates are less than half a unit of a bf16 weight."""


class Way(NamedTuple):
    """A way of storing the weights."""

    ours: bool
    dtype: torch.dtype
    options: dict[str, Any]


WAYS = {
    "fp32": Way(ours=False, dtype=torch.float32, options={}),
    "split bf16": Way(ours=True, dtype=torch.bfloat16, options={}),
    "stochastic bf16": Way(ours=True, dtype=torch.bfloat16, options={"rounding": "stochastic"}),
    "plain bf16": Way(ours=False, dtype=torch.bfloat16, options={}),
}


def losses(work: Work, optimizer: str, way: Way, steps: int) -> torch.Tensor:
    """Return the loss over all inputs after every tenth step, from equal weights and batches."""
    theirs, mine, options = work.optimizers[optimizer]
    generator = torch.Generator().manual_seed(0)
    network = work.network()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" not in name:
                drawn = torch.randn(parameter.shape, generator=generator) * 0.1
                parameter.copy_(drawn.bfloat16())
    network.to(way.dtype)
    torch.manual_seed(0)  # stochastic rounding draws its seed
    kind = mine if way.ours else theirs
    stepper = kind(network.parameters(), **options, **way.options)

    def loss(rows: torch.Tensor | slice) -> torch.Tensor:
        inputs = work.inputs[rows]
        output = network(inputs.to(way.dtype) if inputs.is_floating_point() else inputs)
        return nn.functional.cross_entropy(
            output.flatten(0, -2).float(), work.targets[rows].flatten()
        )

    curve = []
    for step in range(steps):
        rows = torch.randint(len(work.inputs), (work.batch,), generator=generator)
        stepper.zero_grad()
        loss(rows).backward()
        stepper.step()
        if step % INTERVAL == INTERVAL - 1:
            with torch.no_grad():
                curve.append(loss(slice(None)))
    return torch.stack(curve)


def gap(curve: torch.Tensor, full: torch.Tensor) -> float:
    """Return the largest difference of two curves, relative to the second."""
    return float(((curve - full).abs() / full).max())


def digits() -> Work:
    """8 by 8 pixels to one of ten digits. Needs scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return Work(
        name="digits",
        network=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        inputs=torch.tensor(images / 16, dtype=torch.float32),
        targets=torch.tensor(labels),
        batch=128,
        optimizers={
            "sgd": (torch.optim.SGD, optim.SGD, {"lr": 0.02, "momentum": 0.9}),
            "adamw": (torch.optim.AdamW, optim.AdamW, {"lr": 1e-4}),
            "adagrad": (torch.optim.Adagrad, optim.Adagrad, {"lr": 3e-3}),
        },
    )


SUBJECTS = (
    ("the cat", "the judge", "my uncle", "a robot"),
    ("two dogs", "the waves", "some kids", "all bees"),
)
VERBS = (("sees", "hears", "likes", "wants"), ("see", "hear", "like", "want"))
OBJECTS = (
    *("a red door", "an old boat", "the moon", "some tea"),
    *("its own tail", "no one", "rain", "us all"),
)
SENTENCES = 2_000
LENGTH = 32
"""Characters that the transformer sees at a time."""
CHOICES = len(SUBJECTS) * len(SUBJECTS[0]) * len(VERBS[0]) * len(OBJECTS)


def sentences() -> str:
    """Draw sentences in which subject and verb agree in number, each choice as likely as the others."""
    drawn = random.Random(0)
    lines = []
    for _ in range(SENTENCES):
        number = drawn.randrange(2)
        words = drawn.choice(SUBJECTS[number]), drawn.choice(VERBS[number]), drawn.choice(OBJECTS)
        lines.append(" ".join(words) + ".")
    return " ".join(lines)


def entropy_per_character(text: str) -> float:
    """Return the loss, in nats, of who knows the grammar."""
    return SENTENCES * math.log(CHOICES) / len(text)


def transformer() -> Work:
    """The next character of sentences, from up to 32 characters before it."""
    text = sentences()
    characters = sorted(set(text))
    numbers = torch.tensor([characters.index(character) for character in text])
    rows = numbers[: (len(numbers) - 1) // LENGTH * LENGTH].view(-1, LENGTH)
    following = numbers[1 : rows.numel() + 1].view(-1, LENGTH)
    return Work(
        name="transformer",
        network=lambda: Transformer(len(characters)),
        inputs=rows[:256],
        targets=following[:256],
        batch=16,
        optimizers={"adamw": (torch.optim.AdamW, optim.AdamW, {"lr": 1e-4})},
    )


class Transformer(nn.Module):
    """Two layers of attention to earlier characters, 64 numbers wide."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(TransformerLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, characters)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, length, characters) for numbers of (batch, length)."""
        values = self.characters(numbers) + self.positions.weight
        for layer in self.layers:
            values = layer(values)
        return self.scores(self.norm(values))


class TransformerLayer(nn.Module):
    """Attention of four heads and two linear layers, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape, (batch, length, width)."""
        parts = self.inward(self.norms[0](values)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.outward(mixed.transpose(1, 2).flatten(2))
        return values + self.down(nn.functional.gelu(self.up(self.norms[1](values))))
