# SPDX-License-Identifier: Apache-2.0
"""The instruction sets that the operators are tested on, and what declares their functions."""

from __future__ import annotations

from xruntime import native


def every_isa() -> list[str]:
    try:
        return native.supported_isas()
    except native.KernelsUnavailableError:
        return ["none"]


ISAS = every_isa()
"""Those of this CPU, worst first; one that does not exist where there is no library."""

DECLARING_MODULES = (
    "xruntime.nn",
    "xruntime.nn.dropout_operator",
    "xruntime.nn.gelu_operator",
    "xruntime.optim",
    "xruntime.generation.decode_step",
    "xruntime.generation.packed_weights",
)
"""Those that declare functions of the library for ctypes when they are imported."""
