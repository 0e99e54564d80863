# SPDX-License-Identifier: Apache-2.0
"""Checks of the sample and the thread count that a module is compiled for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from xruntime.compilation.call_shapes import CallShape
from xruntime.errors import SampleError, ThreadCountError
from xruntime.pytrees import (
    Path,
    are_equal,
    leaves,
    parts,
    place,
    tensor_leaves,
    with_tensors,
)


class Sample(NamedTuple):
    """The arguments of one call.

    **Ex.:** ``Sample(args=(x,), kwargs={})`` stands for ``model(x)``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[tuple[Path, torch.Tensor]]:
        """Return the tensors among the arguments, with their paths."""
        return [*tensor_leaves(self.args, ("args",)), *tensor_leaves(self.kwargs, ("kwargs",))]

    def copied(self) -> Sample:
        """Return the same call on copies of its arguments, into which a model may write.

        Modules are not copied, and of arguments that cannot be copied only the tensors are.
        """
        arguments = [*self.args, *self.kwargs.values()]
        copies: dict[int, Any] = {
            id(leaf): leaf for _, leaf in leaves(arguments) if isinstance(leaf, torch.nn.Module)
        }
        tensors = [leaf for _, leaf in leaves(arguments, (), _inside) if torch.is_tensor(leaf)]
        copies |= {id(tensor): tensor.detach().clone() for tensor in tensors}
        try:
            copied = copy.deepcopy(arguments, dict(copies))
        except Exception:  # noqa: BLE001 - any error of an argument's own class
            copied = with_tensors(lambda tensor: copies[id(tensor)], arguments)
        count = len(self.args)
        return Sample(tuple(copied[:count]), dict(zip(self.kwargs, copied[count:], strict=True)))

    def is_unchanged(self, before: Sample) -> bool:
        """Whether the call holds what it held `before`; no if that cannot be told."""
        now, old = list(leaves(tuple(self))), list(leaves(tuple(before)))
        same = [path for path, _ in now] == [path for path, _ in old]
        return same and are_equal([value for _, value in now], [value for _, value in old])


def _inside(value: Any) -> Any:
    """The values of a nest or a dataclass; a nested tensor is one value, as those in it are made anew by each look."""
    return None if torch.is_tensor(value) else parts(value)


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

    def marked(value: torch.Tensor) -> torch.Tensor:
        if not value.dim():
            return value
        if value.shape[0] < 2:
            raise SampleError(
                f"dynamic=True needs a sample of at least 2 items, and one tensor has {value.shape[0]}:"
                " torch compiles separate code for sizes below 2"
            )
        plain: torch.Tensor = CallShape().plain(value.detach())
        dynamo.maybe_mark_dynamic(plain, 0)
        return plain

    return Sample(*with_tensors(marked, tuple(call)))


def checked_count(name: str, value: object, meaning: str) -> int:
    """Return a number of threads or calls, as it is. Raises ThreadCountError if it is not at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ThreadCountError(f"{name}={value!r}: {meaning}, at least 1, is expected")
    return value


def wrong_thread_error(compiled: int, have: int) -> ThreadCountError:
    """The error for a call in a thread whose number of threads is not the one that the code was compiled for."""
    threads, cores = ("thread", "core") if compiled == 1 else ("threads", "cores")
    return ThreadCountError(
        f"compiled for streams of {compiled} {threads} and called in a thread that has {have}: call it"
        f" through MultiStreamModule with streams of {compiled} {cores}, or inside pin() on as many"
        f" CPUs, or compile it with threads={have}"
    )
