# SPDX-License-Identifier: Apache-2.0
"""What the calling thread's team looks like, read back from the kernel."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from xruntime import openmp_team


class Team(NamedTuple):
    torch_threads: int
    masks: list[list[int]]
    """The affinity mask of each thread, the host thread's first."""


def read_team() -> Team:
    """Run an operator of torch's and then a region of ours; who took part, and where it may run."""
    torch.ones(1 << 17).add_(1).sum().item()
    members = openmp_team().members
    masks = [sorted(os.sched_getaffinity(member.thread_id)) for member in members]
    return Team(torch.get_num_threads(), masks)
