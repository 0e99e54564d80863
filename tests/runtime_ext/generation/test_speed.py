# SPDX-License-Identifier: Apache-2.0
"""What is said of the speed at which a model's weights are read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.captures import read_capture  # noqa: E402

from xlaunch.machine.topology import Machine  # noqa: E402
from xruntime.generation.speed import MIN_WEIGHT_BYTES, Speed, slow_reasons  # noqa: E402


@pytest.mark.parametrize(
    ("name", "quota", "threads", "has_large_pages", "reasons"),
    [
        ("2-packages-2-nodes-smt", None, 8, False, ["2 memory nodes", "huge pages: never"]),
        ("xeon-vm-32-cpus", 4.0, 4, True, ["quota of 4 for 32 CPUs", "inplace=True"]),
        ("xeon-vm-32-cpus", None, 1, True, ["one thread on 32 CPUs", "inplace=True"]),
        ("epyc-vm-2-cpus", None, 2, True, ["inplace=True"]),
    ],
)
def test_reasons_for_slow_reading(
    name: str, quota: float | None, threads: int, has_large_pages: bool, reasons: list[str]
) -> None:
    machine: Machine = read_capture(name)
    machine = machine._replace(limits=machine.limits._replace(cpu_quota=quota))
    found = slow_reasons(machine, threads, has_large_pages).split("; ")
    assert len(found) == len(reasons) + 1
    for text, reason in zip(found, reasons, strict=False):
        assert reason in text
    assert "xlaunch doctor" in found[-1]


@pytest.mark.parametrize(
    ("step_s", "weight_bytes", "slow"),
    [(1e6, MIN_WEIGHT_BYTES, True), (1e6, MIN_WEIGHT_BYTES - 1, False), (1e-9, 1 << 30, False)],
)
def test_reasons_are_named_where_reading_is_slow(
    native: None, step_s: float, weight_bytes: int, slow: bool
) -> None:
    speed = Speed()
    speed.add_modules(1, 1.0)
    while not speed.add_step(1, 2, step_s, torch.ones(8, 64), weight_bytes):
        pass
    assert speed.line is not None
    assert ("; that is slow: " in speed.line) is slow
