# SPDX-License-Identifier: Apache-2.0
"""`ipex.nn`: modules and functions of xruntime.nn."""

from xruntime.compat.ipex.nn import functional, modules
from xruntime.compat.ipex.replacements import missing
from xruntime.nn import FrozenBatchNorm2d

__all__ = ["FrozenBatchNorm2d", "functional", "modules"]

__getattr__ = missing(__name__)
