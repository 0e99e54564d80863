# SPDX-License-Identifier: Apache-2.0
"""`ipex.optim`: the optimizers of xruntime."""

from __future__ import annotations

from typing import NoReturn

from xruntime.compat.ipex.replacements import missing
from xruntime.optim import SGD, Adagrad, Adam, AdamW, Lamb, Lars

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lamb", "Lars"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
