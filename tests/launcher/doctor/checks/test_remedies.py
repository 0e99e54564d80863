# SPDX-License-Identifier: Apache-2.0
"""Remedies for processes and packages, run as they are printed: what was found is gone."""

from __future__ import annotations

import json
import os
import resource
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cli.commands import EAT_MEMORY, clean_environment, in_group, run
from tests.launcher.conftest import LIMIT_BYTES
from tests.launcher.doctor.checks.made_up import INTEL, NVIDIA, torch_build
from tests.launcher.machine.trees import cpus, write_files
from tests.tiers import quick_first

DOCTOR = (sys.executable, "-m", "xlaunch", "doctor", "--json")


def after(remedy: str, check: str, words: tuple[str, ...], **variables: str) -> Any:
    """The findings of a check that are not in order, in a shell that has run the remedy."""
    shell = f"{remedy}{chr(10) if remedy else ''}{shlex.join(DOCTOR + words)}"
    done = run(("/bin/sh", "-c", shell), env=clean_environment(**variables))
    told = json.loads(done.out[done.out.index(b"{") :])
    return [it for it in told["findings"] if it["check"] == check and it["severity"] != "ok"]


def test_quota(tmp_path: Path):
    group = {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/cgroup.controllers": "cpu"}
    files = {**cpus("0-3"), **group, "sys/fs/cgroup/job/cpu.max": "200000 100000"}
    words = ("--sysroot", write_files(tmp_path / "machine", files), "--python", sys.executable)
    (found,) = after("", "cpu-quota", words, OMP_NUM_THREADS="3")
    unset, export = found["advise"].split("\n")
    assert after(export, "cpu-quota", words, OMP_NUM_THREADS="3") == []
    shown = shlex.join((sys.executable, "-c", "import os; print(os.getenv('OMP_NUM_THREADS'))"))
    launch = unset.replace("xlaunch PROGRAM", f"{sys.executable} -m xlaunch {shown}")
    env = clean_environment(OMP_NUM_THREADS="12345")
    assert b"12345" not in run(("/bin/sh", "-c", launch), env=env).out


@pytest.mark.parametrize(
    ("check", "variable", "value"),
    quick_first(
        [
            pytest.param("gpu-variables", "CUDA_VISIBLE_DEVICES", "-1"),
            pytest.param("openmp-variables", "OMP_NUM_THREADS", "1"),
            pytest.param("gpu-variables", "ONEAPI_DEVICE_SELECTOR", "*:cpu"),
            pytest.param("openmp-variables", "KMP_AFFINITY", "bogus"),
            pytest.param("openmp-variables", "OMP_PLACES", "bogus"),
        ],
        quick=2,
    ),
)
def test_variables(check: str, variable: str, value: str, tmp_path: Path):
    root = write_files(tmp_path / "machine", {**cpus("0-3"), **NVIDIA, **INTEL})
    words = ("--sysroot", root, "--python", sys.executable)
    (found,) = after("", check, words, **{variable: value})
    assert after(found["advise"], check, words, **{variable: value}) == []


@pytest.mark.long
@pytest.mark.machine
def test_memory_that_earlier_programs_of_a_group_needed(limited_group: Path):
    def found() -> dict[str, str]:
        done = run(in_group(limited_group, *DOCTOR, "--ignore", "load"))
        told = json.loads(done.out[done.out.index(b"{") :])
        return next(it for it in told["findings"] if it["check"] == "memory-limit")

    assert found()["severity"] == "ok"
    most = f"held = b'x' * {LIMIT_BYTES * 9 // 10}"
    assert run(in_group(limited_group, sys.executable, "-c", most)).code == 0
    peak = found()
    assert (peak["severity"], "in use at some time" in peak["found"]) == ("advice", True)
    assert run(in_group(limited_group, sys.executable, "-c", EAT_MEMORY)).code in (-9, 137)
    killed = found()
    assert killed["severity"] == "warning"
    assert killed["found"] == "memory limit 256 MiB, and 1 process of the group ended at it"


def test_open_files(needs):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= 1024
    needs(enough, "a hard limit of 1,024 open files")
    (found,) = after("ulimit -S -n 256", "open-files", ())
    assert found["advise"].startswith("ulimit -n ")
    assert after(f"ulimit -S -n 256\n{found['advise']}", "open-files", ()) == []


def wheel(directory: Path, name: str, version: str, requires: str = "") -> None:
    """An empty package."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}\n"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment, in which the cases install their packages one after the other."""
    path = tmp_path_factory.mktemp("venv")
    assert run((sys.executable, "-m", "venv", str(path))).code == 0
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("torch", "installed", "right"),
    [
        ("2.8.0+cpu", "0.23.0+cu128", "0.23.0+cpu"),  # cu128 sorts above cpu
        ("2.8.0+cpu", "0.22.1+cpu", "0.23.0+cpu"),
        ("2.8.0+cpu", "0.24.0+cpu", "0.23.0+cpu"),
    ],
)
def test_companions(torch: str, installed: str, right: str, venv: Path, tmp_path: Path):
    index = tmp_path / "index"
    index.mkdir()
    (site,) = venv.glob("lib/python3*/site-packages")
    asks = {"0.22.1": "2.7.1", "0.23.0": "2.8.0", "0.24.0": "2.9.0"}
    for version in {installed, right}:
        needed = f"Requires-Dist: torch=={asks[version.partition('+')[0]]}\n"
        wheel(index, "torchvision", version, needed)
    for version in (torch, "2.8.0+zzz", "2.9.0+cpu"):
        wheel(index, "torch", version)
    path = f"{venv}/bin:{os.environ['PATH']}"
    offline = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    # No constraints, and no other index, of whoever runs the tests.
    offline |= {"PIP_CONSTRAINT": "", "PIP_CONFIG_FILE": os.devnull}
    env = clean_environment(**offline)
    first = run(("pip", "install", "-q", "--no-deps", f"torch=={torch}", f"torchvision=={installed}"), env=env)  # fmt: skip
    assert first.code == 0, first.err
    torch_build(site, torch)
    words = ("--python", f"{venv}/bin/python")
    (found,) = after("", "torch-companions", words, **offline)
    if installed.endswith("cu128"):  # the only right build is on the index that is named
        next(index.glob("torchvision-*cu128*")).unlink()
    assert after(found["advise"], "torch-companions", words, **offline) == []
    names = sorted(it.name for it in site.glob("torch*.dist-info"))
    assert names == [f"torch-{torch}.dist-info", f"torchvision-{right}.dist-info"]
