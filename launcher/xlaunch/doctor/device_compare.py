# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device --compare cpu,cuda`: the throughput of a program on several devices."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlaunch.doctor.device import script_of
from xlaunch.errors import UsageError
from xlaunch.files import open_input
from xlaunch.machine.gpus import read_gpus
from xlaunch.machine.topology import Vendor
from xlaunch.machine.tree import Tree
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.planning.request import Request
from xlaunch.report import Report
from xlaunch.text import align, counted, number

VENDORS = {"cuda": (Vendor.NVIDIA, Vendor.AMD), "xpu": (Vendor.INTEL,)}
"""The vendors of the GPUs that torch gives this name."""

VARIABLE = "XLAUNCH_DEVICE"
PLACEHOLDER = "{device}"

HIDDEN = (
    ("CUDA_VISIBLE_DEVICES", ""),
    ("HIP_VISIBLE_DEVICES", "-1"),  # ROCm takes an empty value for none set
    ("ONEAPI_DEVICE_SELECTOR", "*:cpu"),
)
"""Variables that hide every GPU from a program."""

ROUNDS = 3
"""Runs of each device, interleaved."""
MAX_ROUND_S = 300.0
"""After a longer first round there is no second one."""

_T_95 = (12.71, 4.303, 3.182, 2.776, 2.571)
"""Student's t for a two-sided interval of 95 %, by degrees of freedom from 1."""


class Estimate(NamedTuple):
    """A geometric mean with its 95 % confidence interval; without one if there is one value."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{number(self.mean)} [one run: no interval]"
        return f"{number(self.mean)} [{number(self.low)}, {number(self.high)}]"


class DeviceComparison(NamedTuple):
    """The throughput of each device, in the order of `--compare`."""

    what: str
    """What is compared. **Ex.:** ``images/s``, ``time of the whole program, s``."""
    larger_is_better: bool
    basis: str
    """What the confidence intervals were computed from."""
    devices: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    speedups: tuple[Estimate, ...]
    """The speed of each other device relative to the first."""

    def lines(self) -> list[str]:
        """For the terminal."""
        rows = [("device", f"{self.what} [95 % confidence interval]")]
        rows += [(name, str(one)) for name, one in zip(self.devices, self.estimates, strict=True)]
        first = self.devices[0]
        ratios = [
            f"{name} is {speedup} times as fast as {first}"
            for name, speedup in zip(self.devices[1:], self.speedups, strict=True)
        ]
        return [*align(rows), *ratios, self.basis]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "what": self.what,
            "larger_is_better": self.larger_is_better,
            "basis": self.basis,
            "devices": [
                {"device": name, **one._asdict()}
                for name, one in zip(self.devices, self.estimates, strict=True)
            ],
            "times_as_fast_as_first": [
                {"device": name, **one._asdict()}
                for name, one in zip(self.devices[1:], self.speedups, strict=True)
            ],
        }


def parse_devices(text: str, root: str = "/") -> tuple[str, ...]:
    """The devices of `--compare`. Raises `UsageError` for a word or device that does not exist."""
    words = tuple([word.strip() for word in text.split(",")])
    allowed = ("cpu", *VENDORS)
    for word in words:
        if word.partition(":")[0] not in allowed or not _has_index(word):
            raise UsageError(
                f"--compare {text}: {word!r} is not a device; write {', '.join(allowed)}, or one "
                "with its number, such as cuda:1"
            )
    if len(words) < 2 or len(set(words)) < len(words):
        raise UsageError(f"--compare {text}: name two different devices or more, such as cpu,cuda")
    tree = Tree(root)
    present = {gpu.vendor for gpu in read_gpus(tree)}
    if "nvidiactl" in tree.names("/dev"):  # a container may hide the PCI bus
        present.add(Vendor.NVIDIA)
    for word in words:
        makers = VENDORS.get(word.partition(":")[0], ())
        if makers and not present.intersection(makers):
            makers_named = " or ".join([maker.value for maker in makers])
            raise UsageError(
                f"--compare {text}: there is no device {word} here: no driver of a GPU of "
                f"{makers_named} is loaded; xlaunch doctor checks the machine"
            )
    return words


def _has_index(word: str) -> bool:
    name, colon, index = word.partition(":")
    return not colon or (name != "cpu" and index.isascii() and index.isdigit())


def request_for(request: Request, device: str) -> Request:
    """The request that runs the program of `request` on `device`.

    The program is told in its arguments, where `{device}` is replaced, and by XLAUNCH_DEVICE. If it
    heeds neither, as far as can be seen, GPUs are hidden from the run on the CPU.
    """
    words = tuple([word.replace(PLACEHOLDER, device) for word in request.program.words])
    variables = (*request.program.env, (VARIABLE, device))
    if device == "cpu" and not _heeds(request):
        variables += HIDDEN
    return request.replace(words=words, env=variables, verify_device=True)


def _heeds(request: Request) -> bool:
    """Whether the program's arguments or its script use the device that the launcher names."""
    if any(PLACEHOLDER in word for word in request.program.words):
        return True
    script = script_of(request)
    try:
        with open_input(script or os.devnull) as stream:
            return VARIABLE.encode() in stream.read()
    except OSError:
        return False  # the launch says what is wrong


def run_all(
    devices: Sequence[str], run: Callable[[str, int], Report]
) -> tuple[dict[str, list[Report]], Report | None]:
    """Run the program on each device in turn; the reports by device, and the first that failed.

    `run` takes a device and the number of the round, from 0. A failed run is the last one.
    """
    reports: dict[str, list[Report]] = {device: [] for device in devices}
    for place in range(ROUNDS):
        for device in devices[:: -1 if place % 2 else 1]:
            report = run(device, place)
            reports[device].append(report)
            if report.exit_code:
                return reports, report
        if sum([runs[0].wall_s for runs in reports.values()]) > MAX_ROUND_S:
            break
    return reports, None


def compare(reports: dict[str, list[Report]]) -> DeviceComparison:
    """Compare the runs of each device: by the first metric that all printed, else by time."""
    runs = [run for found in reports.values() for run in found]
    position = next(
        (
            i
            for i in range(len(runs[0].metrics))
            if all(run.metrics[i].count and _value(run, i) for run in runs)
        ),
        None,
    )
    rounds = min([len(found) for found in reports.values()])
    note = ""
    if position is None:
        what, larger = "time of the whole program, s", False
        values = [[run.wall_s for run in found] for found in reports.values()]
        if runs[0].metrics:
            note = f"; not every run printed {runs[0].metrics[0].name}, so times are compared"
        elif rounds:
            note = (
                "; it includes imports and loading: --metric NAME compares what the program prints"
            )
    else:
        metric = runs[0].metrics[position]
        unit = f" {metric.unit}" if metric.unit and metric.unit != metric.name else ""
        what, larger = f"{metric.name}{unit}", metric.kind != MetricKind.TIME.value
        values = [[_value(run, position) or 0.0 for run in found] for found in reports.values()]
    basis = (
        f"over {counted(rounds, 'interleaved run')} of each" if rounds > 1 else "one run of each"
    )
    first, *rest = values
    return DeviceComparison(
        what=what,
        larger_is_better=larger,
        basis=basis + note,
        devices=tuple(reports),
        estimates=tuple([_estimate(found) for found in values]),
        speedups=tuple(
            [_ratio(other, first) if larger else _ratio(first, other) for other in rest]
        ),
    )


def _value(run: Report, position: int) -> float | None:
    """A metric of a run; None if it has none that can be compared."""
    total = run.metrics[position]
    value = total.sum if total.sum is not None else total.mean
    return value if value is not None and value > 0 else None


def _estimate(values: Sequence[float]) -> Estimate:
    mean, variance = _log_mean(values)
    return _interval(mean, variance / len(values), len(values) - 1)


def _ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The ratio of two groups of values."""
    (one, one_variance), (other, other_variance) = _log_mean(above), _log_mean(below)
    variance = one_variance / len(above) + other_variance / len(below)
    # The fewest degrees of freedom that Welch's formula can give: the interval is not too narrow.
    return _interval(one - other, variance, min(len(above), len(below)) - 1)


def _interval(log_mean: float, variance: float, freedom: int) -> Estimate:
    if freedom < 1:
        return Estimate(math.exp(log_mean), None, None)
    half = _T_95[min(freedom, len(_T_95)) - 1] * math.sqrt(variance)
    return Estimate(math.exp(log_mean), math.exp(log_mean - half), math.exp(log_mean + half))


def _log_mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance of the logarithms."""
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    return mean, sum([(log - mean) ** 2 for log in logs]) / max(1, len(logs) - 1)
