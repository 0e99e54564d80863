# SPDX-License-Identifier: Apache-2.0
"""`ipex.cpu.runtime`: xruntime's pools, pins, tasks and streams with the arguments of the extension.

Differences from xruntime: a `CPUPool` leaves out CPUs that the process may not use, with a warning, and
``num_streams="AUTO"`` is one stream for each core, without measuring. Nothing has to be preloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

import xruntime
from xlaunch.text import format_cpu_list
from xruntime.compat.ipex.replacements import missing
from xruntime.streams.hints import MultiStreamModuleHint
from xruntime.streams.multi_stream_module import AUTO
from xruntime.streams.multi_stream_module import MultiStreamModule as _MultiStreamModule
from xruntime.streams.task import Task as _Task
from xruntime.threads.cpu_choice import read_core_ids
from xruntime.threads.cpu_pool import (
    get_core_list_of_node_id,
    get_default_num_streams,
    is_runtime_ext_enabled,
)
from xruntime.threads.pinning import pin as _pin

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "CPUPool",
    "MultiStreamModule",
    "MultiStreamModuleHint",
    "Task",
    "get_core_list_of_node_id",
    "get_default_num_streams",
    "is_runtime_ext_enabled",
    "pin",
]


class _PoolType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, xruntime.CPUPool)


class CPUPool(metaclass=_PoolType):
    """Makes an `xruntime.CPUPool`, without the CPUs that this process may not use.

    core_ids
        CPU numbers; those that the process may not use are left out, with a warning.
    node_id
        A NUMA node, of which one CPU of each core is taken. Ignored, with a warning, beside `core_ids`.

    Without arguments, all CPUs that the process may use.
    Raises CPUPoolError (a ValueError) if no CPU is left, and for what is not a CPU or a node.
    """

    def __new__(  # type: ignore[misc]  # pools are xruntime's, which all its functions take
        cls, core_ids: str | Iterable[int] | None = None, node_id: int | None = None
    ) -> xruntime.CPUPool:
        if core_ids is None:
            return xruntime.CPUPool(node=node_id, smt=node_id is None)
        asked = list(read_core_ids(core_ids))
        if node_id is not None:
            warnings.warn(
                f"CPUPool({asked}, node_id={node_id!r}): node_id is ignored, because core_ids names the"
                " CPUs",
                stacklevel=2,
            )
        pool = xruntime.CPUPool(asked, strict=False)
        left_out = [cpu for cpu in asked if cpu not in pool]
        if left_out:
            warnings.warn(
                f"CPUPool({asked}): this process may not use {_named(left_out)}; the pool has"
                f" {_named(pool)}",
                stacklevel=2,
            )
        return pool


def _named(cpus: Collection[int]) -> str:
    """**Ex.:** ``CPU 1``, ``CPUs 0-3``."""
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {format_cpu_list(cpus)}"


class pin(_pin):  # noqa: N801 - it reads as a verb: `with pin(pool):`
    """`xruntime.pin` with the extension's name for its argument."""

    def __init__(self, cpu_pool: xruntime.CPUPool) -> None:
        super().__init__(cpu_pool)
        self.cpu_pool = cpu_pool


class Task(_Task[P, T]):
    """`xruntime.Task` with the extension's names for its arguments."""

    def __init__(self, module: Callable[P, T], cpu_pool: xruntime.CPUPool) -> None:
        super().__init__(module, cpu_pool)
        self.cpu_pool = cpu_pool


class MultiStreamModule(_MultiStreamModule):
    """`xruntime.MultiStreamModule` whose ``num_streams="AUTO"`` is one stream for each core.

    Without hints, dimension 0 of every tensor is the batch, and the first batch is compared with a call
    of the eager module on all of it.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        num_streams: int | str = AUTO,
        cpu_pool: xruntime.CPUPool | None = None,
        concat_output: bool = True,
        input_split_hint: MultiStreamModuleHint | None = None,
        output_concat_hint: MultiStreamModuleHint | None = None,
    ) -> None:
        super().__init__(
            model, num_streams, cpu_pool, concat_output, input_split_hint, output_concat_hint
        )
        # The number of streams stays: the extension did not measure.
        self._search = None


__getattr__ = missing(__name__)
