# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device`: what the verdict on each device means for the program, and what to do.

With `--compare cpu,cuda`: the throughput of the program on several devices.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.files import open_input
from xlaunch.machine.gpus import read_gpus
from xlaunch.machine.topology import Vendor
from xlaunch.machine.tree import Tree
from xlaunch.metrics.metric_lines import MetricKind
from xlaunch.planning.request import Request
from xlaunch.report import Report
from xlaunch.report.device_use import DevicesReport, DeviceUse, DeviceVerdict
from xlaunch.report.json_file import report_to_dict
from xlaunch.report.run_table import describe_total
from xlaunch.text import align, counted, number, size

SCHEMA_VERSION = 1

_CAUSES = ("XL01", "XL00", "XL03", "XL04", "XL10")
"""Rules, or groups of them, that explain how a device is used; the most likely causes first."""
_MAX_FINDINGS = 5

FULL_SHARE = 0.9
"""Share of the memory that a larger batch may fill; the rest allows for fragmentation."""
NEAR_ALL_CPUS = 0.8


class Advice(NamedTuple):
    """Possible causes of the verdict on one device, and what to try."""

    device: str
    causes: tuple[str, ...]
    """The most likely first."""
    next_steps: tuple[str, ...]


def script_of(request: Request) -> str | None:
    """The program's Python script; None for a module or another executable."""
    program = request.program
    is_other = program.module or program.no_python or not program.words
    return program.words[0] if not is_other and program.words[0].endswith(".py") else None


def script_findings(script: str) -> tuple[str, ...]:
    """The findings in `script`, hints included: one line for each rule.

    Nothing for a script that is missing or does not parse.
    """
    from xlaunch.doctor.lint.running import findings_in

    first_of_rule = {finding.code: finding for finding in reversed(findings_in([script]))}
    chosen = [
        f"{finding.path}:{finding.line} {code} {finding.message}"
        for group in _CAUSES
        for code, finding in sorted(first_of_rule.items())
        if code.startswith(group) and code != "XL000"
    ]
    return tuple(chosen[:_MAX_FINDINGS])


def advise(devices: DevicesReport, request: Request) -> tuple[Advice, ...]:
    """Causes and next steps for each device that did not do all it could."""
    script = script_of(request)
    findings = () if script is None else script_findings(script)
    advices = [_advise_one(use, devices, script, findings) for use in devices.devices]
    return tuple([advice for advice in advices if advice.causes or advice.next_steps])


def _advise_one(
    use: DeviceUse, devices: DevicesReport, script: str | None, findings: tuple[str, ...]
) -> Advice:
    check = f"xlaunch doctor {script}" if script else "xlaunch doctor SCRIPT"
    larger = _larger_batch(use)
    if use.verdict == DeviceVerdict.WORKED.value:
        return Advice(use.name, (), larger)
    if use.verdict == DeviceVerdict.WAITED.value:
        if use.cpus_used >= NEAR_ALL_CPUS * devices.cpus:
            cause = f"all {devices.cpus} CPUs prepare data, and that is not enough: decoding or augmentation is slow"
            steps = [
                "decode faster (torchvision.io, Pillow-SIMD), at the size that is needed, or once to a file"
            ]
        else:
            cause = (
                f"data is prepared by {use.cpus_used:.1f} of {devices.cpus} CPUs, as by a DataLoader "
                "with few workers or none, while the device waits"
            )
            steps = [
                f"DataLoader(num_workers={max(1, devices.cpus - 1)}, persistent_workers=True, "
                "pin_memory=True), and .to(device, non_blocking=True)"
            ]
        causes = (
            *findings,
            cause,
            "small batches, or a wait at every step (.item(), .cpu(), print of a tensor)",
        )
        tune = "xtune --param workers=... --param batch=... finds both (docs/tuning.md)"
        return Advice(use.name, causes, (*steps, *larger, tune))
    if use.verdict == DeviceVerdict.IDLE.value:
        causes = (
            *findings,
            "the model or the data was moved to the device and the other was not, or the result of "
            ".to(device) was thrown away",
            "an option such as --cuda False that means True (argparse with type=bool)",
        )
        steps = [
            "print next(model.parameters()).device and the device of a batch in the loop",
            f"{check} finds such faults in the source",
        ]
        return Advice(use.name, causes, tuple(steps))
    if use.verdict == DeviceVerdict.UNUSED.value:
        causes = (
            *findings,
            "torch is built for CPUs only, or does not fit the driver",
            "the program chooses the CPU, by its default or by an option",
        )
        steps = [
            'python -c "import torch; print(torch.__version__, torch.cuda.is_available())"',
            "xlaunch doctor checks torch's build against the driver",
        ]
        return Advice(use.name, causes, tuple(steps))
    return Advice(use.name, (), ())


def _larger_batch(use: DeviceUse) -> tuple[str, ...]:
    """A next step if a batch of twice the size fits."""
    peak, total = use.memory_peak_bytes, use.memory_total_bytes
    if not peak or not total or FULL_SHARE * total < 2 * peak:
        return ()
    return (
        f"{size(peak)} of {size(total)} of the device's memory is used: a batch about "
        f"{int(FULL_SHARE * total / peak)} times as large fits",
    )


def render(report: Report, request: Request) -> list[str]:
    """The lines for the terminal, the verdict first."""
    devices = report.devices
    assert devices is not None
    advices = {advice.device: advice for advice in advise(devices, request)}
    lines = [devices.verdict]
    for use in devices.devices:
        if use.window_s:
            lines.append(f"  {use.name}: {_figures(use, report.wall_s)}")
        elif use.text not in devices.verdict:
            lines.append(f"  {use.text}")
        advice = advices.get(use.name)
        if advice is not None:
            lines += [f"    likely cause: {cause}" for cause in advice.causes]
            lines += [f"    next step: {step}" for step in advice.next_steps]
    lines += [f"  {describe_total(total)}" for total in report.metrics]
    lines += [f"  note: {text}" for text in (*devices.caveats, *devices.messages)]
    return lines


def _figures(use: DeviceUse, wall_s: float) -> str:
    parts = [f"in use for {use.window_s:.1f} of {wall_s:.1f} s"]
    if use.memory_peak_bytes is not None:
        of = "" if use.memory_total_bytes is None else f" of {size(use.memory_total_bytes)}"
        parts.append(f"memory up to {size(use.memory_peak_bytes)}{of}")
    if use.power_w is not None:
        parts.append(f"{use.power_w:.0f} W")
    parts.append(f"{use.cpus_used:.1f} CPUs busy meanwhile")
    return ", ".join(parts)


def document(report: Report, request: Request) -> dict[str, Any]:
    """The report for `--json`, with every sample."""
    devices = report.devices
    assert devices is not None
    samples = [
        {**sample._asdict(), "readings": [reading._asdict() for reading in sample.readings]}
        for sample in devices.samples
    ]
    whole = report_to_dict(report)
    shared = ("argv", "exit_code", "reason", "wall_s", "metrics", "warnings")
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: whole[name] for name in shared},
        **devices.as_dict(),
        "advice": [
            {**own._asdict(), "causes": list(own.causes), "next_steps": list(own.next_steps)}
            for own in advise(devices, request)
        ],
        "samples": samples,
    }


DEVICE_VENDORS = {"cuda": (Vendor.NVIDIA, Vendor.AMD), "xpu": (Vendor.INTEL,)}
"""The vendors of the GPUs that torch gives this name."""

DEVICE_VARIABLE = "XLAUNCH_DEVICE"
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
        rows = [("device", f"{self.what} [95 % confidence interval]")]
        rows += zip(self.devices, map(str, self.estimates), strict=True)
        first = self.devices[0]
        ratios = [
            f"{name} is {speedup} times as fast as {first}"
            for name, speedup in zip(self.devices[1:], self.speedups, strict=True)
        ]
        return [*align(rows), *ratios, self.basis]

    def as_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "larger_is_better": self.larger_is_better,
            "basis": self.basis,
            "devices": _named(self.devices, self.estimates),
            "times_as_fast_as_first": _named(self.devices[1:], self.speedups),
        }


def _named(devices: Sequence[str], estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    return [{"device": d, **e._asdict()} for d, e in zip(devices, estimates, strict=True)]


def parse_devices(text: str, root: str = "/") -> tuple[str, ...]:
    """The devices of `--compare`. Raises `UsageError` for a word or device that does not exist."""
    words = tuple([word.strip() for word in text.split(",")])
    allowed = ("cpu", *DEVICE_VENDORS)
    for word in words:
        name, colon, index = word.partition(":")
        has_index = not colon or (name != "cpu" and index.isascii() and index.isdigit())
        if name not in allowed or not has_index:
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
        makers = DEVICE_VENDORS.get(word.partition(":")[0], ())
        if makers and not present.intersection(makers):
            makers_named = " or ".join([maker.value for maker in makers])
            raise UsageError(
                f"--compare {text}: there is no device {word} here: no driver of a GPU of "
                f"{makers_named} is loaded; xlaunch doctor checks the machine"
            )
    return words


def request_for(request: Request, device: str) -> Request:
    """The request that runs the program of `request` on `device`.

    The program is told in its arguments, where `{device}` is replaced, and by XLAUNCH_DEVICE. If it
    heeds neither, as far as can be seen, GPUs are hidden from the run on the CPU.
    """
    words = tuple([word.replace(PLACEHOLDER, device) for word in request.program.words])
    variables = (*request.program.env, (DEVICE_VARIABLE, device))
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
            return DEVICE_VARIABLE.encode() in stream.read()
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
    runs = [run for of_device in reports.values() for run in of_device]
    position = next(
        (
            i
            for i in range(len(runs[0].metrics))
            if all(run.metrics[i].count and _value(run, i) for run in runs)
        ),
        None,
    )
    rounds = min(map(len, reports.values()))
    note = ""
    if position is None:
        what, larger = "time of the whole program, s", False
        values = [[run.wall_s for run in of_device] for of_device in reports.values()]
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
        values = [[_value(run, position) or 0.0 for run in own] for own in reports.values()]
    basis = (
        f"over {counted(rounds, 'interleaved run')} of each" if rounds > 1 else "one run of each"
    )
    first, *others = values
    return DeviceComparison(
        what=what,
        larger_is_better=larger,
        basis=basis + note,
        devices=tuple(reports),
        estimates=tuple(map(_estimate, values)),
        speedups=tuple(
            [_ratio(other, first) if larger else _ratio(first, other) for other in others]
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
