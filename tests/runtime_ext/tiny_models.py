# SPDX-License-Identifier: Apache-2.0
"""Small modules, in eval mode, that torch compiles in seconds."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn


def eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.inference_mode():
        return model(*args, **kwargs)


class Images(nn.Module):
    """Convolutions with a batch norm and activations, as image networks have them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 5)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.second(torch.relu(self.norm(self.first(images)))))
        return self.head(features.mean((2, 3)))


class Counting(nn.Linear):
    """Counts its calls in a buffer, which code with constants would not."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(values)


class Layer(nn.Module):
    """One layer of a transformer: attention under a mask, a feed-forward part, two norms."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(50, width)
        self.queries = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.eval()

    def forward(self, *, ids: Tensor, mask: Tensor) -> dict[str, Any]:
        hidden = self.tokens(ids)
        parts = self.queries(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], attn_mask=mask[:, None, None, :]
        )
        hidden = self.norms[0](hidden + self.joined(seen.transpose(1, 2).flatten(2)))
        hidden = self.norms[1](hidden + self.narrow(torch.nn.functional.gelu(self.wide(hidden))))
        return {"hidden": hidden, "pooled": (hidden.mean(1), None)}


class Named(nn.Module):
    """Takes and returns nests: images by position, the rest by name, in dicts and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 16)
        self.colours = nn.Linear(3, 16)
        self.last = nn.Linear(16, 4)
        self.eval()

    def forward(self, images: Tensor, *, ids: Tensor, extra: dict[str, Any]) -> dict[str, Any]:
        features = self.colours(images.sin().mean((2, 3))) + self.rows(ids).mean(1)
        scores = self.last(features) * extra["scale"][0] + extra["shift"]
        return {"scores": scores, "parts": (scores.softmax(-1), None)}


class Chance(nn.Module):
    """Never computes the same twice."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.rand_like(values)


class Scaled(nn.Module):
    """Takes a number that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.negate = False
        self.eval()

    def forward(self, values: Tensor, scale: float) -> Tensor:
        scaled = self.linear(values) * scale
        return -scaled if self.negate else scaled


class Waves(nn.Module):
    """One long computation for each value, which becomes one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        for _ in range(8):
            values = (values.sin() + values.exp().neg().exp()).tanh()
        return values


@torch.compiler.disable
def _hold(values: Tensor) -> Tensor:
    ctypes.PyDLL(None).usleep(20_000)  # which holds the GIL
    return values


class Holding(nn.Module):
    """Runs something between two layers that torch cannot compile, and that holds the GIL."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return self.after(_hold(self.before(values)))


class Unusual(nn.Module):
    """Uses an operator that AOTInductor has no C interface for."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, square: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(square) + 1
