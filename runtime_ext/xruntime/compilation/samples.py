# SPDX-License-Identifier: Apache-2.0
"""Checks of the sample and the thread count that a module is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from xruntime.compilation.call_shapes import CallShape
from xruntime.errors import SampleError, ThreadCountError
from xruntime.pytrees import Path, mapped, place, tensor_leaves


class Sample(NamedTuple):
    """The arguments of one call.

    **Ex.:** ``Sample(args=(x,), kwargs={})`` stands for ``model(x)``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[tuple[Path, torch.Tensor]]:
        """Return the tensors among the arguments, with their paths."""
        return [*tensor_leaves(self.args, ("args",)), *tensor_leaves(self.kwargs, ("kwargs",))]


def sample_call(sample: object) -> Sample:
    """Return the call that `sample` describes: a tensor, a tuple of arguments, or a dict of keywords.

    Raises SampleError for anything else, and for tensors that are not on the CPU.
    """
    if isinstance(sample, Sample):
        call = sample
    elif isinstance(sample, torch.Tensor):
        call = Sample((sample,), {})
    elif isinstance(sample, tuple):
        call = Sample(tuple(sample), {})
    elif isinstance(sample, Mapping) and all(isinstance(key, str) for key in sample):
        call = Sample((), dict(sample))
    else:
        raise SampleError(
            f"a sample is a tensor, a tuple of arguments or a dict of keyword arguments, and this is a"
            f" {type(sample).__name__}"
        )
    tensors = call.tensors()
    if not tensors:
        raise SampleError(
            "the sample holds no tensor: give the input of one stream, in its real size"
        )
    for path, tensor in tensors:
        if tensor.device.type != "cpu":
            raise SampleError(
                f"{place(path)} of the sample is on {tensor.device}: move it to the CPU by .cpu()"
            )
    return call


def with_varying_sizes(call: Sample) -> Sample:
    """Return the same call on other tensor objects, marked so that dimension 0 may vary.

    Raises SampleError for tensors with fewer than 2 items.
    """
    import torch._dynamo as dynamo

    def marked(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        if value.shape[0] < 2:
            raise SampleError(
                f"dynamic=True needs a sample of at least 2 items, and one tensor has {value.shape[0]}:"
                " torch compiles separate code for sizes below 2"
            )
        value = CallShape().plain(value.detach())
        dynamo.maybe_mark_dynamic(value, 0)
        return value

    return Sample(mapped(marked, call.args), mapped(marked, call.kwargs))


def check_threads(threads: object) -> int:
    """Check the number of threads of a stream and return it. Raises ThreadCountError."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ThreadCountError(
            f"threads={threads!r}: the number of cores of each stream, at least 1, is expected"
        )
    return threads


def wrong_thread_error(compiled: int, have: int) -> ThreadCountError:
    """The error for a call in a thread whose number of threads is not the one that the code was
    compiled for.
    """
    threads, cores = ("thread", "core") if compiled == 1 else ("threads", "cores")
    return ThreadCountError(
        f"compiled for streams of {compiled} {threads} and called in a thread that has {have}: call it"
        f" through MultiStreamModule with streams of {compiled} {cores}, or inside pin() on as many"
        f" CPUs, or compile it with threads={have}"
    )
