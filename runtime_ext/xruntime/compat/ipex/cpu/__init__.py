# SPDX-License-Identifier: Apache-2.0
"""`ipex.cpu`: the runtime extension."""

from xruntime.compat.ipex.cpu import runtime
from xruntime.compat.ipex.replacements import missing

__all__ = ["runtime"]

__getattr__ = missing(__name__)
