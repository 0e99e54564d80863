# SPDX-License-Identifier: Apache-2.0
"""`--compare cpu,cuda`: what each run is told, their order, and the intervals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.golden import Golden

import xlaunch
from xlaunch.doctor.device import (
    HIDDEN,
    compare,
    parse_devices,
    request_for,
    run_all,
)
from xlaunch.metrics.collector import MetricTotal
from xlaunch.planning.request import Request
from xlaunch.report import Report


def report(rate: float | None, *, wall_s: float = 2.0, kind: str = "rate", code: int = 0) -> Report:
    """A run that printed `rate`; None: nothing."""
    total = MetricTotal("images/s", kind, None, None, 0, None, None, None, None, None, ())
    if rate is not None:
        total = total._replace(count=18, **{"sum" if kind == "rate" else "mean": rate})
    return Report(code, "", wall_s, 1, (), (), (), metrics=(total,))


def gpu(root: Path, driver: str, vendor: str) -> str:
    directory = root / "sys/bus/pci/drivers" / driver / "0000:03:00.0"
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(f"0x{vendor}\n")
    (directory / "device").write_text("0x2335\n")
    return str(root)


@pytest.mark.parametrize(("driver", "vendor"), [("nvidia", "10de"), ("amdgpu", "1002")])
def test_devices_that_exist(tmp_path: Path, driver: str, vendor: str):
    root = gpu(tmp_path, driver, vendor)
    assert parse_devices("cpu, cuda:0", root) == ("cpu", "cuda:0")
    with pytest.raises(xlaunch.UsageError, match="there is no device xpu here: no driver"):
        parse_devices("cpu,xpu", root)


def test_container_that_hides_the_pci_bus(tmp_path: Path):
    with pytest.raises(xlaunch.UsageError, match="there is no device cuda here"):
        parse_devices("cpu,cuda", str(tmp_path))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert parse_devices("cuda,cpu", str(tmp_path)) == ("cuda", "cpu")


def test_program_is_told_its_device_and_gpus_are_hidden_only_if_it_cannot_know(tmp_path: Path):
    plain, reads = tmp_path / "plain.py", tmp_path / "reads.py"
    plain.write_text("import torch\n")
    reads.write_text("import os; os.environ['XLAUNCH_DEVICE']\n")
    for words, hides in (
        ((str(plain),), True),
        (("no-such-file.py",), True),
        (("sh", "-c", "true"), True),
        ((str(reads),), False),
        ((str(plain), "--device={device}"), False),
    ):
        on_cpu = request_for(Request.of(*words), "cpu")
        on_gpu = request_for(Request.of(*words), "cuda:1")
        assert dict(on_cpu.program.env) == {
            "XLAUNCH_DEVICE": "cpu",
            **(dict(HIDDEN) if hides else {}),
        }
        assert dict(on_gpu.program.env) == {"XLAUNCH_DEVICE": "cuda:1"}
        assert on_gpu.run.verify_device
    assert on_gpu.program.words == (str(plain), "--device=cuda:1")


def test_runs_are_interleaved_and_a_long_program_runs_once_on_each():
    order: list[str] = []

    def run(device: str, place: int, wall_s: float = 1.0) -> Report:
        order.append(f"{device}{place}")
        return report(None, wall_s=wall_s)

    run_all(("cpu", "cuda"), run)
    assert order == ["cpu0", "cuda0", "cuda1", "cpu1", "cpu2", "cuda2"]
    order.clear()
    run_all(("cpu", "cuda"), lambda device, place: run(device, place, 200.0))
    assert order == ["cpu0", "cuda0"]


def test_failed_run_is_the_last():
    failed = report(None, code=3)
    reports, found = run_all(("cpu", "cuda"), lambda device, _: failed if device == "cuda" else report(1))  # fmt: skip
    assert found is failed
    assert reports["cuda"] == [failed]
    assert len(reports["cpu"]) == 1


def test_rates_with_intervals_over_runs():
    found = compare({"cpu": [report(210), report(213), report(216)], "cuda": [report(1590), report(1600), report(1610)]})  # fmt: skip
    assert (found.what, found.larger_is_better) == ("images/s", True)
    cpu, cuda = found.estimates
    assert cpu.mean == pytest.approx(213, rel=1e-3)
    # Of the logarithms of three values: t is 4.303, the standard error 0.01409 / sqrt(3).
    assert (cpu.low, cpu.high) == (pytest.approx(205.7, abs=0.1), pytest.approx(220.6, abs=0.1))
    (speedup,) = found.speedups
    assert speedup.mean == pytest.approx(1600 / 213, rel=1e-3)
    assert speedup.low is not None
    assert speedup.low < 1600 / 213 < (speedup.high or 0)
    assert found.lines()[-1] == "over 3 interleaved runs of each"
    assert cuda.mean == pytest.approx(1600, rel=1e-3)


def test_times_are_compared_the_other_way_round():
    found = compare({"cpu": [report(0.60, kind="latency")] * 2, "cuda": [report(0.08, kind="latency")] * 2})  # fmt: skip
    assert not found.larger_is_better
    assert found.speedups[0].mean == pytest.approx(7.5)


def test_without_a_metric_the_whole_time_is_compared(golden: Golden):
    found = compare({"cpu": [report(None, wall_s=8)], "cuda": [report(213, wall_s=2)]})
    golden(found.what)
    assert found.speedups[0] == (pytest.approx(4.0), None, None)
    golden(found.basis, found.lines()[1])


def test_real_runs_under_two_names(monkeypatch: pytest.MonkeyPatch):
    """What is compared here is a program that prints what it was told."""
    monkeypatch.setattr("xlaunch.doctor.device.ROUNDS", 1)
    code = (
        "import sys, time\n"
        "rate = {'cpu': 213, 'cuda': 1600}[sys.argv[1]]\n"
        "for i in range(5): print(rate + i, 'images/s', flush=True); time.sleep(0.02)\n"
    )
    request = Request.of(sys.executable, "-c", code, "{device}", ncores=1, metric=("images/s",))
    machine = xlaunch.read_machine()

    def run(device: str, place: int) -> Report:
        del place
        asked = request_for(request, device)
        return xlaunch.launch(xlaunch.plan(asked.layout, machine), asked.program, asked.run)

    reports, failed = run_all(("cpu", "cuda"), run)
    assert failed is None
    found = compare(reports)
    assert found.speedups[0].mean == pytest.approx(1602 / 215, rel=0.02)
    assert found.as_dict()["devices"][0]["device"] == "cpu"
