# SPDX-License-Identifier: Apache-2.0
"""The model as one compiled graph: by torch.compile with frozen weights, or as an AOTInductor package."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from xruntime.compilation.call_shapes import of_its_own
from xruntime.compilation.compiled_code import CompiledCode
from xruntime.compilation.samples import Sample
from xruntime.errors import CompilationError
from xruntime.optimization.outputs import with_tensors
from xruntime.optimization.sequences import has_hooks
from xruntime.optimization.work import Modes
from xruntime.packages.compiling import compile_package
from xruntime.packages.package import load_package
from xruntime.threads.modes import Autocast

GRAPHS: Final = {
    "auto": "compile_cpp if the model can be compiled here, else none",
    "none": "the modules are called one by one",
    "compile": "torch.compile with frozen weights",
    "compile_cpp": "torch.compile with frozen weights and a wrapper in C++",
    "package": "an AOTInductor package, for calls of the sample's shape only",
}
"""The values of `graph`, and what each means."""


class SlowCallWarning(UserWarning):
    """A call of an optimized module was computed without compiled code."""


class CompiledGraph:
    """Calls compiled code; compiles for each number of threads and autocast that callers have.

    fallback
        Call the modules, and warn once, where torch cannot compile a call of a new shape.
    """

    def __init__(
        self,
        model: nn.Module,
        modes: Modes,
        *,
        cpp_wrapper: bool,
        join_linears: bool,
        fallback: bool,
    ) -> None:
        self._model = model
        self._modes = modes
        self._cpp_wrapper = cpp_wrapper
        self._options = {"cpp.enable_concat_linear": True} if join_linears else {}
        self._fallback = fallback
        self._warned = False
        self._codes: dict[tuple[int, Autocast | None], CompiledCode] = {}

    @property
    def graphs(self) -> int:
        """The number of graphs compiled so far."""
        return sum(code.graphs for code in self._codes.values())

    def compile_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises CompilationError where torch cannot compile the call."""
        outputs = self._modes.result(self._code()(args, kwargs))
        return outputs if torch.is_inference_mode_enabled() else _usual(outputs)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises CompilationError, unless it falls back."""
        try:
            return self.compile_and_call(args, kwargs)
        except CompilationError as error:
            if not self._fallback:
                raise
            self._warn(error)
            with torch.no_grad(), self._modes.entered():
                return self._modes.result(self._model(*args, **kwargs))

    def _code(self) -> CompiledCode:
        """Return the code for the calling thread's number of threads and autocast."""
        threads, autocast = key = (torch.get_num_threads(), self._modes.autocast())
        code = self._codes.get(key)
        if code is None:
            made = CompiledCode(
                self._model,
                threads=threads,
                autocast=autocast,
                options=self._options,
                cpp_wrapper=self._cpp_wrapper,
            )
            code = self._codes.setdefault(key, made)
        return code

    def _warn(self, error: CompilationError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a call is computed without compiled code, and so may others be: {error}",
                SlowCallWarning,
                stacklevel=5,
            )


def _usual(outputs: Any) -> Any:
    """Return outputs as tensors that may be changed in place outside of inference mode, too."""
    made: dict[int, torch.Tensor] = {}

    def usual(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_inference() or tensor.layout is not torch.strided:
            return tensor
        if id(tensor) not in made:
            made[id(tensor)] = of_its_own(tensor)
        return made[id(tensor)]

    return with_tensors(usual, outputs)


class _UnderAutocast(nn.Module):
    """Calls a module under autocast, which becomes a part of the exported program."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.model(*args, **kwargs)


class Package:
    """Calls an AOTInductor package of the model."""

    def __init__(self, model: nn.Module, modes: Modes, call: Sample) -> None:
        autocast = modes.autocast()
        module = model if autocast is None else _UnderAutocast(model, autocast.dtype)
        self._modes = modes
        with tempfile.TemporaryDirectory(prefix="xruntime-optimize-") as directory:
            path = Path(directory, f"{type(model).__name__}.pt2")
            compile_package(module, call, path, threads=torch.get_num_threads())
            self._package = load_package(path, runners=1)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises what `StreamPackage` raises, for example for other shapes."""
        return self._modes.result(self._package(*args, **kwargs))


def graph_obstacle(model: nn.Module) -> str | None:
    """Why a model's modules cannot be compiled into one graph; None if they can be."""
    for name, module in model.named_modules():
        if module is not model and has_hooks(module):
            return f"{name} has hooks, which compiled code would not run as they are"
    return None
