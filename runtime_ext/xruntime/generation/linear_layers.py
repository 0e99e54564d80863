# SPDX-License-Identifier: Apache-2.0
"""The layers that multiply by a matrix: torch's Linear, and transformers' Conv1D, which stores (inputs, outputs)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def linear_kinds() -> tuple[type[nn.Module], ...]:
    """Return the classes of these layers. A program without transformers has no Conv1D."""
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return (nn.Linear,) if conv1d is None else (nn.Linear, conv1d)


def matrix(layer: Any) -> torch.Tensor:
    """Return a layer's weights as (outputs, inputs), in the memory where they are."""
    weight: torch.Tensor = layer.weight
    return weight if isinstance(layer, nn.Linear) else weight.detach().T


def input_count(layer: Any) -> int:
    """Return the number of a layer's inputs."""
    count: int = layer.in_features if isinstance(layer, nn.Linear) else layer.nx
    return count
