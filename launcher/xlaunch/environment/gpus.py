# SPDX-License-Identifier: Apache-2.0
"""The variables by which an instance sees its own GPUs only (`--gpus-per-instance`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.machine.gpus import (
    BY_PCI_ADDRESS,
    CUDA,
    CUDA_ORDER,
    LEVEL_ZERO,
    LEVEL_ZERO_HIERARCHY,
    LEVEL_ZERO_ORDER,
    SYCL,
    VARIABLES,
)
from xlaunch.machine.topology import Gpu

REASON = "--gpus-per-instance: the instance's own GPUs"


def gpu_settings(gpus: Sequence[Gpu], inherited: Mapping[str, str]) -> list[Proposal]:
    """The variables of an instance with these GPUs; none without any.

    Numbers are by PCI address: for CUDA that is nvidia-smi's order, which every program takes, while
    some do not take UUIDs. Words of an inherited variable are used as they are.
    """
    if not gpus:
        return []
    variable = gpus[0].variable
    value = ",".join([gpu.name for gpu in gpus])
    if variable == SYCL:
        value = f"level_zero:{value}"
    settings = [Proposal(variable, value, REASON, merged=True)]
    if variable == CUDA and any(gpu.name.isdecimal() for gpu in gpus):
        reason = f"{CUDA} counts GPUs as nvidia-smi does"
        settings.append(Proposal(CUDA_ORDER, BY_PCI_ADDRESS, reason, merged=True))
    if variable == LEVEL_ZERO and LEVEL_ZERO not in inherited:
        settings += [
            Proposal(LEVEL_ZERO_ORDER, "1", f"{LEVEL_ZERO} counts by PCI address", merged=True),
            Proposal(LEVEL_ZERO_HIERARCHY, "COMPOSITE", f"{LEVEL_ZERO} counts cards, not tiles"),
        ]
    return settings


def refuse_two_choices(asked: Mapping[str, str]) -> None:
    """Raise `UsageError` where `--env` chooses GPUs, too."""
    for name in VARIABLES:
        if name in asked:
            raise UsageError(
                f"--env {name} and --gpus-per-instance both choose GPUs: drop one, or set {name} "
                "before xlaunch, which then divides the GPUs that it names"
            )
