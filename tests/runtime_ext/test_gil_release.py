# SPDX-License-Identifier: Apache-2.0
"""Compiled code and packages release the GIL while they compute; torch's own calls of them do not."""

from __future__ import annotations

import os

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.gil import gil_held_share
from tests.runtime_ext.stream_threads import call_in_thread
from tests.runtime_ext.tiny_models import Waves

from xruntime.aoti.compiling import compile_package
from xruntime.aoti.package import load_package
from xruntime.compilation.gil import CallableKind, gil_enabled, kind_of
from xruntime.streams.compiled_module import compile_for_streams

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("compiler")]


def test_torchs_default_holds_the_gil_and_this_does_not(needs: Needs) -> None:
    needs(len(os.sched_getaffinity(0)) >= 2 and gil_enabled(), "two CPUs and a GIL")
    # One generated kernel. Operators that torch calls, such as convolutions, are free of it anyway.
    model, sample = Waves(), torch.randn(1 << 21)
    default = torch.compile(model, options={"freezing": True})
    compiled = compile_for_streams(model, sample, threads=1)

    def shares() -> tuple[float, float]:
        with torch.inference_mode():
            default(sample)
            return gil_held_share(lambda: default(sample)), gil_held_share(lambda: compiled(sample))

    theirs, ours = call_in_thread(shares, team=1)
    assert theirs > 0.5 > ours


def test_torchs_runner_holds_the_gil_and_this_does_not(tmp_path, needs: Needs) -> None:
    needs(len(os.sched_getaffinity(0)) >= 2 and gil_enabled(), "two CPUs and a GIL")
    sample = torch.randn(1 << 21)
    path = compile_package(Waves(), sample, tmp_path / "waves.pt2", threads=1)
    theirs = torch._inductor.aoti_load_package(str(path))
    assert kind_of(theirs) is CallableKind.PACKAGE_UNDER_GIL
    with load_package(path, runners=2) as ours:
        held, free = call_in_thread(
            lambda: (gil_held_share(lambda: theirs(sample)), gil_held_share(lambda: ours(sample))),
            team=1,
        )
    assert held > 0.5 > free
