# SPDX-License-Identifier: Apache-2.0
"""What is known of the GPUs during a run: samples, and the verdict on each device."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple


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
    """The verdict on one device."""

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
        """For the terminal."""
        texts = [use.text for use in self.devices if use.text != self.verdict]
        return [f"device: {self.verdict}", *texts, *self.caveats, *self.messages]
