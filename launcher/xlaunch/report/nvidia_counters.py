# SPDX-License-Identifier: Apache-2.0
"""Counters of NVIDIA's GPUs, by NVML: the Python package nvidia-ml-py, imported here only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from xlaunch.machine.processes import pid_namespace
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
        found = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        busy = None if rates is None else min(1.0, rates.gpu / 100)
        own_busy, own_memory = None, None
        mine = [process for process in found or () if process.pid in own]
        theirs = {process.pid for process in found or ()} - set(own)
        if mine:
            self._names_ours[i] = True
        if found is not None and self._names_ours[i]:
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
