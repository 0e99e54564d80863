# SPDX-License-Identifier: Apache-2.0
"""What is said about each verdict: causes, and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden import Golden

from xlaunch.doctor.device import advise, document, render, script_findings, script_of
from xlaunch.doctor.lint.rules import RULES
from xlaunch.planning.request import Request
from xlaunch.report import Report
from xlaunch.report.device_use import DeviceSample, DevicesReport, DeviceUse, DeviceVerdict, Reading

GIB = 1 << 30
REQUEST = Request.of("train.py", "--cuda", "False")


def report(verdict: DeviceVerdict, *, cpus_used: float = 1.0, peak: int = 4 * GIB) -> DevicesReport:
    use = DeviceUse(
        "cuda:0", "NVIDIA H100", "NVML", verdict.value, "a sentence", busy=0.3, window_s=9.0,
        cpus_used=cpus_used, memory_peak_bytes=peak, memory_total_bytes=80 * GIB, power_w=210.0,
    )  # fmt: skip
    sample = DeviceSample(0.25, 0.25, 1.0, (Reading(0.3, 0.3, peak, peak, 210.0),))
    return DevicesReport("a sentence", 16, cpus_used, (use,), samples=(sample,))


def advice(verdict: DeviceVerdict, **more: float) -> str:
    found = advise(report(verdict, **more), REQUEST)  # type: ignore[arg-type]
    return " | ".join([text for one in found for text in (*one.causes, *one.next_steps)])


def test_waiting_names_workers_pinned_memory_and_the_batch_that_fits():
    text = advice(DeviceVerdict.WAITED)
    for words in ("num_workers=15", "pin_memory=True", "about 18 times as large fits", "xtune"):
        assert words in text
    assert "num_workers" not in advice(DeviceVerdict.WAITED, cpus_used=15.5)
    assert "decode faster" in advice(DeviceVerdict.WAITED, cpus_used=15.5)


def test_idle_device_names_placement_and_the_option_that_cannot_be_false():
    text = advice(DeviceVerdict.IDLE)
    for words in ("--cuda False that means True", ".to(device) was thrown away", "xlaunch doctor train.py"):  # fmt: skip
        assert words in text


def test_unused_device_names_the_build_of_torch(golden: Golden):
    golden(advice(DeviceVerdict.UNUSED))


def test_device_that_works_gets_advice_only_while_a_larger_batch_fits(golden: Golden):
    golden(advice(DeviceVerdict.WORKED))
    assert advice(DeviceVerdict.WORKED, peak=60 * GIB) == ""
    assert advice(DeviceVerdict.UNKNOWN) == ""


def test_findings_in_the_script_are_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert script_findings("train.py") == ()
    script = Path("train.py")
    script.write_text("def f(:")
    assert script_findings("train.py") == ()
    example = {rule.code: rule.failing for rule in RULES}
    script.write_text(
        "\n".join(example[code] for code in ("XL106", "XL041", "XL001", "XL010", "XL010"))
    )
    lines = script_findings("train.py")
    assert [line.split()[1] for line in lines] == ["XL010", "XL001", "XL041", "XL106"]
    assert lines[0].startswith("train.py:17 XL010 ")
    assert advise(report(DeviceVerdict.IDLE), REQUEST)[0].causes[:4] == lines


def test_text_and_document():
    whole = Report(0, "1 instance succeeded", 12.5, 1, (), (), ("train.py",), devices=report(DeviceVerdict.WAITED))  # fmt: skip
    lines = render(whole, REQUEST)
    assert lines[:2] == [
        "a sentence",
        "  cuda:0: in use for 9.0 of 12.5 s, memory up to 4 GiB of 80 GiB, 210 W, 1.0 CPUs busy meanwhile",
    ]
    assert any(line.startswith("    next step: DataLoader(") for line in lines)
    values = document(whole, REQUEST)
    assert values["samples"][0]["readings"][0]["power_w"] == 210.0
    assert values["devices"][0]["verdict"] == "waited"


def test_scripts_are_files_of_python():
    assert script_of(REQUEST) == "train.py"
    for other in (Request.of("pkg.py", module=True), Request.of("sh", "train.py"), Request()):  # fmt: skip
        assert script_of(other) is None
