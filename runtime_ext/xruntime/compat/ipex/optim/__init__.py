# SPDX-License-Identifier: Apache-2.0
"""`ipex.optim`: the optimizers of xruntime."""

from xruntime.compat.ipex.replacements import missing
from xruntime.optim import SGD, Adagrad, Adam, AdamW, Lamb, Lars

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lamb", "Lars"]

__getattr__ = missing(__name__)
