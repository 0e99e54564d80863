# SPDX-License-Identifier: Apache-2.0
"""Libraries without the compiler: programs that torch.export made of a model, run as they are.

What an export bakes in, compiled code has, too; and a test need not wait a minute for each.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from xruntime.compilation.inductor import compiling, first_line
from xruntime.kept.call_libraries import CallLibraries
from xruntime.kept.calls import Nest, Sizes
from xruntime.kept.library import NotCompiledError
from xruntime.kept.making import CompileJob, as_module, exported_program, served_sizes


class ExportedLibrary:
    """Stands for `xruntime.kept.library.Library`."""

    name, seconds, kept, is_running = "exported", 0.1, False, False

    def __init__(self, job: CompileJob) -> None:
        with compiling, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in the child
            program = exported_program(as_module(job), job)
        self.sizes = served_sizes(program)
        self.outputs: Nest | None = None
        self.compared: set[Sizes] = set()
        self.compared_contexts: set[tuple[Any, ...]] = set()
        self.calls = 0
        """Of the code."""

        self._graph: Any = program.module(check_guards=False)

    def __call__(self, tensors: list[Tensor], _sizes: Sizes | None = None) -> list[Tensor]:
        self.calls += 1
        with torch.no_grad():
            return list(self._graph(*[tensor.detach() for tensor in tensors]))


@pytest.fixture
def exported_code(monkeypatch: pytest.MonkeyPatch) -> list[ExportedLibrary]:
    """Let exported programs serve the calls, which take over at once. Returns them."""
    libraries: list[ExportedLibrary] = []

    def made(calls: CallLibraries, _store: Any, job: CompileJob, _nice: int) -> Any:
        assert calls.prefix  # from then on what the model's code reads is watched
        try:
            libraries.append(ExportedLibrary(job))
        except Exception as error:
            raise NotCompiledError(first_line(error), final=True) from error
        return libraries[-1]

    monkeypatch.setattr(CallLibraries, "_load_or_compile", made)
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", True)
    return libraries
