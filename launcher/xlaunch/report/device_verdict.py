# SPDX-License-Identifier: Apache-2.0
"""Where a program worked, as a function of samples alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xlaunch.report.device_use import Device, DeviceSample, DeviceUse, DeviceVerdict, Reading
from xlaunch.text import size

IDLE_SHARE = 0.05
"""Minimum share of the time that a device in use is busy; displays and monitoring tools use up to
this much."""
OWN_IDLE_SHARE = 0.005
"""The same, where a driver counts the program's own use, which is zero if it does not compute
there.

A small network that waited for its data kept an H100 busy for 2 % of the time.
"""
WORKED_SHARE = 0.6
"""A device that is busy for a smaller share of the time waits for the program."""
MIN_MEMORY_BYTES = 32 << 20
"""Minimum memory of a program that computes on a device: its context alone takes more."""
BUSY_CPUS = 0.5
"""If the program uses fewer CPUs, it waits for something itself."""
MIN_TIME_S = 1.0
"""Minimum length of a run for a verdict: drivers average over up to a second."""


class _Moment(NamedTuple):
    """One sample as it concerns one device."""

    length_s: float
    cpus_used: float
    busy: float
    memory_bytes: int
    power_w: float | None

    @property
    def in_use(self) -> bool:
        return self.busy >= IDLE_SHARE or self.memory_bytes >= MIN_MEMORY_BYTES


def judge(
    samples: Sequence[DeviceSample], devices: Sequence[Device], others: Sequence[Sequence[str]]
) -> tuple[DeviceUse, ...]:
    """The verdict on each device. `others`: names of other processes seen on each of them."""
    return tuple(
        [
            _judge_one(device, samples, [sample.readings[i] for sample in samples], others[i])
            for i, device in enumerate(devices)
        ]
    )


def summarize(uses: Sequence[DeviceUse], cpus_used: float, cpus: int, seen_s: float) -> str:
    """One line for a run that was sampled for `seen_s`: the devices that were busy; if none was, the
    CPU, and why.
    """
    on_cpu = f"{cpus_used:.1f} of {cpus} CPUs busy"
    order = (DeviceVerdict.WORKED, DeviceVerdict.WAITED, DeviceVerdict.IDLE)
    for wanted in order:
        found = [use.text for use in uses if use.verdict == wanted.value]
        if found:
            return f"{'; '.join(found)} ({on_cpu})"
    unknown = [use.text for use in uses if use.verdict == DeviceVerdict.UNKNOWN.value]
    if unknown:
        return f"{'; '.join(unknown)} ({on_cpu})"
    if not uses and seen_s < MIN_TIME_S:
        return f"the run was too short to say ({seen_s:.1f} s were sampled); no GPU can be seen from here"
    if not uses:
        return f"worked on the CPU ({on_cpu}); no GPU can be seen from here"
    if len(uses) == 1:
        return f"worked on the CPU ({on_cpu}); {uses[0].text}"
    names = ", ".join([use.name for use in uses])
    return f"worked on the CPU ({on_cpu}); none of {names} was used"


def _judge_one(
    device: Device,
    samples: Sequence[DeviceSample],
    readings: Sequence[Reading],
    others: Sequence[str],
) -> DeviceUse:
    busy_is_own = any(reading.own_busy is not None for reading in readings)
    memory_is_own = any(reading.own_memory_bytes is not None for reading in readings)
    counts = any(reading.busy is not None for reading in readings) or busy_is_own
    moments = [
        _Moment(
            sample.length_s,
            sample.cpus_used,
            (reading.own_busy if busy_is_own else reading.busy) or 0.0,
            (reading.own_memory_bytes or 0)
            if memory_is_own
            else max(0, (reading.memory_bytes or 0) - device.memory_before_bytes),
            reading.power_w,
        )
        for sample, reading in zip(samples, readings, strict=True)
    ]
    idle = OWN_IDLE_SHARE if busy_is_own else IDLE_SHARE
    used = _window(moments, idle)
    busy = _mean([(moment.busy, moment.length_s) for moment in used])
    cpus_used = _mean([(moment.cpus_used, moment.length_s) for moment in used]) or 0.0
    peak = max([moment.memory_bytes for moment in moments], default=0)
    own_share = [
        (max(0.0, reading.busy - (reading.own_busy or 0.0)), sample.length_s)
        for sample, reading in zip(samples, readings, strict=True)
        if busy_is_own and reading.busy is not None
    ]
    others_busy = _mean(own_share)
    powers = [(m.power_w, m.length_s) for m in used if m.power_w is not None]
    seen_s = sum([moment.length_s for moment in moments])
    verdict = _verdict(device, used, busy, seen_s, idle, counts=counts)
    what = f"{device.name} ({device.model})"
    text = _text(verdict, what, used, busy or 0.0, cpus_used, peak, seen_s, counts=counts)
    if others_busy is not None and others_busy >= IDLE_SHARE:
        named = f": {', '.join(others)}" if others else ""
        text += f"; other processes kept it {others_busy:.0%} busy{named}"
    elif used and not busy_is_own and counts:
        text += "; of the whole device, whoever used it"
    return DeviceUse(
        name=device.name,
        model=device.model,
        source=device.source,
        verdict=verdict.value,
        text=text.replace("%", " %"),
        busy=busy if counts else None,
        per_process=busy_is_own,
        window_s=sum([moment.length_s for moment in used]),
        cpus_used=cpus_used,
        others_busy=others_busy,
        others=tuple(others),
        memory_peak_bytes=peak,
        memory_total_bytes=device.memory_total_bytes,
        power_w=_mean(powers),
    )


def _window(moments: Sequence[_Moment], idle: float) -> Sequence[_Moment]:
    """The samples from the first in which the device was busy to the last in which it was in use.

    A program begins by imports and by loading what it needs, which is not waiting. If the device
    never worked: from the first moment in which it is in use.
    """
    worked = [i for i, moment in enumerate(moments) if moment.busy >= IDLE_SHARE]
    worked = worked or [i for i, moment in enumerate(moments) if moment.busy >= idle]
    in_use = [i for i, moment in enumerate(moments) if moment.in_use]
    if not in_use:
        return ()
    return moments[(worked or in_use)[0] : in_use[-1] + 1]


def _verdict(
    device: Device,
    used: Sequence[_Moment],
    busy: float | None,
    seen_s: float,
    idle: float,
    *,
    counts: bool,
) -> DeviceVerdict:
    if device.hidden:
        return DeviceVerdict.HIDDEN
    if seen_s < MIN_TIME_S or (used and not counts):
        return DeviceVerdict.UNKNOWN
    if not used:
        return DeviceVerdict.UNUSED
    if busy is None or busy < idle:
        return DeviceVerdict.IDLE
    return DeviceVerdict.WORKED if busy >= WORKED_SHARE else DeviceVerdict.WAITED


def _text(
    verdict: DeviceVerdict,
    what: str,
    used: Sequence[_Moment],
    busy: float,
    cpus_used: float,
    peak_bytes: int,
    seen_s: float,
    *,
    counts: bool,
) -> str:
    if verdict is DeviceVerdict.HIDDEN:
        return f"{what} was hidden from the program"
    if verdict is DeviceVerdict.UNUSED:
        return f"{what} was not used"
    if verdict is DeviceVerdict.UNKNOWN:
        if not counts and used:
            return (
                f"{what}: {size(peak_bytes)} of memory in use; its driver does not count engine use"
            )
        return f"{what}: the run was too short to say ({seen_s:.1f} s were sampled, {MIN_TIME_S:g} s are needed)"
    if verdict is DeviceVerdict.WORKED:
        return f"worked on {what}, {busy:.0%} busy"
    waits = [m for m in used if m.busy < WORKED_SHARE] or used
    cpus_meanwhile = _mean([(m.cpus_used, m.length_s) for m in waits]) or 0.0
    if verdict is DeviceVerdict.WAITED:
        if cpus_meanwhile >= BUSY_CPUS:
            return f"{what} waits for data {1 - busy:.0%} of the time"
        return (
            f"{what} is idle {1 - busy:.0%} of the time, and so are the CPUs: the program waits for "
            "storage, the network or a lock"
        )
    memory = f"memory of {what} is allocated ({size(peak_bytes)}) but its engines are idle"
    if cpus_used >= BUSY_CPUS:
        return f"{memory}: the work runs on the CPU"
    return f"{memory}, and so are the CPUs: the program waits for something else"


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """The mean of values with weights; None without any."""
    pairs = list(weighted)
    total = sum([weight for _, weight in pairs])
    return sum([value * weight for value, weight in pairs]) / total if total > 0 else None
