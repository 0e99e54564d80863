# SPDX-License-Identifier: Apache-2.0
"""Checks of GPUs, of torch's build against them, and of torch's companions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.doctor.checks.made_up import (
    INTEL,
    NVIDIA,
    expect,
    machine,
    one,
    program,
    severity,
    shown,
    torch_build,
)
from tests.launcher.environment.made_up import environment

from xlaunch.doctor.checks.findings import Severity

DRIVER = "sys/module/nvidia/version"


def test_torch_for_cpus_beside_a_gpu(golden: Golden, tmp_path: Path):
    torch_build(environment(tmp_path / "venv"), "2.8.0+cpu")
    beside = program(machine(tmp_path / "gpu", NVIDIA), tmp_path / "venv")
    finding = one("torch-build", beside)
    assert finding.severity is Severity.SERIOUS
    golden(finding.found, finding.advise)
    alone = program(machine(tmp_path / "none", {}), tmp_path / "venv")
    assert severity("torch-build", alone) is Severity.OK


def test_torch_for_gpus_of_another_vendor(golden: Golden, tmp_path: Path):
    torch_build(environment(tmp_path / "venv"), "2.8.0+rocm6.4", hip="6.4.2")
    found = one("torch-build", program(machine(tmp_path / "gpu", NVIDIA), tmp_path / "venv"))
    assert found.severity is Severity.SERIOUS
    golden(found.found)


@pytest.mark.parametrize(
    ("place", "vendor", "expected"),
    [
        ("i915/0000:00:02.0", "8086", Severity.ADVICE),
        ("xe/0000:03:00.0", "8086", Severity.SERIOUS),
        ("amdgpu/0000:05:00.0", "1002", Severity.ADVICE),
    ],
)
def test_gpus_that_are_part_of_a_processor(
    place: str, vendor: str, expected: Severity, tmp_path: Path
):
    torch_build(environment(tmp_path / "venv"), "2.8.0+cpu")
    directory = f"sys/bus/pci/drivers/{place}"
    tree = {f"{directory}/vendor": f"0x{vendor}", f"{directory}/device": "0x1"}
    tree[f"{directory}/mem_info_vram_total"] = str(1 << 29)
    facts = program(machine(tmp_path / "machine", tree), tmp_path / "venv")
    assert severity("torch-build", facts) is expected


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        ("12.8", "525.60.13", Severity.OK),
        ("12.8", "515.105.01", Severity.SERIOUS),
        ("13.0", "570.86.10", Severity.SERIOUS),
        ("13.0", "580.65.06", Severity.OK),
        ("11.8", "450.80.02", Severity.OK),
        ("14.0", "580.65.06", Severity.OK),  # not in the table: not judged
    ],
)
def test_driver_against_the_build(cuda: str, driver: str, expected: Severity, tmp_path: Path):
    torch_build(environment(tmp_path / "venv"), "2.8.0", cuda=cuda)
    facts = machine(tmp_path / "machine", {**NVIDIA, DRIVER: driver})
    finding = one("torch-build", program(facts, tmp_path / "venv"))
    assert finding.severity is expected
    assert driver in finding.found


def test_driver_version_of_proc(golden: Golden, tmp_path: Path):
    torch_build(environment(tmp_path / "venv"), "2.9.0", cuda="13.0")
    for name, text in (
        ("closed", "NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024"),
        ("open", "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\nGCC version:  gcc version 15.3.0 (GCC)"),
    ):  # fmt: skip
        files = {**NVIDIA, "proc/driver/nvidia/version": f"NVRM version: {text}"}
        golden(
            one("torch-build", program(machine(tmp_path / name, files), tmp_path / "venv")).found
        )


def test_no_torch(tmp_path: Path):
    environment(tmp_path / "venv")
    facts = program(machine(tmp_path / "machine", NVIDIA), tmp_path / "venv")
    assert severity("torch-build", facts) is Severity.OK
    assert shown("torch-companions", facts) == []


def companion(site: Path, name: str, version: str, requires: str) -> None:
    directory = site / f"{name}-{version}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nRequires-Dist: numpy\nRequires-Dist: {requires}\n\n"
        "Requires-Dist: torch==1.0 in the description\n"
    )


@pytest.mark.parametrize(
    ("version", "requires", "expected"),
    [
        ("0.23.0", "torch==2.8.0", Severity.OK),
        ("0.23.0", "torch (==2.8.0)", Severity.OK),
        ("0.22.1", "torch==2.7.1", Severity.WARNING),
        ("0.23.0", "torch>=2.7,<2.9", Severity.OK),
        ("0.23.0", "torch>=2.9", Severity.WARNING),
        ("0.23.0", "torch==2.8.*", Severity.OK),
        ("0.23.0", "torch~=2.7", Severity.OK),
        ("0.23.0", "torch!=2.8", Severity.WARNING),
        ("0.23.0", "torch==2.1; extra == 'dev'", Severity.OK),
        ("0.23.0+cpu", "torch==2.8.0", Severity.WARNING),
        ("0.23.0+cu128", "torch==2.8.0", Severity.OK),
    ],
)
def test_companions(version: str, requires: str, expected: Severity, tmp_path: Path):
    site = environment(tmp_path / "venv")
    torch_build(site, "2.8.0+cu128", cuda="12.8")
    companion(site, "torchvision", version, requires)
    facts = program(machine(tmp_path / "machine", {}), tmp_path / "venv")
    finding = one("torch-companions", facts)
    assert finding.severity is expected
    assert f"torchvision {version}" in finding.found
    if expected is Severity.WARNING:  # the build of torch stays
        index = "--index-url https://download.pytorch.org/whl/cu128"
        install = (
            "--force-reinstall --no-deps torchvision==0.23.0"
            if "+" in version
            else "torch==2.8.0 torchvision"
        )
        assert finding.advise == f"pip install {install} {index}"


DEVICE = "sys/bus/pci/devices/0000:01:00.0"
CARD = {f"{DEVICE}/class": "0x030200", f"{DEVICE}/vendor": "0x10de"}


@pytest.mark.parametrize(
    ("check", "files", "severity", "said"),
    [
        ("gpu-driver", CARD | {"sys/bus/pci/drivers/e1000/": ""}, Severity.WARNING, ""),
        ("gpu-driver", CARD | {"sys/bus/pci/drivers/e1000/": "", "sys/bus/pci/drivers/nvidia/": ""}, Severity.WARNING, "nvidia-driver-580"),
        ("gpu-driver", CARD | {"sys/bus/pci/drivers/nvidia/bind": ""}, Severity.WARNING, "\necho 0000:01:00.0 | sudo tee /sys/bus/pci/drivers/nvidia/bind"),
        ("gpu-driver", CARD | {"sys/bus/pci/drivers/pci-stub/0000:01:00.0/": ""}, None, ""),
        ("gpu-driver", CARD | {"sys/bus/pci/drivers/vfio-pci/0000:01:00.0/": ""}, None, ""),
        ("gpu-driver", CARD, None, ""),  # a capture without any driver says nothing
        ("gpu-driver", {**CARD, **NVIDIA, DRIVER: "580.65.06"}, Severity.OK, "NVIDIA: 1, driver 580.65.06"),
    ],
)  # fmt: skip
def test_driver(
    check: str, files: dict[str, str], severity: Severity | None, said: str, tmp_path: Path
):
    expect(check, machine(tmp_path, files), severity, said)


@pytest.mark.parametrize(
    ("files", "variables", "names"),
    [
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES"),  # there is only 0
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}, "ONEAPI_DEVICE_SELECTOR"),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}, "ONEAPI_DEVICE_SELECTOR"),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "level_zero:*"}, None),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "opencl:cpu;level_zero:gpu"}, None),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, None),
        (INTEL, {"CUDA_VISIBLE_DEVICES": ""}, None),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "0"}, None),
        (NVIDIA, {}, None),
        ({}, {"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_variables_that_hide_gpus(
    files: dict[str, str], variables: dict[str, str], names: str | None, tmp_path: Path
):
    facts = machine(tmp_path, files, **variables)
    if names is None:
        assert shown("gpu-variables", facts) == []
    else:
        assert one("gpu-variables", facts).advise == f"unset {names}"


def test_nodes_that_are_missing(golden: Golden, tmp_path: Path, needs):
    needs(not Path("/dev/nvidiactl").exists(), "a machine without NVIDIA's driver")
    facts = machine(tmp_path, NVIDIA)._replace(live=True)
    golden(one("gpu-nodes", facts).found)
    assert shown("gpu-nodes", machine(tmp_path / "none", {})._replace(live=True)) == []
