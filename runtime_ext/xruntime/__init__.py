# SPDX-License-Identifier: Apache-2.0
"""Control of threads, CPUs and memory from inside a script.

    from xruntime import CPUPool, MultiStreamModule, Task, compile_for_streams, optimize, pin

    with pin(CPUPool("0-3")):          # this block: four threads, on CPUs 0 to 3
        model(batch)
    task = Task(model, CPUPool("4-7")) # in the background, on its own CPUs
    future = task(batch)
    fast = compile_for_streams(model, sample, threads=1)
    streams = MultiStreamModule(fast, num_streams=8)  # splits batches; one copy of the weights
    model = optimize(model, sample_input=batch)       # folds, compiles and checks, in one call
    model.to(device("auto"))           # a GPU if one works, and a line that says so

Nothing needs to be preloaded. torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xruntime.compilation.counters import report_counters_at_exit
from xruntime.errors import DeviceError, KernelsUnavailableError

if TYPE_CHECKING:
    from xruntime import allocator, nn, optim, optimization, quantization
    from xruntime.aoti.compiling import compile_package
    from xruntime.aoti.package import StreamPackage, load_package
    from xruntime.devices import DeviceProperties, describe_device, device, device_option
    from xruntime.optimization.front_end import optimize
    from xruntime.reporting import report
    from xruntime.streams.compiled_module import CompiledForStreams, compile_for_streams
    from xruntime.streams.hints import MultiStreamModuleHint
    from xruntime.streams.multi_stream_module import MultiStreamModule
    from xruntime.streams.task import Task
    from xruntime.threads.cpu_pool import (
        CPUPool,
        get_core_list_of_node_id,
        get_default_num_streams,
        is_runtime_ext_enabled,
    )
    from xruntime.threads.pinning import pin
    from xruntime.threads.team import OpenMPTeam, TeamMember, openmp_team
    from xruntime.threads.worker import TaskFuture

__all__ = [
    "CPUPool",
    "CompiledForStreams",
    "DeviceError",
    "DeviceProperties",
    "KernelsUnavailableError",
    "MultiStreamModule",
    "MultiStreamModuleHint",
    "OpenMPTeam",
    "StreamPackage",
    "Task",
    "TaskFuture",
    "TeamMember",
    "allocator",
    "compile_for_streams",
    "compile_package",
    "describe_device",
    "device",
    "device_option",
    "get_core_list_of_node_id",
    "get_default_num_streams",
    "is_runtime_ext_enabled",
    "load_package",
    "nn",
    "openmp_team",
    "optim",
    "optimization",
    "optimize",
    "pin",
    "quantization",
    "report",
]
__version__ = "0.1.0"

report_counters_at_exit()

_NAMES_OF = {
    "aoti.compiling": ("compile_package",),
    "aoti.package": ("StreamPackage", "load_package"),
    "devices": ("DeviceProperties", "describe_device", "device", "device_option"),
    "optimization.front_end": ("optimize",),
    "reporting": ("report",),
    "streams.compiled_module": ("CompiledForStreams", "compile_for_streams"),
    "streams.hints": ("MultiStreamModuleHint",),
    "streams.multi_stream_module": ("MultiStreamModule",),
    "streams.task": ("Task",),
    "threads.cpu_pool": (
        *("CPUPool", "get_core_list_of_node_id", "get_default_num_streams"),
        "is_runtime_ext_enabled",
    ),
    "threads.pinning": ("pin",),
    "threads.team": ("OpenMPTeam", "TeamMember", "openmp_team"),
    "threads.worker": ("TaskFuture",),
}
"""The modules of these names, which are imported when a name is first used."""


def __getattr__(name: str) -> Any:
    if name in ("allocator", "nn", "optim", "optimization", "quantization"):
        return _import_module(name)
    for module, names in _NAMES_OF.items():
        if name in names:
            return globals().setdefault(name, getattr(_import_module(module), name))
    raise AttributeError(f"module 'xruntime' has no attribute {name!r}")


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"xruntime.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"xruntime.{name} needs torch, which is not installed: pip install torch"
        raise ModuleNotFoundError(message, name="torch") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
