# SPDX-License-Identifier: Apache-2.0
"""The verdict on each device, from samples as drivers give them."""

from __future__ import annotations

import pytest

from xlaunch.report.device_use import Device, DeviceSample, DeviceUse, DeviceVerdict, Reading
from xlaunch.report.device_verdict import judge, summarize

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


def test_healthy_program_and_its_start_does_not_count():
    use = judged(STARTS, (80, 1.1, reading(0.87, 0.87, 12)))
    assert use.text == "worked on cuda:0 (NVIDIA H100), 87 % busy"
    assert use.verdict == DeviceVerdict.WORKED.value
    assert (use.per_process, use.memory_peak_bytes) == (True, 12 * GIB)
    assert (use.window_s, use.cpus_used) == (pytest.approx(20), pytest.approx(1.1))
    assert use.power_w == pytest.approx(448)


def test_starved_by_data():
    burst, pause = (1, 1.0, reading(0.9, 0.9, 2)), (2, 1.0, reading(0.0, 0.0, 2))
    use = judged(STARTS, *(20 * [burst, pause]), burst)
    assert use.verdict == DeviceVerdict.WAITED.value
    assert use.text == "cuda:0 (NVIDIA H100) waits for data 69 % of the time"


def test_waiting_with_idle_cpus_is_not_for_data_that_the_program_prepares():
    use = judged((10, 0.1, reading(0.3, 0.3, 2)))
    assert use.text.endswith(
        "and so are the CPUs: the program waits for storage, the network or a lock"
    )


def test_memory_allocated_and_engines_idle():
    use = judged(STARTS, (40, 7.5, reading(0.0, 0.0, 1.5)))
    assert use.verdict == DeviceVerdict.IDLE.value
    assert use.text == (
        "memory of cuda:0 (NVIDIA H100) is allocated (1.5 GiB) but its engines are idle: the work "
        "runs on the CPU"
    )
    idle = judged((40, 0.0, reading(0.0, 0.0, 1.5)))
    assert idle.text.endswith("and so are the CPUs: the program waits for something else")


def test_little_work_of_a_small_network_is_work():
    # What an H100 counted of examples/plates.py without workers.
    own = [0.01, 0, 0.01, 0.01, 0.05, 0.04, 0.05, 0.02, 0, 0.01, 0.05, 0.05, 0.02, 0.05, 0.05]
    use = judged(STARTS, *((1, 1.0, reading(busy, busy, 1.1)) for busy in own))
    assert use.verdict == DeviceVerdict.WAITED.value
    # A driver that counts the whole device may have seen the display.
    share = reading(0.03, 0.0, 1.1)._replace(own_busy=None)
    assert judged((40, 1.0, share)).verdict == DeviceVerdict.IDLE.value


def test_work_on_the_cpu():
    use = judged((40, 7.5, reading(0.0, 0.0, 0.0)))
    assert use.verdict == DeviceVerdict.UNUSED.value
    assert summarize([use], 7.5, 8) == (
        "worked on the CPU (7.5 of 8 CPUs busy); cuda:0 (NVIDIA H100) was not used"
    )
    assert summarize([], 7.5, 8) == "worked on the CPU (7.5 of 8 CPUs busy); no GPU can be seen from here"  # fmt: skip


def test_work_of_others_is_not_the_programs():
    use = judged((40, 7.5, reading(0.8, 0.0, 0.0)), others=("python (PID 7)",))
    assert use.verdict == DeviceVerdict.UNUSED.value
    assert use.text == (
        "cuda:0 (NVIDIA H100) was not used; other processes kept it 80 % busy: python (PID 7)"
    )
    both = judged((40, 1.0, reading(1.0, 0.65, 4.0)), others=("python (PID 7)",))
    assert both.text == (
        "worked on cuda:0 (NVIDIA H100), 65 % busy; other processes kept it 35 % busy: python (PID 7)"
    )
    assert both.others_busy == pytest.approx(0.35)


def test_driver_that_names_no_processes():
    """In a container: the growth of memory, and the device as a whole."""
    use = judged((8, 1.0, Reading(0.9, None, 5 * GIB)))
    assert use.text == "worked on cuda:0 (NVIDIA H100), 90 % busy; of the whole device, whoever used it"  # fmt: skip
    assert (use.per_process, use.others_busy, use.memory_peak_bytes) == (False, None, 4 * GIB)
    untouched = judged((8, 1.0, Reading(0.0, None, GIB)))
    assert untouched.verdict == DeviceVerdict.UNUSED.value


def test_process_that_is_named_late_was_not_there_before():
    use = judged((8, 1.0, Reading(0.0, None, GIB)), (8, 1.0, reading(0.9, 0.9, 2)))
    assert (use.verdict, use.per_process) == (DeviceVerdict.WORKED.value, True)
    assert use.window_s == pytest.approx(2.0)


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
    assert use.text in summarize([use], 1.0, 2)


def test_hidden_device():
    use = judged((8, 1.0, reading(0.0, 0.0, 0.0)), device=H100._replace(name="GPU 0", hidden=True))
    assert use.text == "GPU 0 (NVIDIA H100) was hidden from the program"
    assert summarize([use], 1.0, 2).startswith("worked on the CPU")


def test_a_device_that_worked_says_so_before_one_that_did_not():
    two = [H100, H100._replace(name="cuda:1")]
    sample = DeviceSample(0.5, 2.0, 1.0, (reading(0.0, 0.0, 0.0), reading(0.9, 0.9, 2)))
    uses = judge([sample], two, [(), ()])
    assert (
        summarize(uses, 1.0, 8) == "worked on cuda:1 (NVIDIA H100), 90 % busy (1.0 of 8 CPUs busy)"
    )
