# SPDX-License-Identifier: Apache-2.0
"""`ipex.nn.functional`: the interaction."""

from __future__ import annotations

from functools import reduce

import torch

from xruntime import nn
from xruntime.compat.ipex.replacements import missing

__all__ = ["interaction"]


def interaction(*tensors: torch.Tensor) -> torch.Tensor:
    """`xruntime.nn.interaction` of tensors whose dtypes may differ: the result has the promoted one.

    Raises OperatorError.
    """
    if tensors:
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        tensors = tuple([tensor.to(dtype) for tensor in tensors])
    return nn.interaction(*tensors)


__getattr__ = missing(__name__)
