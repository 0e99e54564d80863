# SPDX-License-Identifier: Apache-2.0
"""Sampling of GPUs during a supervised run, for `--verify-device`; nothing here is imported without it.

The supervisor calls `look` when `due` has come. The program is not touched: counters are the drivers'.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from xlaunch.machine.processes import TICKS_PER_SECOND, process_name, read_process
from xlaunch.report.device_counters import DrmCounters, NvidiaCounters
from xlaunch.report.device_use import Device, DeviceSample, DevicesReport, Reading, judge, summarize
from xlaunch.text import size

INTERVAL_S = 0.25
"""Sampling interval: NVML averages over a sixth of a second to a second."""
SHARE_OF_ONE_CPU = 0.02
"""Maximum cost of sampling; every process's open files are looked at for Intel and AMD."""
MAX_SAMPLES = 512
"""Maximum number of samples kept; above it, neighbours are merged."""
MAX_NAMED = 3


class DeviceWatch:
    """The samples of one run."""

    def __init__(self, began: float, cpus: int, variables: Mapping[str, str]) -> None:
        """Find the GPUs. `began`: on the clock of `time.monotonic()`; `variables`: the program's."""
        self._began = self._last = began
        self._cpus = cpus
        self._nvidia = NvidiaCounters(variables)
        self._drm = DrmCounters()
        self.devices: tuple[Device, ...] = (*self._nvidia.devices, *self._drm.devices)
        self._ticks: dict[int, int] = {}
        self._samples: list[DeviceSample] = []
        self._merged = 1
        """Number of original samples in each of `_samples`."""
        self._in_last = 0
        """Number of original samples in the last of them."""
        self._drm.read((), 0.0)  # counters begin anywhere
        self.messages = KnownMessages()
        self.due = began
        """When to call `look`."""

    def look(self, now: float, own: Collection[int]) -> None:
        """Take a sample. `own`: PIDs of the program."""
        spent = time.thread_time()
        passed_s = now - self._last
        readings = (*self._nvidia.read(own), *self._drm.read(own, passed_s))
        used_s = self._cpu_s(own)
        if passed_s > 0:
            self._add(DeviceSample(now - self._began, passed_s, used_s / passed_s, readings))
        self._last = now
        cost_s = time.thread_time() - spent
        self.due = now + max(INTERVAL_S, cost_s / SHARE_OF_ONE_CPU)

    def skip(self, now: float) -> None:
        """Do not count the time since the last sample."""
        self._last = now
        self.due = now + INTERVAL_S

    def _cpu_s(self, own: Iterable[int]) -> float:
        """CPU time of the processes, and of children that they waited for, since the last call."""
        before, self._ticks = self._ticks, {}
        for pid in own:
            status = read_process(pid)
            if status is not None:
                self._ticks[pid] = status.cpu_ticks + status.children_ticks
        # A child that has ended is counted again as its parent's: take away what it had.
        gone = sum([ticks for pid, ticks in before.items() if pid not in self._ticks])
        new = sum([ticks - before.get(pid, 0) for pid, ticks in self._ticks.items()])
        return max(0, new - gone) / TICKS_PER_SECOND

    def _add(self, sample: DeviceSample) -> None:
        if 0 < self._in_last < self._merged:
            self._samples[-1] = merge(self._samples[-1], sample)
            self._in_last += 1
        else:
            self._samples.append(sample)
            self._in_last = 1
        if len(self._samples) >= MAX_SAMPLES:
            pairs = zip(self._samples[::2], self._samples[1::2], strict=True)
            self._samples = [merge(one, other) for one, other in pairs]
            self._merged *= 2
            self._in_last = self._merged

    def live_line(self) -> str:
        """The last sample. **Ex.:** ``12 s: cuda:0 87 % busy, 3.1 GiB, 412 W; 1.2 of 16 CPUs``."""
        if not self._samples:
            return "the program starts"
        last = self._samples[-1]
        parts = []
        for device, reading in zip(self.devices, last.readings, strict=True):
            values = [
                "" if reading.busy is None else f"{100 * reading.busy:.0f} % busy",
                "" if reading.memory_bytes is None else size(reading.memory_bytes),
                "" if reading.power_w is None else f"{reading.power_w:.0f} W",
            ]
            parts.append(f"{device.name} {', '.join([value for value in values if value])}")
        parts.append(f"{last.cpus_used:.1f} of {self._cpus} CPUs")
        return f"{last.at_s:.0f} s: {'; '.join(parts)}"

    def report(self) -> DevicesReport:
        """The verdict on the run."""
        names = [_names(pids) for pids in (*self._nvidia.others, *self._drm.others)]
        uses = judge(self._samples, self.devices, names)
        seconds = sum([sample.length_s for sample in self._samples])
        cpu_s = sum([sample.cpus_used * sample.length_s for sample in self._samples])
        cpus_used = cpu_s / seconds if seconds else 0.0
        caveats = [self._nvidia.problem] if self._nvidia.problem is not None else []
        if any(not use.per_process and use.window_s for use in uses):
            caveats.append(
                "the driver does not name processes here (a container as a rule): the figures are "
                "of the whole device, memory is the growth since the start"
            )
        return DevicesReport(
            verdict=summarize(uses, cpus_used, self._cpus, seconds),
            cpus=self._cpus,
            cpus_used=cpus_used,
            devices=uses,
            caveats=tuple(caveats),
            messages=self.messages.explanations(),
            samples=tuple(self._samples),
        )


def merge(one: DeviceSample, other: DeviceSample) -> DeviceSample:
    """Two consecutive samples as one: means weighted by time, and the larger memory."""
    length_s = one.length_s + other.length_s

    def mean(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return b if a is None else a
        return (a * one.length_s + b * other.length_s) / length_s

    def larger(a: int | None, b: int | None) -> int | None:
        return max([value for value in (a, b) if value is not None], default=None)

    readings = [
        Reading(
            mean(a.busy, b.busy),
            mean(a.own_busy, b.own_busy),
            larger(a.memory_bytes, b.memory_bytes),
            larger(a.own_memory_bytes, b.own_memory_bytes),
            mean(a.power_w, b.power_w),
        )
        for a, b in zip(one.readings, other.readings, strict=True)
    ]
    cpus_used = mean(one.cpus_used, other.cpus_used) or 0.0
    return DeviceSample(other.at_s, length_s, cpus_used, tuple(readings))


def _names(pids: Collection[int]) -> list[str]:
    """**Ex.:** ``["python (PID 4711)", "2 more"]``; of processes that can be seen from here."""
    named = []
    for pid in sorted(pids)[:MAX_NAMED]:
        name = process_name(pid)
        named.append(f"{name} (PID {pid})" if name else f"PID {pid}")
    return [*named, f"{len(pids) - MAX_NAMED} more"] if len(pids) > MAX_NAMED else named


# Messages that are harmless.


class KnownMessage(NamedTuple):
    """A known message, recognized by a constant part of it."""

    text: bytes
    meaning: str
    source: str


MESSAGES = (
    KnownMessage(
        b"Overriding a previously registered kernel",
        "a package (Intel's extension, torch_xla, torch_npu) registers its own kernel for an "
        "operator that torch has already, as it intends; the work runs on the device all the same",
        "https://github.com/pytorch/pytorch/issues/111887",
    ),
    KnownMessage(
        b"when one has already been registered",
        "TensorFlow registers cuDNN, cuFFT or cuBLAS twice in one process; the first one stays",
        "https://github.com/tensorflow/tensorflow/issues/62075",
    ),
    KnownMessage(
        b"computation placer already registered",
        "TensorFlow registers a part of XLA twice in one process; the first one stays",
        "https://github.com/tensorflow/tensorflow/issues/90790",
    ),
    KnownMessage(
        b"successful NUMA node read from SysFS had negative value (-1)",
        "the firmware does not say to which NUMA node the GPU belongs; TensorFlow takes node 0",
        "https://github.com/tensorflow/tensorflow/issues/58428",
    ),
    KnownMessage(
        b"The current process just got forked, after parallelism has already been used",
        "a tokenizer was used before the loader's workers were forked; they tokenize with one thread "
        "each; TOKENIZERS_PARALLELISM=false silences it",
        "https://github.com/huggingface/text-generation-inference/issues/1035",
    ),
    KnownMessage(
        b"socket cannot be initialized",
        "torch.distributed tries IPv6 before IPv4, which is used if the program goes on",
        "https://github.com/pytorch/pytorch/issues/128998",
    ),
)
"""Messages that frameworks print although nothing is wrong, and what they mean. Users have taken each of
them for the reason why a device does not work; the sources are reports where nothing else was wrong."""

LONGEST = max([len(message.text) for message in MESSAGES])


class KnownMessages:
    """Searches output for `MESSAGES`."""

    def __init__(self) -> None:
        self._unseen = list(MESSAGES)
        self._seen: list[KnownMessage] = []
        self._tails: dict[int, bytes] = {}

    def feed(self, index: int, data: bytes) -> None:
        """Search what an instance wrote to standard error for known messages."""
        data = self._tails.get(index, b"") + data
        self._tails[index] = data[1 - LONGEST :]
        for message in [message for message in self._unseen if message.text in data]:
            self._unseen.remove(message)
            self._seen.append(message)

    def explanations(self) -> tuple[str, ...]:
        """A line for each known message that was found, in the order in which they appeared."""
        return tuple(
            [f'"{m.text.decode()}" is harmless: {m.meaning} ({m.source})' for m in self._seen]
        )
