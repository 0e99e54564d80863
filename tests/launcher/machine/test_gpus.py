# SPDX-License-Identifier: Apache-2.0
"""GPUs and their drivers, from trees of files as sysfs has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlaunch.machine.files import Tree
from xlaunch.machine.gpus import Gpu, Vendor, read_driver_version, read_gpus


def add_gpu(root: Path, driver: str, address: str, vendor: str, device: str) -> None:
    directory = root / "sys/bus/pci/drivers" / driver
    (directory / address).mkdir(parents=True)
    (directory / "bind").touch()
    (directory / address / "vendor").write_text(f"0x{vendor}\n")
    (directory / address / "device").write_text(f"0x{device}\n")


def test_each_model_once(tmp_path: Path):
    assert read_gpus(Tree(str(tmp_path))) == ()
    for slot in "12":
        add_gpu(tmp_path, "nvidia", f"0000:0{slot}:00.0", "10de", "2335")
    add_gpu(tmp_path, "xe", "0000:03:00.0", "8086", "56a0")
    add_gpu(tmp_path, "vfio-pci", "0000:04:00.0", "1002", "744c")  # passed to a guest
    assert read_gpus(Tree(str(tmp_path))) == (
        Gpu(Vendor.INTEL, "8086:56a0"),
        Gpu(Vendor.NVIDIA, "10de:2335"),
    )


@pytest.mark.parametrize(
    ("vendor", "file", "text", "version"),
    [
        (Vendor.NVIDIA, "sys/module/nvidia/version", "550.54.15\n", "550.54.15"),
        (Vendor.AMD, "sys/module/amdgpu/version", "6.7.0\n", "6.7.0"),
        (Vendor.AMD, "opt/rocm/.info/version", "6.2.1-66\n", "6.2.1-66"),
        (Vendor.INTEL, "usr/lib64/libze_intel_gpu.so.1.6.33578", "", "1.6.33578"),
    ],
)
def test_driver_versions(tmp_path: Path, vendor: Vendor, file: str, text: str, version: str):
    assert read_driver_version(vendor, Tree(str(tmp_path))) is None
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    if vendor is Vendor.INTEL:
        (path.parent / "libze_intel_gpu.so.1").symlink_to(path)
    assert read_driver_version(vendor, Tree(str(tmp_path))) == version
