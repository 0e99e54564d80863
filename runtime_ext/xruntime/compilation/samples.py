# SPDX-License-Identifier: Apache-2.0
"""What compiling for streams starts from: a sample of one stream's input, and its thread count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from xruntime.errors import SampleError, ThreadCountError
from xruntime.nests import leaves, place


class Sample(NamedTuple):
    """The arguments of one call.

    **Ex.:** ``Sample(args=(x,), kwargs={})`` stands for ``model(x)``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def sample_call(sample: object) -> Sample:
    """The call that `sample` stands for: a tensor, a tuple of arguments, or a dict of keywords.

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
            f"a sample of one stream's input is a tensor, a tuple of arguments or a dict of keyword"
            f" arguments, and this is a {type(sample).__name__}"
        )
    tensors = [(path, leaf) for path, leaf in _tensors(call)]
    if not tensors:
        raise SampleError(
            "the sample holds no tensor: give the input of one stream, of its real size"
        )
    for path, tensor in tensors:
        if tensor.device.type != "cpu":
            raise SampleError(
                f"{place(path)} of the sample is on {tensor.device}, and streams run on CPUs: give it"
                " .cpu()"
            )
    return call


def _tensors(call: Sample) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    for name, value in (("args", call.args), ("kwargs", call.kwargs)):
        for path, leaf in leaves(value, (name,)):
            if isinstance(leaf, torch.Tensor):
                yield path, leaf


def check_threads(threads: object) -> int:
    """`threads`, if it can be the number of threads of a stream; ThreadCountError if not."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ThreadCountError(
            f"threads={threads!r}: it is the number of cores that each stream will have, at least 1"
        )
    return threads


def wrong_thread_error(compiled: int, have: int) -> ThreadCountError:
    """Says that a thread has another number of threads than the code that it called."""
    threads, cores = ("thread", "core") if compiled == 1 else ("threads", "cores")
    return ThreadCountError(
        f"compiled for streams of {compiled} {threads} and called in a thread that has {have}: call it"
        f" through MultiStreamModule with streams of {compiled} {cores}, or inside pin() on as many"
        f" CPUs, or compile it with threads={have}"
    )
