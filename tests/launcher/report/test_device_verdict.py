# SPDX-License-Identifier: Apache-2.0
"""The verdict on each device, from samples as drivers give them."""

from __future__ import annotations

import pytest
from tests.golden import Golden

from xlaunch.report.device_use import (
    Device,
    DeviceSample,
    DeviceUse,
    DeviceVerdict,
    Reading,
    judge,
    summarize,
)

GIB = 1 << 30
H100 = Device("cuda:0", "NVIDIA H100", "NVML", 80 * GIB, memory_before_bytes=GIB)


def reading(busy: float, own: float, gib: float) -> Reading:
    """One of a driver that names processes."""
    return Reading(busy, own, int((1 + gib) * GIB), int(gib * GIB), 100 + 400 * busy)


def samples(*parts: tuple[int, float, Reading]) -> list[DeviceSample]:
    """Samples every quarter of a second: for each part their number, the CPUs used, a reading."""
    found: list[DeviceSample] = []
    for count, cpus, one in parts:
        for _ in range(count):
            found.append(DeviceSample(0.25 * (len(found) + 1), 0.25, cpus, (one,)))
    return found


def judged(*parts: tuple[int, float, Reading], device: Device = H100, others: tuple[str, ...] = ()):
    (use,) = judge(samples(*parts), [device], [others])
    return use


STARTS = (20, 1.0, reading(0.0, 0.0, 0.0))
BURST, PAUSE = (1, 1.0, reading(0.9, 0.9, 2)), (2, 1.0, reading(0.0, 0.0, 2))
# What an H100 counted of examples/plates.py without workers.
PLATES = [0.01, 0, 0.01, 0.01, 0.05, 0.04, 0.05, 0.02, 0, 0.01, 0.05, 0.05, 0.02, 0.05, 0.05]
OTHERS = ("python (PID 7)",)
BY_OTHERS = "; other processes kept it {} % busy: python (PID 7)"
GPU = "cuda:0 (NVIDIA H100)"
NAMED = [
    # The start of a healthy program does not count.
    (judged(STARTS, (80, 1.1, reading(0.87, 0.87, 12))), DeviceVerdict.WORKED,
     f"worked on {GPU}, 87 % busy"),
    (judged(STARTS, *(20 * [BURST, PAUSE]), BURST), DeviceVerdict.WAITED,
     f"{GPU} waits for data 69 % of the time"),
    # With idle CPUs, it is not for data that the program prepares.
    (judged((10, 0.1, reading(0.3, 0.3, 2))), DeviceVerdict.WAITED,
     f"{GPU} is idle 70 % of the time, and "
     "so are the CPUs: the program waits for storage, the network or a lock"),
    (judged(STARTS, (40, 7.5, reading(0.0, 0.0, 1.5))), DeviceVerdict.IDLE,
     f"memory of {GPU} is allocated (1.5 GiB) but its engines are idle: the work runs on the CPU"),
    (judged((40, 0.0, reading(0.0, 0.0, 1.5))), DeviceVerdict.IDLE, f"memory of {GPU} is allocated "
     "(1.5 GiB) but its engines are idle, and so are the CPUs: the program waits for something else"),
    # Little work of a small network is work; one that counts the whole device may see the display.
    (judged(STARTS, *((1, 1.0, reading(busy, busy, 1.1)) for busy in PLATES)), DeviceVerdict.WAITED,
     f"{GPU} waits for data 96 % of the time"),
    (judged((40, 1.0, reading(0.03, 0.0, 1.1)._replace(own_busy=None))), DeviceVerdict.IDLE,
     f"memory of {GPU} is allocated (1.1 GiB) but its engines are idle: the work runs on the CPU; "
     "of the whole device, whoever used it"),
    (judged((40, 7.5, reading(0.0, 0.0, 0.0))), DeviceVerdict.UNUSED, f"{GPU} was not used"),
    (judged((40, 7.5, reading(0.8, 0.0, 0.0)), others=OTHERS), DeviceVerdict.UNUSED,
     f"{GPU} was not used{BY_OTHERS.format(80)}"),
    (judged((40, 1.0, reading(1.0, 0.65, 4.0)), others=OTHERS), DeviceVerdict.WORKED,
     f"worked on {GPU}, 65 % busy{BY_OTHERS.format(35)}"),
    # In a container a driver names no processes: the growth of memory, and the device as a whole.
    (judged((8, 1.0, Reading(0.9, None, 5 * GIB))), DeviceVerdict.WORKED,
     f"worked on {GPU}, 90 % busy; of the whole device, whoever used it"),
    (judged((8, 1.0, Reading(0.0, None, GIB))), DeviceVerdict.UNUSED, f"{GPU} was not used"),
    # A process that is named late was not there before.
    (judged((8, 1.0, Reading(0.0, None, GIB)), (8, 1.0, reading(0.9, 0.9, 2))),
     DeviceVerdict.WORKED,
     f"worked on {GPU}, 90 % busy"),
    (judged((8, 1.0, reading(0.0, 0.0, 0.0)), device=H100._replace(hidden=True)),
     DeviceVerdict.HIDDEN,
     f"{GPU} was hidden from the program"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "verdict", "text"), NAMED, ids=[row[2] for row in NAMED])
def test_verdict(use: DeviceUse, verdict: DeviceVerdict, text: str):
    assert (use.verdict, use.text) == (verdict.value, text)


def test_numbers_behind_a_verdict():
    use = judged(STARTS, (80, 1.1, reading(0.87, 0.87, 12)))
    assert (use.per_process, use.memory_peak_bytes) == (True, 12 * GIB)
    assert (use.window_s, use.cpus_used) == (pytest.approx(20), pytest.approx(1.1))
    assert use.power_w == pytest.approx(448)
    both = judged((40, 1.0, reading(1.0, 0.65, 4.0)), others=OTHERS)
    assert both.others_busy == pytest.approx(0.35)
    whole = judged((8, 1.0, Reading(0.9, None, 5 * GIB)))
    assert (whole.per_process, whole.others_busy, whole.memory_peak_bytes) == (False, None, 4 * GIB)
    late = judged((8, 1.0, Reading(0.0, None, GIB)), (8, 1.0, reading(0.9, 0.9, 2)))
    assert (late.per_process, late.window_s) == (True, pytest.approx(2.0))


def test_work_on_the_cpu_and_on_devices(golden: Golden):
    unused = (40, 7.5, reading(0.0, 0.0, 0.0))
    golden(
        *[
            summarize([judged(unused, device=H100._replace(hidden=hidden))], 7.5, 8, 40.0)
            for hidden in (False, True)
        ],
        *[
            summarize([], cpus, 8, time_s)
            for cpus, time_s in ((7.5, 40.0), (0.04, 40.0), (0.0, 0.2))
        ],
        # One that worked comes before one that did not.
        summarize(uses_of_two(), 1.0, 8, 40.0),
    )


def uses_of_two() -> list[DeviceUse]:
    sample = DeviceSample(0.5, 2.0, 1.0, (reading(0.0, 0.0, 0.0), reading(0.9, 0.9, 2)))
    return judge([sample], [H100, H100._replace(name="cuda:1")], [(), ()])


@pytest.mark.parametrize(
    ("use", "end"),
    [
        (judged((2, 1.0, reading(0.0, 0.0, 0.0))), "too short to say (0.5 s were sampled, 1 s are needed)"),
        (judged(), "too short to say (0.0 s were sampled, 1 s are needed)"),
        (judged((8, 1.0, Reading(None, None, 3 * GIB))), "2 GiB of memory in use; its driver does not count engine use"),
    ],
    ids=["short", "no sample", "no counter"],
)  # fmt: skip
def test_what_cannot_be_said(use: DeviceUse, end: str):
    assert use.verdict == DeviceVerdict.UNKNOWN.value
    assert use.text.endswith(end)
    assert use.text in summarize([use], 1.0, 2, 0.5)
