# SPDX-License-Identifier: Apache-2.0
"""Counters of GPUs.

NVIDIA's, by NVML: the Python package nvidia-ml-py, imported here only. Intel's and AMD's (drivers i915, xe,
amdgpu), by sysfs and /proc/PID/fdinfo: Documentation/gpu/drm-usage-stats.rst of the kernel for fdinfo, and
Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst for amdgpu's files in sysfs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from xlaunch.machine.gpus import DRIVERS, PCI_DRIVERS, bound_devices
from xlaunch.machine.processes import pid_namespace
from xlaunch.machine.tree import Tree
from xlaunch.report.device_use import Device, Reading

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""

INSTALL = (
    "NVIDIA's driver is here, but its counters cannot be read without the package nvidia-ml-py: "
    "pip install nvidia-ml-py"
)


class NvidiaCounters:
    """Reads every NVIDIA GPU of this machine.

    The driver names processes by their PIDs outside of containers, or not at all. So where this is
    not the initial PID namespace, its list says something only once it contains the program.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        """`variables`: the program's, which may hide devices."""
        self.devices: tuple[Device, ...] = ()
        self.others: list[set[int]] = []
        """PIDs of other processes seen on each device."""
        self.problem: str | None = None
        """Why NVIDIA's GPUs cannot be read, where there are any."""
        self._handles: list[Any] = []
        driver = os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")
        try:
            import pynvml
        except ImportError:
            self.problem = INSTALL if driver else None
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.problem = f"NVIDIA's counters cannot be read: {error}" if driver else None
            return
        for index in range(count):
            with contextlib.suppress(pynvml.NVMLError):  # one that has fallen off the bus
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self.devices += (self._describe(handle, index, variables),)
                self._handles.append(handle)
        self.others = [set() for _ in self._handles]
        self._names_ours = [pid_namespace() == INITIAL_PID_NAMESPACE] * len(self._handles)
        self._read_to_us = [0] * len(self._handles)
        self._own_part: list[float | None] = [None] * len(self._handles)

    def _describe(self, handle: Any, index: int, variables: Mapping[str, str]) -> Device:
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        model = self._ask(self._nvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"
        uuid = self._ask(self._nvml.nvmlDeviceGetUUID, handle) or ""
        name = torch_name(index, uuid, variables.get("CUDA_VISIBLE_DEVICES"))
        return Device(
            name=name or f"GPU {index}",
            model=model,
            source="NVML",
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_before_bytes=0 if memory is None else int(memory.used),
            hidden=name is None,
        )

    def read(self, own: Collection[int]) -> list[Reading]:
        """A reading of each device. `own`: PIDs of the program."""
        return [self._read_one(i, handle, own) for i, handle in enumerate(self._handles)]

    def _read_one(self, i: int, handle: Any, own: Collection[int]) -> Reading:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        busy = None if rates is None else min(1.0, rates.gpu / 100)
        own_busy, own_memory = None, None
        mine = [process for process in processes or () if process.pid in own]
        theirs = {process.pid for process in processes or ()} - set(own)
        if mine:
            self._names_ours[i] = True
        if processes is not None and self._names_ours[i]:
            self.others[i] |= theirs
            sizes = [process.usedGpuMemory for process in mine]
            own_memory = None if None in sizes else sum(sizes)
            if busy is not None:
                part = self._part_of(i, handle, own) if mine and theirs else float(bool(mine))
                own_busy = None if part is None else busy * part
        return Reading(
            busy=busy,
            own_busy=own_busy,
            memory_bytes=None if memory is None else int(memory.used),
            own_memory_bytes=own_memory,
            power_w=None if power_mw is None else power_mw / 1000,
        )

    def _part_of(self, i: int, handle: Any, own: Collection[int]) -> float | None:
        """The program's part of what all processes used since the last time, 0 to 1."""
        ask = self._nvml.nvmlDeviceGetProcessUtilization
        samples = self._ask(ask, handle, self._read_to_us[i]) or ()
        total = sum([sample.smUtil for sample in samples])
        if total:
            self._read_to_us[i] = max([sample.timeStamp for sample in samples])
            self._own_part[i] = sum([s.smUtil for s in samples if s.pid in own]) / total
        return self._own_part[i]

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of NVML; None where this driver or device has none."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def torch_name(index: int, uuid: str, visible: str | None) -> str | None:
    """The name of a GPU in a program with this CUDA_VISIBLE_DEVICES; None if it is hidden there.

    The order of `index` is that of PCI addresses, which CUDA uses among GPUs of one model. Devices
    after the first unknown one are hidden, see CUDA's documentation of the variable.
    """
    if visible is None:
        return f"cuda:{index}"
    for position, word in enumerate(map(str.strip, visible.split(","))):
        if word == str(index) or (word.startswith("GPU-") and uuid.startswith(word)):
            return f"cuda:{position}"
        if not word.isdigit() and not word.startswith(("GPU-", "MIG-")):
            return None
    return None


TORCH_NAMES = {"i915": "xpu", "xe": "xpu", "amdgpu": "cuda"}
"""torch's name for the devices of each driver; that of amdgpu is ROCm's."""

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
"""Units of sizes in fdinfo."""

_OWN_MEMORY = re.compile(r"vram|local|lmem")
"""Regions of memory on the device; the others are in the machine's."""
_KEY = re.compile(r"drm-(engine-capacity|engine|total-cycles|cycles|resident|total|memory)-(.+)")


class Client(NamedTuple):
    """One user of a device: an open file of a process, or several that share it."""

    address: str
    """**Ex.:** ``"0000:03:00.0"``."""
    id: str
    work: dict[str, int]
    """By engine: nanoseconds, or cycles where `total` has the engine."""
    total: dict[str, int]
    """By engine: cycles that have passed."""
    capacity: dict[str, int]
    """By engine: how many there are, if not one."""
    memory_bytes: int


class DrmCounters:
    """Reads every GPU of three drivers under one root."""

    def __init__(self, *, root: str = "/") -> None:
        self._tree = Tree(root)
        self._addresses: list[str] = []
        self._paths: list[str] = []
        devices: list[Device] = []
        counts: Counter[str] = Counter()
        bound = list(bound_devices(self._tree))
        for driver, address in [
            place for name in TORCH_NAMES for place in bound if place[0] == name
        ]:
            path, name = f"{DRIVERS}/{driver}/{address}", TORCH_NAMES[driver]
            if not self._tree.has_directory(path):
                continue
            self._addresses.append(address)
            self._paths.append(path)
            number = str(self._tree.read(f"{path}/device")).removeprefix("0x")
            model = self._tree.read(f"{path}/product_name")
            device = Device(
                name=f"{name}:{counts[name]}",
                model=model or f"{PCI_DRIVERS[driver].value} GPU {number}, {driver}",
                source="sysfs and fdinfo",
                memory_total_bytes=self._tree.read_int(f"{path}/mem_info_vram_total"),
                memory_before_bytes=self._tree.read_int(f"{path}/mem_info_vram_used") or 0,
            )
            counts[name] += 1
            devices.append(device)
        self.devices = tuple(devices)
        self.others: list[set[int]] = [set() for _ in devices]
        """PIDs of other processes seen on each device."""
        self._before: dict[tuple[str, str], Client] = {}
        self._energy: list[int | None] = [None] * len(devices)

    def read(self, own: Collection[int], passed_s: float) -> list[Reading]:
        """A reading of each device. `own`: PIDs of the program; `passed_s`: since the last call."""
        if not self.devices:
            return []
        users: dict[tuple[str, str], tuple[Client, bool]] = {}
        for pid in self._tree.numbered("/proc", ""):
            for client in self._clients_of(pid):
                # A file that several processes share is one client: the program's if any of them is.
                key = client.address, client.id
                users[key] = (client, pid in own or (key in users and users[key][1]))
                if pid not in own and client.address in self._addresses:
                    self.others[self._addresses.index(client.address)].add(pid)
        readings = [
            self._read_one(i, [user for user in users.values() if user[0].address == address], passed_s)
            for i, address in enumerate(self._addresses)
        ]  # fmt: skip
        self._before = {key: client for key, (client, _) in users.items()}
        return readings

    def _read_one(self, i: int, users: list[tuple[Client, bool]], passed_s: float) -> Reading:
        path = self._paths[i]
        shares = [(self._shares(client, passed_s), is_own) for client, is_own in users]
        own_busy = _busiest([share for share, is_own in shares if is_own])
        percent = self._tree.read_int(f"{path}/gpu_busy_percent")
        seen = _busiest([share for share, _ in shares])
        busy = seen if percent is None else max(own_busy, min(1.0, percent / 100))
        own_memory = sum([client.memory_bytes for client, is_own in users if is_own])
        used = self._tree.read_int(f"{path}/mem_info_vram_used")
        if used is None:
            used = sum([client.memory_bytes for client, _ in users])
        return Reading(busy, own_busy, used, own_memory, self._power_w(i, passed_s))

    def _shares(self, client: Client, passed_s: float) -> dict[str, float]:
        """The share of each engine that a client used since the last call."""
        before = self._before.get((client.address, client.id))
        if before is None:
            return {}
        shares = {}
        for engine, work in client.work.items():
            done = work - before.work.get(engine, work)
            if engine in client.total:
                passed = float(client.total[engine] - before.total.get(engine, 0))
            else:
                passed = passed_s * 1e9
            if passed > 0:
                shares[engine] = max(0.0, done / passed / client.capacity.get(engine, 1))
        return shares

    def _power_w(self, i: int, passed_s: float) -> float | None:
        """From hwmon: micro-watts of amdgpu, micro-joules of i915 and xe."""
        for name in self._tree.names(f"{self._paths[i]}/hwmon"):
            path = f"{self._paths[i]}/hwmon/{name}"
            for file in ("power1_average", "power1_input"):
                power_uw = self._tree.read_int(f"{path}/{file}")
                if power_uw is not None:
                    return power_uw / 1e6
            energy_uj = self._tree.read_int(f"{path}/energy1_input")
            before, self._energy[i] = self._energy[i], energy_uj
            if energy_uj is not None and before is not None and passed_s > 0:
                return max(0, energy_uj - before) / 1e6 / passed_s
        return None

    def _clients_of(self, pid: int) -> Iterable[Client]:
        for name in self._tree.names(f"/proc/{pid}/fdinfo"):
            if (self._tree.target(f"/proc/{pid}/fd/{name}") or "").startswith("/dev/dri/"):
                client = parse_client(self._tree.read(f"/proc/{pid}/fdinfo/{name}") or "")
                if client is not None:
                    yield client


def parse_client(text: str) -> Client | None:
    """One file of /proc/PID/fdinfo; None if it is not of a GPU's driver, or names no client."""
    values = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}  # fmt: skip
    if "drm-pdev" not in values or "drm-client-id" not in values:
        return None
    numbers: dict[str, dict[str, int]] = {}
    for key, value in values.items():
        match = _KEY.fullmatch(key)
        number, _, unit = value.partition(" ")
        if match and number.isdecimal():
            numbers.setdefault(match[1], {})[match[2]] = int(number) * UNITS.get(unit, 1)
    # The newest key that the driver has: drm-memory- is the old name of drm-resident-.
    memory = numbers.get("resident") or numbers.get("memory") or numbers.get("total", {})
    on_device = [size for region, size in memory.items() if _OWN_MEMORY.search(region)]
    return Client(
        address=values["drm-pdev"],
        id=values["drm-client-id"],
        work={**numbers.get("engine", {}), **numbers.get("cycles", {})},
        total=numbers.get("total-cycles", {}),
        capacity=numbers.get("engine-capacity", {}),
        # A device without memory of its own uses the machine's.
        memory_bytes=sum(on_device or memory.values()),
    )


def _busiest(shares: list[dict[str, float]]) -> float:
    """The share of the busiest engine, over all clients."""
    sums: dict[str, float] = {}
    for share in shares:
        for engine, value in share.items():
            sums[engine] = sums.get(engine, 0.0) + value
    return min(1.0, max(sums.values(), default=0.0))
