# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation with constant statistics and parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from xruntime.errors import OperatorError

_HALVES = (torch.bfloat16, torch.float16)


class FrozenBatchNorm2d(nn.Module):
    """x weight / sqrt(running_var + eps) + bias - running_mean weight / sqrt(running_var + eps).

    Buffers and `state_dict` are those of torchvision.ops.FrozenBatchNorm2d: `weight`, `bias`,
    `running_mean` and `running_var`, of shape (C,); `num_batches_tracked` of a BatchNorm2d is dropped
    when it is loaded. The input has shape (N, C, H, W). The output has its dtype and memory format,
    where torchvision's has the wider dtype of input and buffers. It is one pass of torch's kernel for
    inference, differentiable in the input.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            self.register_buffer(name, torch.full((num_features,), float(value)))

    @classmethod
    def from_batch_norm(cls, norm: nn.BatchNorm2d) -> FrozenBatchNorm2d:
        """Return a frozen copy of a BatchNorm2d, also of one without affine parameters.

        Raises OperatorError if it tracks no statistics.
        """
        mean = norm.running_mean
        if mean is None:
            raise OperatorError(
                "FrozenBatchNorm2d.from_batch_norm: the module has track_running_stats=False, so there"
                " are no statistics to freeze"
            )
        frozen = cls(norm.num_features, norm.eps).to(device=mean.device, dtype=mean.dtype)
        for name in ("weight", "bias", "running_mean", "running_var"):
            value = getattr(norm, name)
            if value is not None:
                setattr(frozen, name, value.detach().clone())
        return frozen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raises OperatorError for another shape than (N, C, H, W)."""
        if x.dim() != 4 or x.shape[1] != self.weight.shape[0]:
            raise OperatorError(
                f"FrozenBatchNorm2d: input has shape {tuple(x.shape)}; allowed is"
                f" (N, {self.weight.shape[0]}, H, W)"
            )
        buffers = self.running_mean, self.running_var, self.weight, self.bias
        mixes = x.dtype in _HALVES and self.weight.dtype == torch.float32
        if not mixes and any(buffer.dtype != x.dtype for buffer in buffers):
            # torch's kernel takes the input's dtype or, for bf16 and fp16, fp32.
            dtype = torch.float32 if x.dtype in _HALVES else x.dtype
            buffers = tuple(buffer.to(dtype) for buffer in buffers)  # type: ignore[assignment]
        mean, variance, weight, bias = buffers
        return nn.functional.batch_norm(x, mean, variance, weight, bias, eps=self.eps)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        state_dict.pop(prefix + "num_batches_tracked", None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"
