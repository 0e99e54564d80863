# SPDX-License-Identifier: Apache-2.0
"""Small modules, in eval mode, and their calibration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xruntime.quantization import Observed, QuantConf, calibrate


class Residual(nn.Module):
    """Calls one ReLU three times and one linear layer twice, uses functions, and adds what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.again = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm(self.first(images)))
        features = self.pool(self.relu(self.second(features) + features))
        pooled = torch.flatten(nn.functional.adaptive_avg_pool2d(features, 1), 1)
        pooled = self.relu(self.again(pooled)) * 0.5 + 1.0
        return self.head(nn.functional.relu(self.again(pooled)))


class Branches(nn.Module):
    """Two convolutions whose outputs are added: one of them is fused with the addition."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(self.left(values) + self.right(values))


class Outlier(nn.Module):
    """Its layer `wide` reads a value a thousand times larger than the others, which INT8 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(16, 16)
        self.wide = nn.Linear(17, 8)
        self.last = nn.Linear(8, 3)
        with torch.no_grad():
            self.wide.weight[:, 16] = 0.0
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.plain(values))
        outlier = torch.full_like(hidden[:, :1], 1000.0) * (1 + values[:, :1].abs())
        return self.last(torch.tanh(self.wide(torch.cat([hidden, outlier], 1))))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def residual() -> Residual:
    torch.manual_seed(0)
    return Residual()


def calibrated(
    model: nn.Module, conf: QuantConf | None = None, *, example: Tensor | None = None
) -> Observed:
    """Calibrate a model of images with 64 of them."""
    example = images(2) if example is None else example
    with calibrate(model, conf or QuantConf(), example) as observed:
        for seed in range(4):
            observed(images(16, seed))
    return observed
