# SPDX-License-Identifier: Apache-2.0
"""GPUs during a run: samples, and where the program worked as a function of them alone."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from xlaunch.text import size


class Device(NamedTuple):
    """One GPU that can be sampled."""

    name: str
    """As the program's torch calls it. **Ex.:** ``"cuda:0"``, ``"xpu:0"``."""
    model: str
    """**Ex.:** ``"NVIDIA H100 80GB HBM3"``."""
    source: str
    """The source of its counters: ``NVML`` or ``sysfs and fdinfo``."""
    memory_total_bytes: int | None = None
    memory_before_bytes: int = 0
    """Memory in use before the program was started."""
    hidden: bool = False
    """A variable such as CUDA_VISIBLE_DEVICES hides it from the program."""


class Reading(NamedTuple):
    """The state of one device since the last reading. None: the driver does not report it."""

    busy: float | None = None
    """Share of the time in which its engines were busy, for any process, 0 to 1."""
    own_busy: float | None = None
    """Share of the time in which they were busy for the program."""
    memory_bytes: int | None = None
    own_memory_bytes: int | None = None
    power_w: float | None = None


class DeviceSample(NamedTuple):
    """What was seen of the program and of every device at one time."""

    at_s: float
    """Seconds since the run began."""
    length_s: float
    """Time since the last sample."""
    cpus_used: float
    """CPU time of the program's processes / `length_s`."""
    readings: tuple[Reading, ...]
    """One for each device."""


class DeviceVerdict(enum.Enum):
    """What a device did during a run."""

    WORKED = "worked"
    WAITED = "waited"
    """It was busy in bursts, and waited for the program between them."""
    IDLE = "allocated but idle"
    """The program has memory on it, but its engines were not busy."""
    UNUSED = "unused"
    HIDDEN = "hidden"
    UNKNOWN = "unknown"
    """Not known: its driver has no counters, or the run was too short."""


class DeviceUse(NamedTuple):
    name: str
    model: str
    source: str
    verdict: str
    """The value of a `DeviceVerdict`."""
    text: str
    """One sentence. **Ex.:** ``worked on cuda:0 (NVIDIA H100), 87 % busy``."""
    busy: float | None = None
    """Mean share of `window_s` in which its engines worked: for the program if `per_process`."""
    per_process: bool = False
    """Whether the driver counts for each process. False: the figures are of the whole device."""
    window_s: float = 0.0
    """From the program's first use of the device to the last."""
    cpus_used: float = 0.0
    """Mean number of CPUs that the program used in this time."""
    others_busy: float | None = None
    """Mean share of the run in which it worked for other processes; None: not known."""
    others: tuple[str, ...] = ()
    """**Ex.:** ``("python (PID 4711)",)``."""
    memory_peak_bytes: int | None = None
    """Peak of the program's memory; if not `per_process`, peak of the growth since the start."""
    memory_total_bytes: int | None = None
    power_w: float | None = None
    """Mean over `window_s`."""


class DevicesReport(NamedTuple):
    """Where a program worked: `--verify-device`."""

    verdict: str
    """One line for the whole run."""
    cpus: int
    """CPUs of the program."""
    cpus_used: float
    """Mean number of CPUs that it used."""
    devices: tuple[DeviceUse, ...] = ()
    caveats: tuple[str, ...] = ()
    """What could not be observed, and why."""
    messages: tuple[str, ...] = ()
    """Explanations of messages known as harmless that the program printed on standard error."""
    samples: tuple[DeviceSample, ...] = ()
    """Not written to `--report`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the samples."""
        values = self._asdict()
        del values["samples"]
        values["devices"] = [{**use._asdict(), "others": list(use.others)} for use in self.devices]
        return values | {"caveats": list(self.caveats), "messages": list(self.messages)}

    def lines(self) -> list[str]:
        texts = [use.text for use in self.devices if use.text != self.verdict]
        return [f"device: {self.verdict}", *texts, *self.caveats, *self.messages]


IDLE_SHARE = 0.05
"""Minimum share of the time that a device in use is busy; displays and monitors use up to this."""
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
MIN_CPUS = 0.05
"""A program that uses fewer CPUs hardly works on them."""
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
    """One line for a run sampled for `seen_s`: the busy devices; if none was, the CPU, and why."""
    on_cpu = f"{cpus_used:.1f} of {cpus} CPUs busy"
    order = (DeviceVerdict.WORKED, DeviceVerdict.WAITED, DeviceVerdict.IDLE, DeviceVerdict.UNKNOWN)
    for verdict in order:
        texts = [use.text for use in uses if use.verdict == verdict.value]
        if texts:
            return f"{'; '.join(texts)} ({on_cpu})"
    if not uses and seen_s < MIN_TIME_S:
        return f"the run was too short to say ({seen_s:.1f} s were sampled); no GPU can be seen from here"
    did = "worked on the CPU" if cpus_used >= MIN_CPUS else "waited, and hardly used the CPU"
    if not uses:
        return f"{did} ({on_cpu}); no GPU can be seen from here"
    if len(uses) == 1:
        return f"{did} ({on_cpu}); {uses[0].text}"
    names = ", ".join([use.name for use in uses])
    return f"{did} ({on_cpu}); none of {names} was used"


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
    verdict, text = _verdict(
        device, used, busy or 0.0, cpus_used, peak, seen_s, idle, counts=counts
    )
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

    A program that imports and loads what it needs does not wait. If it never was busy: from its first use.
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
    busy: float,
    cpus_used: float,
    peak_bytes: int,
    seen_s: float,
    idle: float,
    *,
    counts: bool,
) -> tuple[DeviceVerdict, str]:
    """What a device did, and the sentence about it."""
    named_device = f"{device.name} ({device.model})"
    if device.hidden:
        return DeviceVerdict.HIDDEN, f"{named_device} was hidden from the program"
    if used and not counts:
        memory = f"{size(peak_bytes)} of memory in use"
        return (
            DeviceVerdict.UNKNOWN,
            f"{named_device}: {memory}; its driver does not count engine use",
        )
    if seen_s < MIN_TIME_S:
        seen = f"{seen_s:.1f} s were sampled, {MIN_TIME_S:g} s are needed"
        return DeviceVerdict.UNKNOWN, f"{named_device}: the run was too short to say ({seen})"
    if not used:
        return DeviceVerdict.UNUSED, f"{named_device} was not used"
    if busy < idle:
        memory = (
            f"memory of {named_device} is allocated ({size(peak_bytes)}) but its engines are idle"
        )
        if cpus_used >= BUSY_CPUS:
            return DeviceVerdict.IDLE, f"{memory}: the work runs on the CPU"
        reason = "and so are the CPUs: the program waits for something else"
        return DeviceVerdict.IDLE, f"{memory}, {reason}"
    if busy >= WORKED_SHARE:
        return DeviceVerdict.WORKED, f"worked on {named_device}, {busy:.0%} busy"
    waits = [moment for moment in used if moment.busy < WORKED_SHARE] or used
    if (_mean([(moment.cpus_used, moment.length_s) for moment in waits]) or 0.0) >= BUSY_CPUS:
        return DeviceVerdict.WAITED, f"{named_device} waits for data {1 - busy:.0%} of the time"
    reason = "and so are the CPUs: the program waits for storage, the network or a lock"
    return DeviceVerdict.WAITED, f"{named_device} is idle {1 - busy:.0%} of the time, {reason}"


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """The mean of values with weights; None without any."""
    pairs = list(weighted)
    total = sum([weight for _, weight in pairs])
    return sum([value * weight for value, weight in pairs]) / total if total > 0 else None
