# SPDX-License-Identifier: Apache-2.0
"""Modules that cannot be compiled for streams, or not as they should be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime_ext.stream_threads import call_in_thread
from tests.runtime_ext.tiny_models import Chance, Holding
from torch import nn

from xruntime.errors import CompilationError, GILWarning, SampleError, ThreadCountError
from xruntime.kept.stream_code import StreamCode
from xruntime.streams.compiled_module import compile_for_streams

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiler")]


def test_wrong_results_are_found(compiler: None) -> None:
    with pytest.raises(
        CompilationError, match=r"Chance computes something else.*largest difference"
    ):
        compile_for_streams(Chance(), torch.zeros(3), threads=1)
    compiled = compile_for_streams(Chance(), torch.zeros(3), threads=1, tolerance=float("inf"))
    assert compiled.evidence.difference.absolute > 0


def test_code_that_another_thread_cannot_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: StreamCode, *call: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not in this thread")
        return real(self, *call)

    real = StreamCode.__call__
    monkeypatch.setattr(StreamCode, "__call__", refused)
    with pytest.raises(CompilationError, match="cannot run it: RuntimeError: not in this"):
        compile_for_streams(nn.Linear(3, 3).eval(), torch.zeros(2, 3), threads=1)


def test_module_in_several_graphs_is_warned_of() -> None:
    with pytest.warns(GILWarning, match="Holding was compiled in 2 graphs, with Python between"):
        compiled = compile_for_streams(Holding(), torch.ones(2, 4), threads=1)
    assert "with Python between them" in compiled.describe()


class Doubled(nn.Module):
    """Code of its own: torch remembers of each function which sizes varied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_what_torch_wrapped_is_compiled_from_its_module() -> None:
    model = Doubled().eval()
    # Without freezing, torch compiles it in this process, and has limits of its own.
    compiled = compile_for_streams(
        torch.compile(model), torch.ones(3, 4), threads=1, freezing=False
    )
    assert compiled.model is model

    known, more = torch.ones(3, 4), torch.ones(5, 4)

    def limited(batch: torch.Tensor) -> Any:
        with torch._dynamo.config.patch(recompile_limit=1):
            return compiled(batch)

    # Beyond torch's limit it would fall back to the eager module, and not say so.
    for _ in range(2):
        with pytest.raises(
            CompilationError, match=r"more shapes than torch.*pad the inputs .* compile_for_streams"
        ):
            call_in_thread(lambda: limited(more), team=1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(CompilationError, match="ran without compiled code"):
            call_in_thread(lambda: limited(known), team=1)
    finally:
        torch.set_default_dtype(before)
    call_in_thread(lambda: limited(known), team=1)


def test_what_cannot_be_compiled() -> None:
    sample = torch.ones(3, 2)
    linear = nn.Linear(2, 2).eval()

    def refused(error: type[Exception], text: str, *args: Any, **settings: Any) -> None:
        with pytest.raises(error, match=text):
            compile_for_streams(*args, **{"threads": 1, **settings})

    half_trained = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    half_trained[1].train()
    refused(CompilationError, r"training mode \(1\).*eval", half_trained, sample)
    scripted = torch.jit.trace(linear, sample)
    refused(CompilationError, "is a TorchScript module", scripted, sample)
    in_place = nn.Linear(2, 2).eval()
    in_place.compile()
    refused(CompilationError, "torch.compile wrapped in Python", in_place, sample)
    refused(CompilationError, "is a function", lambda x: x, sample)
    refused(CompilationError, "only an eager module can be compiled, not int", 3, sample)
    refused(
        CompilationError, 'weights on meta.*to."cpu"', nn.Linear(2, 2, device="meta").eval(), sample
    )
    refused(SampleError, "this is a list", linear, [sample])
    refused(SampleError, "holds no tensor", linear, (1, 2))
    refused(SampleError, r"args\[0\] of the sample is on meta", linear, sample.to("meta"))
    refused(SampleError, "at least 2 items.*has 1", linear, sample[:1], dynamic=True)
    refused(ThreadCountError, "threads=0", linear, sample, threads=0)
    refused(ThreadCountError, "threads=True", linear, sample, threads=True)
    refused(
        CompilationError, "dtype=torch.int8.*float32, bfloat16", linear, sample, dtype=torch.int8
    )
    refused(
        CompilationError, "cpp_wrapper has to be True", linear, sample, options={"cpp_wrapper": 0}
    )
    refused(CompilationError, "no such_option", linear, sample, options={"such_option": 1})


def test_missing_compiler_is_named(tmp_path: Path) -> None:
    absent = (None, str(tmp_path / "g++"))
    with pytest.raises(
        CompilationError, match=r"^Linear cannot be compiled: no C\+\+ compiler works. Install one"
    ):
        compile_for_streams(
            nn.Linear(2, 2).eval(), torch.ones(3, 2), threads=1, options={"cpp.cxx": absent}
        )
