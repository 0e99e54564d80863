# SPDX-License-Identifier: Apache-2.0
"""Intel's and AMD's GPUs, from made-up trees in the format that the kernel documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlaunch.report.device_counters import DrmCounters, parse_client, torch_name

GPU = "0000:03:00.0"
OWN, OTHER = 100, 200

XE = """\
pos:\t0
drm-driver:\txe
drm-client-id:\t{id}
drm-pdev:\t0000:03:00.0
drm-total-system:\t0
drm-resident-gtt:\t192 KiB
drm-total-vram0:\t4096 KiB
drm-resident-vram0:\t2 MiB
drm-cycles-ccs:\t{work}
drm-total-cycles-ccs:\t{total}
drm-engine-capacity-ccs:\t2
drm-cycles-bcs:\t0
drm-total-cycles-bcs:\t{total}
"""
I915 = """\
drm-driver:\ti915
drm-client-id:\t{id}
drm-pdev:\t0000:03:00.0
drm-total-system0:\t300 MiB
drm-resident-system0:\t100 MiB
drm-engine-render:\t{work} ns
drm-engine-copy:\t0 ns
drm-engine-video:\t0 ns
drm-engine-capacity-video:\t2
"""
AMDGPU = """\
drm-driver:\tamdgpu
drm-client-id:\t{id}
drm-pdev:\t0000:03:00.0
drm-memory-vram:\t2048 KiB
drm-memory-gtt: \t64 KiB
drm-engine-gfx:\t5 ns
drm-engine-compute:\t{work} ns
"""


class Machine:
    """A tree with one GPU."""

    def __init__(self, root: Path, driver: str) -> None:
        self.root = root
        self.device = root / "sys/bus/pci/drivers" / driver / GPU
        self.device.mkdir(parents=True)
        (self.device / "device").write_text("0x56a0\n")

    def counters(self) -> DrmCounters:
        return DrmCounters(root=str(self.root))

    def open(self, pid: int, text: str, *, fd: int = 5, path: str = "/dev/dri/renderD128") -> None:
        process = self.root / "proc" / str(pid)
        for name in ("fd", "fdinfo"):
            (process / name).mkdir(parents=True, exist_ok=True)
        if not (process / "fd" / str(fd)).is_symlink():
            (process / "fd" / str(fd)).symlink_to(path)
        (process / "fdinfo" / str(fd)).write_text(text)


def test_xe_counts_cycles_of_each_engine_and_process(tmp_path: Path):
    machine = Machine(tmp_path, "xe")
    counters = machine.counters()
    (device,) = counters.devices
    assert (device.name, device.model) == ("xpu:0", "Intel GPU 56a0, xe")
    for work, other, total in ((0, 0, 1000), (1200, 400, 2000)):
        machine.open(OWN, XE.format(id=3, work=work, total=total))
        machine.open(OWN, XE.format(id=3, work=work, total=total), fd=6)  # the same client
        machine.open(OTHER, XE.format(id=4, work=other, total=total))
        (reading,) = counters.read({OWN}, 1.0)
    assert reading.own_busy == pytest.approx(0.6)  # of two engines
    assert reading.busy == pytest.approx(0.8)
    assert (reading.own_memory_bytes, reading.memory_bytes) == (2 << 20, 4 << 20)
    assert counters.others == [{OTHER}]


def test_i915_counts_nanoseconds_and_the_machines_memory(tmp_path: Path):
    machine = Machine(tmp_path, "i915")
    counters = machine.counters()
    hwmon = machine.device / "hwmon/hwmon4"
    hwmon.mkdir(parents=True)
    for work, energy in ((10, 1_000_000), (10 + 900_000_000, 31_000_000)):
        machine.open(OWN, I915.format(id=1, work=work))
        (hwmon / "energy1_input").write_text(f"{energy}\n")
        (reading,) = counters.read({OWN}, 2.0)
    assert reading.own_busy == pytest.approx(0.45)
    assert reading.own_memory_bytes == 100 << 20
    assert reading.power_w == pytest.approx(15.0)


def test_amdgpu_has_the_whole_device_in_sysfs(tmp_path: Path):
    machine = Machine(tmp_path, "amdgpu")
    hwmon = machine.device / "hwmon/hwmon0"
    hwmon.mkdir(parents=True)
    files = {
        "gpu_busy_percent": "75", "mem_info_vram_used": str(3 << 20),
        "mem_info_vram_total": str(16 << 30), "product_name": "AMD Instinct MI300X",
        "hwmon/hwmon0/power1_average": "201000000",
    }  # fmt: skip
    for name, text in files.items():
        (machine.device / name).write_text(f"{text}\n")
    counters = machine.counters()
    (device,) = counters.devices
    assert (device.name, device.model) == ("cuda:0", "AMD Instinct MI300X")
    assert (device.memory_total_bytes, device.memory_before_bytes) == (16 << 30, 3 << 20)
    for work in (0, 500_000_000):
        machine.open(OWN, AMDGPU.format(id=1, work=work))
        (reading,) = counters.read({OWN}, 1.0)
    assert reading == (0.75, pytest.approx(0.5), 3 << 20, 2 << 20, 201.0)


def test_a_client_that_is_shared_with_a_child_is_the_programs(tmp_path: Path):
    machine = Machine(tmp_path, "i915")
    counters = machine.counters()
    for work in (0, 500_000_000):
        for pid in (OWN, OTHER):
            machine.open(pid, I915.format(id=1, work=work))
        (reading,) = counters.read({OTHER}, 1.0)
    assert (reading.own_busy, reading.busy) == (pytest.approx(0.5), pytest.approx(0.5))


def test_a_client_that_is_new_says_nothing_yet_and_other_files_are_not_read(tmp_path: Path):
    machine = Machine(tmp_path, "xe")
    counters = machine.counters()
    machine.open(OWN, XE.format(id=3, work=900, total=1000))
    machine.open(OWN, "drm-pdev: no", fd=7, path="/tmp/file")
    (reading,) = counters.read({OWN}, 1.0)
    assert (reading.own_busy, reading.own_memory_bytes) == (0.0, 2 << 20)


def test_machine_without_a_gpu(tmp_path: Path):
    counters = DrmCounters(root=str(tmp_path))
    assert (counters.devices, counters.read({OWN}, 1.0)) == ((), [])


@pytest.mark.parametrize("text", ["", "pos: 0\n", "drm-driver: xe\n", "drm-pdev: 0000:03:00.0\n"])
def test_files_that_name_no_client(text: str):
    assert parse_client(text) is None


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        (None, "cuda:1"), ("", None), ("-1", None), ("0", None), ("1", "cuda:0"), ("0,1", "cuda:1"),
        ("0, 1", "cuda:1"), ("GPU-ab", "cuda:0"), ("GPU-xy", None), ("-1,1", None),
    ],
)  # fmt: skip
def test_variable_that_hides_devices(visible: str | None, name: str | None):
    assert torch_name(1, "GPU-abcd", visible) == name
