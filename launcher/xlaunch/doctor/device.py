# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device`: what the verdict on each device means for the program, and what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

from xlaunch.planning.request import Request
from xlaunch.report import Report
from xlaunch.report.device_use import DevicesReport, DeviceUse, DeviceVerdict
from xlaunch.report.json_file import report_to_dict
from xlaunch.report.run_table import describe_total
from xlaunch.text import size

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
    words = request.program.words
    is_script = (
        bool(words)
        and words[0].endswith(".py")
        and not (request.program.module or request.program.no_python)
    )
    return words[0] if is_script else None


def script_findings(script: str) -> tuple[str, ...]:
    """The findings in `script`, hints included: one line for each rule.

    Nothing for a script that is missing or does not parse.
    """
    from xlaunch.doctor.lint.running import findings_in

    first_of_rule = {one.code: one for one in reversed(findings_in([script]))}
    chosen = [
        one
        for group in _CAUSES
        for code, one in sorted(first_of_rule.items())
        if code.startswith(group) and code != "XL000"
    ]
    return tuple(
        [f"{one.path}:{one.line} {one.code} {one.message}" for one in chosen[:_MAX_FINDINGS]]
    )


def advise(devices: DevicesReport, request: Request) -> tuple[Advice, ...]:
    """Causes and next steps for each device that did not do all it could."""
    script = script_of(request)
    found = () if script is None else script_findings(script)
    advices = [_advise_one(use, devices, script, found) for use in devices.devices]
    return tuple([one for one in advices if one.causes or one.next_steps])


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
            {**one._asdict(), "causes": list(one.causes), "next_steps": list(one.next_steps)}
            for one in advise(devices, request)
        ],
        "samples": samples,
    }
