# SPDX-License-Identifier: Apache-2.0
"""Lines on standard error that a package prints when it is imported."""

from __future__ import annotations

import re

# transformers imports torchao if it is installed; 0.18 with a CPU build of torch 2.13 prints these.
_TORCHAO = re.compile(r"Failed to load \S*/torchao/|torch/utils/_pytree\.py.*register_constant")


def without_torchao(stderr: str) -> list[str]:
    """The lines that torchao did not print."""
    return [line for line in stderr.splitlines() if not _TORCHAO.search(line)]
