# SPDX-License-Identifier: Apache-2.0
"""GPUs and their drivers, from trees of files as sysfs has them, and what variables leave of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.captures import among_others, read_capture
from tests.launcher.machine.trees import write_files

from xlaunch.machine import machine_of, read_machine
from xlaunch.machine.capture import unpacked, write_capture
from xlaunch.machine.gpus import (
    gpu_models,
    openable,
    read_driver_version,
    read_gpus,
    usable_gpus,
)
from xlaunch.machine.topology import Gpu, Gpus, Vendor
from xlaunch.machine.tree import Tree

UUIDS = ("GPU-aaaa-1111", "GPU-aaaa-2222", "GPU-bbbb-3333")


def add_gpu(
    root: Path, driver: str, address: str, vendor: str, device: str, *, node: int | None = None
) -> None:
    directory = f"sys/bus/pci/drivers/{driver}"
    files = {f"{address}/vendor": f"0x{vendor}", f"{address}/device": f"0x{device}", "bind": ""}
    if node is not None:
        files[f"{address}/numa_node"] = str(node)
    write_files(root / directory, files)


def add_nvidia(root: Path, number: int, *, minor: int | None) -> None:
    address = f"0000:0{number}:00.0"
    add_gpu(root, "nvidia", address, "10de", "2330", node=-1)
    if minor is not None:
        facts = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUIDS[number]}\nDevice Minor: \t {minor}"
        write_files(root, {f"proc/driver/nvidia/gpus/{address}/information": facts})


def nodes(root: Path, *names: str) -> None:
    write_files(root, {f"dev/{name}": "" for name in names})


def nvidia(*models: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(Vendor.NVIDIA, model, f"0000:0{i}:00.0", i % 2, uuid)
        for i, (model, uuid) in enumerate(zip(models, UUIDS, strict=False))
    )


ALIKE, UNLIKE = nvidia(*["10de:2330"] * 3), nvidia("10de:2330", "10de:2330", "10de:1eb8")
CARDS = {
    vendor: tuple(Gpu(vendor, "", f"0000:0{i}:00.0") for i in range(3))
    for vendor in (Vendor.AMD, Vendor.INTEL)
}


def named(gpus: Gpus) -> list[tuple[str, str]]:
    """The name and the bus of each usable GPU."""
    return [(gpu.name, gpu.address[5:7]) for gpu in gpus.usable]


def test_each_model_once(tmp_path: Path):
    assert read_gpus(Tree(str(tmp_path))) == ()
    for slot in "12":
        add_gpu(tmp_path, "nvidia", f"0000:0{slot}:00.0", "10de", "2335")
    add_gpu(tmp_path, "xe", "0000:03:00.0", "8086", "56a0")
    add_gpu(tmp_path, "vfio-pci", "0000:04:00.0", "1002", "744c")  # passed to a guest
    assert gpu_models(read_gpus(Tree(str(tmp_path)))) == (
        Gpu(Vendor.INTEL, "8086:56a0"),
        Gpu(Vendor.NVIDIA, "10de:2335"),
    )


def test_the_order_is_that_of_addresses_as_numbers(tmp_path: Path):
    for address in ("0000:9b:00.0", "10000:01:00.0", "0000:0a:00.0", "0001:01:00.0"):
        add_gpu(tmp_path, "nvidia", address, "10de", "2335", node=int(address[5] == "9"))
    found = read_gpus(Tree(str(tmp_path)))
    assert [(gpu.address, gpu.numa_node) for gpu in found] == [
        ("0000:0a:00.0", 0),
        ("0000:9b:00.0", 1),
        ("0001:01:00.0", 0),
        ("10000:01:00.0", 0),
    ]


def test_amds_gpus_are_in_the_order_of_rocm(tmp_path: Path):
    for bus in ("03", "c3"):
        add_gpu(tmp_path, "amdgpu", f"0000:{bus}:00.0", "1002", "74a1", node=-1)
    for node, simds, location in ((0, 0, 0), (1, 304, 0xC300), (2, 304, 0x0300)):
        text = f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {location}\ndomain 0"
        write_files(tmp_path, {f"sys/class/kfd/kfd/topology/nodes/{node}/properties": text})
    found = read_gpus(Tree(str(tmp_path)))
    assert [(gpu.address, gpu.numa_node) for gpu in found] == [
        ("0000:c3:00.0", None),
        ("0000:03:00.0", None),
    ]


def test_a_container_has_the_gpus_whose_nodes_it_can_open(tmp_path: Path):
    for number, minor in enumerate((2, 0, 1)):
        add_nvidia(tmp_path, number, minor=minor)
    nodes(tmp_path, "nvidia1", "nvidia2", "nvidiactl")
    found = read_gpus(Tree(str(tmp_path)))
    assert [gpu.uuid for gpu in found] == list(UUIDS)
    assert [gpu.address[5:7] for gpu in openable(found, str(tmp_path))] == ["00", "02"]


def test_gpus_that_cannot_be_told_apart_are_as_many_as_nodes(tmp_path: Path):
    for number in range(3):
        add_nvidia(tmp_path, number, minor=None)
    nodes(tmp_path, "nvidia4", "nvidia5")
    found = read_gpus(Tree(str(tmp_path)))
    usable = usable_gpus(openable(found, str(tmp_path)), {}).usable
    assert [(gpu.identity, gpu.address) for gpu in usable] == [("0", ""), ("1", "")]
    nodes(tmp_path, "nvidia6")
    assert openable(found, str(tmp_path)) == found
    # gVisor shows no PCI bus.
    assert len(openable((), str(tmp_path))) == 3


def test_other_vendors_have_render_nodes(tmp_path: Path):
    for number in (0, 1):
        add_gpu(tmp_path, "xe", f"0000:0{number}:00.0", "8086", "56a0")
        drm = f"sys/bus/pci/devices/0000:0{number}:00.0/drm/renderD{128 + number}/"
        write_files(tmp_path, {drm: ""})
    nodes(tmp_path, "dri/renderD129")
    (only,) = openable(read_gpus(Tree(str(tmp_path))), str(tmp_path))
    assert only.address == "0000:01:00.0"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [("0", "00"), ("1", "01"), ("2", "02")]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [("1", "01"), ("0", "00")]),
        ({"CUDA_VISIBLE_DEVICES": " 2 ,0,"}, [("2", "02"), ("0", "00")]),
        ({"CUDA_VISIBLE_DEVICES": "2,7,0"}, [("2", "02")]),  # CUDA stops at the first unknown one
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb,GPU-aaaa-1"},
         [("GPU-bbbb", "02"), ("GPU-aaaa-1", "00")]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc,0"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, []),  # names two
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, [("MIG-1", ""), ("MIG-2", "")]),
        ({"HIP_VISIBLE_DEVICES": "0"}, [("0", "00"), ("1", "01"), ("2", "02")]),
    ],
)  # fmt: skip
def test_what_cudas_variable_leaves(variables: dict[str, str], expected: list[tuple[str, str]]):
    gpus = usable_gpus(ALIKE, variables)
    assert named(gpus) == expected
    assert gpus.problem == ""
    shown = " ".join(f"{n}={v}" for n, v in variables.items() if n.startswith("CUDA"))
    assert gpus.narrowed_by == shown


def test_numbers_of_unlike_gpus_need_their_order():
    assert named(usable_gpus(UNLIKE, {})) == [("0", "00"), ("1", "01"), ("2", "02")]
    chosen = {"CUDA_VISIBLE_DEVICES": "2,0"}
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in usable_gpus(UNLIKE, chosen).problem
    chosen["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert named(usable_gpus(UNLIKE, chosen)) == [("2", "02"), ("0", "00")]
    by_uuid = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS[1:])}
    assert [bus for _, bus in named(usable_gpus(UNLIKE, by_uuid))] == ["01", "02"]


@pytest.mark.parametrize("text", ["0,0", "1,GPU-aaaa-2222", "MIG-1,MIG-1"])
def test_a_gpu_that_is_named_twice_is_a_problem(text: str):
    gpus = usable_gpus(ALIKE, {"CUDA_VISIBLE_DEVICES": text})
    assert gpus.usable == ()
    assert gpus.problem == f"CUDA_VISIBLE_DEVICES={text} names a GPU twice"


@pytest.mark.parametrize(
    ("vendor", "variables", "expected"),
    [
        (Vendor.AMD, {}, [("0", "00"), ("1", "01"), ("2", "02")]),
        (Vendor.AMD, {"HIP_VISIBLE_DEVICES": "2,1"}, [("2", "02"), ("1", "01")]),
        (Vendor.AMD, {"CUDA_VISIBLE_DEVICES": "2"}, [("2", "02")]),
        (Vendor.AMD, {"ROCR_VISIBLE_DEVICES": "1,2"}, [("0", "01"), ("1", "02")]),
        (Vendor.AMD, {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [("1", "02")]),
        (Vendor.INTEL, {}, [("0", "00"), ("1", "01"), ("2", "02")]),
        (Vendor.INTEL, {"ZE_AFFINITY_MASK": "2,0.1"}, [("2", "02"), ("0.1", "00")]),
        (Vendor.INTEL, {"ONEAPI_DEVICE_SELECTOR": "level_zero:2,0"}, [("2", "02"), ("0", "00")]),
        (Vendor.INTEL, {"ONEAPI_DEVICE_SELECTOR": "*:gpu", "ZE_AFFINITY_MASK": "1"}, [("1", "01")]),
        (Vendor.INTEL, {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "ZE_AFFINITY_MASK": "2,0"},
         [("1", "00")]),
    ],
)  # fmt: skip
def test_what_other_vendors_variables_leave(
    vendor: Vendor, variables: dict[str, str], expected: list[tuple[str, str]]
):
    assert named(usable_gpus(CARDS[vendor], variables)) == expected


@pytest.mark.parametrize(
    "variables",
    [{"ONEAPI_DEVICE_SELECTOR": "opencl:0;level_zero:1"}, {"ZE_AFFINITY_MASK": "5"}],
)
def test_what_cannot_be_divided_is_said(variables: dict[str, str]):
    ((name, value),) = variables.items()
    gpus = usable_gpus(CARDS[Vendor.INTEL], variables)
    assert gpus.usable == ()
    assert gpus.problem.startswith(f"{name}={value} ")


def test_a_vendors_variable_chooses_it_among_several():
    both = (*ALIKE, *CARDS[Vendor.INTEL])
    assert {gpu.vendor for gpu in usable_gpus(both, {}).usable} == {Vendor.NVIDIA}
    for variables in (
        {"ZE_AFFINITY_MASK": "0"},
        {"CUDA_VISIBLE_DEVICES": ""},  # hides NVIDIA's
        {"CUDA_VISIBLE_DEVICES": "-1", "ZE_AFFINITY_MASK": "0,1"},
    ):
        assert {gpu.vendor for gpu in usable_gpus(both, variables).usable} == {Vendor.INTEL}
    assert usable_gpus((), {"CUDA_VISIBLE_DEVICES": "0"}) == Gpus()


def test_a_capture_has_the_gpus(tmp_path: Path):
    with machine_of(None, "package:2 node:1 gpu:2 core:2") as machine:
        write_capture(str(tmp_path / "gpus.tar.xz"), machine.root)
    with unpacked(str(tmp_path / "gpus.tar.xz")) as root:
        assert read_machine(root).gpus == machine.gpus
    assert [gpu.numa_node for gpu in machine.gpus.usable] == [0, 0, 1, 1]


def test_a_capture_without_drivers_has_displays_and_accelerators():
    gpus = read_capture("xeon-vm-32-cpus").gpus
    assert [(gpu.model, gpu.numa_node, gpu.name) for gpu in gpus.usable] == [
        ("10de:2335", None, "0"),
        ("10de:2335", None, "1"),
    ]


@pytest.mark.parametrize("name", among_others(["ghw-linux-amd64-accel-nvidia"]))
def test_a_virtual_display_beside_an_accelerator_is_no_gpu(name: str):
    (gpu,) = read_capture(name).gpus.usable
    assert (gpu.vendor, gpu.address) == (Vendor.NVIDIA, "0000:06:00.0")


@pytest.mark.parametrize(
    ("vendor", "file", "text", "version"),
    [
        (Vendor.NVIDIA, "sys/module/nvidia/version", "550.54.15", "550.54.15"),
        (Vendor.AMD, "sys/module/amdgpu/version", "6.7.0", "6.7.0"),
        (Vendor.AMD, "opt/rocm/.info/version", "6.2.1-66", "6.2.1-66"),
        (Vendor.INTEL, "usr/lib64/libze_intel_gpu.so.1.6.33578", "", "1.6.33578"),
    ],
)
def test_driver_versions(tmp_path: Path, vendor: Vendor, file: str, text: str, version: str):
    assert read_driver_version(vendor, Tree(str(tmp_path))) is None
    write_files(tmp_path, {file: text})
    if vendor is Vendor.INTEL:
        path = tmp_path / file
        path.with_name("libze_intel_gpu.so.1").symlink_to(path)
    assert read_driver_version(vendor, Tree(str(tmp_path))) == version
