# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor` without files: what it prints, on every capture too, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.captures import capture_path, each_capture, own_captures
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, run
from tests.launcher.doctor.checks.made_up import NVIDIA, machine, torch_build
from tests.launcher.environment.made_up import environment
from tests.launcher.machine.trees import cpus, write_files

from xlaunch.cli.doctor_machine import draw, facts_of
from xlaunch.doctor.checks import run_checks
from xlaunch.doctor.checks.findings import Severity
from xlaunch.machine import read_machine
from xlaunch.machine.capture import unpacked

WIDTH = 80
PORTABLE = """
import sys
for name in ("fcntl", "grp", "pwd", "resource"):
    sys.modules[name] = None
from xlaunch.cli import main
main(["doctor", "-v", "--sysroot", sys.argv[1]])
"""

TROUBLED = {
    **cpus("0-7", core_cpus_list=[str(cpu) for cpu in range(8)]),
    **NVIDIA,
    "sys/module/nvidia/version": "550.54.15",
    "proc/self/cgroup": "0::/job",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory",
    "sys/fs/cgroup/job/cpu.max": "200000 100000",
    "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
    "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 8388608 kB\nSwapFree: 6291456 kB",
    "proc/1/comm": "python3",
}
"""A machine with something serious in several groups."""


@pytest.fixture
def troubled(tmp_path: Path) -> str:
    return write_files(tmp_path / "machine", TROUBLED)


def test_troubled_machine(golden: Golden, troubled: str):
    golden(ask("doctor", "--sysroot", troubled))


def test_checks_that_are_ignored(golden: Golden, troubled: str):
    golden(ask("doctor", "--ignore", "swap, cpu-quota", "--sysroot", troubled))


def test_captured_machine_in_full(golden: Golden):
    golden(
        ask("doctor", "-v", "--sysroot", capture_path("2-packages-4-dies-5-nodes-smt-container"))
    )


def test_machine_in_order_is_one_line(golden: Golden):
    golden(ask("doctor", "--sysroot", capture_path("1-package-4-cores-smt")))


@pytest.mark.parametrize("name", each_capture())
def test_every_capture(name: str):
    with unpacked(capture_path(name)) as root:
        facts = facts_of(read_machine(root), {}, sysroot=root)
        results, unavailable = run_checks(facts)
    assert "load" in unavailable
    assert results
    lines = str(draw(results, unavailable, verbose=True)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    for result in results:
        in_order = result.finding.severity is Severity.OK
        assert in_order or (result.finding.why and result.check)


def test_without_modules_that_only_unix_has():
    done = run((sys.executable, "-c", PORTABLE, capture_path(own_captures()[0])))
    assert (done.code, done.err) == (0, "")
    assert b"in order" in done.out


def test_worst_group_comes_first(tmp_path: Path):
    governor = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil"}
    swap = {"proc/meminfo": TROUBLED["proc/meminfo"]}
    for number, (files, first) in enumerate(((governor, "CPU"), (governor | swap, "Memory"))):
        results, _ = run_checks(machine(tmp_path / str(number), files))
        assert results[0].group == first


def test_json(troubled: str):
    done = ask("doctor", "--json", "--sysroot", troubled)
    told = json.loads(done.out)
    assert done.code == 1
    assert told["schema_version"] == 1
    assert told["interpreter"] is None
    assert {"load", "torch-build"} <= set(told["not_available"])
    quota = next(it for it in told["findings"] if it["check"] == "cpu-quota")
    assert quota["severity"] == "serious"
    assert quota["group"] == "Limits"
    assert quota["advise"] == "xlaunch PROGRAM\nexport OMP_NUM_THREADS=2"


def test_another_environment_against_another_machine(troubled: str, tmp_path: Path):
    torch_build(environment(tmp_path / "venv"), "2.8.0+cpu")
    python = f"{tmp_path}/venv/bin/python"
    env = clean_environment(XDG_CACHE_HOME=str(tmp_path))
    done = ask("doctor", "--json", "--sysroot", troubled, "--python", python, env=env)
    found = {it["check"]: it for it in json.loads(done.out)["findings"]}
    assert found["torch-build"]["severity"] == "serious"


def test_this_machine_without_heavy_imports(tmp_path: Path):
    env = clean_environment(XDG_CACHE_HOME=str(tmp_path))
    words = (sys.executable, "-X", "importtime", "-m", "xlaunch", "doctor", "-v")
    done = run(words, env=env)
    assert done.code in (0, 1)
    assert b"in order" in done.out
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert not imported & {"torch", "numpy", "cpuinfo", "optuna"}


def test_bad_input(golden: Golden, tmp_path: Path, troubled: str):
    (tmp_path / "file").write_text("no archive")
    said = []
    for words in (
        "--sysroot .", "--sysroot file", "--sysroot none", "--python ./none", "--python /bin/ls", "--import a-b",
        "--import=", "--import json --sysroot machine", "--ignore swop", "--ignore ,", "--import no_such_module",
    ):  # fmt: skip
        line = ask("doctor", *words.split(), cwd=tmp_path).refused()
        said += [f"$ xlaunch doctor {words}", line]
    golden(said)
