# SPDX-License-Identifier: Apache-2.0
"""The model as one compiled graph, by torch.compile with frozen weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from xruntime.compilation.call_shapes import of_its_own
from xruntime.compilation.compiled_code import CompiledCode
from xruntime.compilation.inductor import first_line
from xruntime.errors import CompilationError, OptimizationError
from xruntime.optimization.module_order import hooks_of
from xruntime.optimization.outputs import with_tensors
from xruntime.optimization.runner import CallRunner
from xruntime.threads.torch_modes import Autocast


class CompiledGraph:
    """Calls compiled code; compiles for each number of threads and autocast that callers have.

    Unless the runner is strict, the modules are called where compiled code does not fit a call.
    """

    def __init__(
        self, model: nn.Module, runner: CallRunner, *, cpp_wrapper: bool, join_linears: bool
    ) -> None:
        self._model = model
        self._runner = runner
        self._cpp_wrapper = cpp_wrapper
        self._options = {"cpp.enable_concat_linear": True} if join_linears else {}
        self._codes: dict[tuple[int, Autocast | None], CompiledCode] = {}

    @property
    def graphs(self) -> int:
        """The number of graphs compiled so far."""
        return sum(code.graphs for code in self._codes.values())

    def compile_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises what torch raises where it cannot compile or run the call."""
        return self._finished(self._code()(args, kwargs))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs. Raises as `compile_and_call` if the runner is strict."""

        def plain() -> Any:
            with torch.no_grad():
                return self._runner.plain(self._model, args, kwargs)

        before = self.graphs
        if self._runner.strict:
            outputs = self._code()(args, kwargs)
        else:
            outputs = self._code().call_or(plain, self._report, args, kwargs)
        if self.graphs > before:
            if self._runner.norms_may_be_skipped:
                self._check_norms(plain)
            # These outputs are of the module as it is; those of code for other shapes may not be.
            self._runner.is_changed(thorough=True)
        return self._finished(outputs)

    def _check_norms(self, plain: Callable[[], Any]) -> None:
        """Raise OptimizationError if a call skips a folded norm, and call the modules from then on.

        They notice that, and compiled code does not.
        """
        try:
            plain()
        except OptimizationError as error:
            self._runner.compiled = None
            self._runner.warn("calls", str(error))
            raise

    def _finished(self, outputs: Any) -> Any:
        outputs = self._runner.modes.result(outputs)
        return outputs if torch.is_inference_mode_enabled() else _usual(outputs)

    def _code(self) -> CompiledCode:
        """Return the code for the calling thread's number of threads and autocast."""
        threads, autocast = key = (torch.get_num_threads(), self._runner.modes.autocast())
        code = self._codes.get(key)
        if code is None:
            made = CompiledCode(
                self._model,
                threads=threads,
                autocast=autocast,
                options=self._options,
                cpp_wrapper=self._cpp_wrapper,
                # Without the class's own __call__ and without hooks, which run around it.
                forward=self._runner.kind.forward,
            )
            code = self._codes.setdefault(key, made)
        return code

    def _report(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, CompilationError) else first_line(error)
        self._runner.warn("calls of this shape, and of others that cannot be compiled,", reason)


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


def graph_obstacle(model: nn.Module) -> str | None:
    """Why a model's modules cannot be compiled into one graph; None if they can be."""
    for name, module in model.named_modules():
        if module is not model and not all(map(_is_traceable, hooks_of(module))):
            return f"{name} has hooks, which compiled code would not run as they are"
    return None


def _is_traceable(hook: Any) -> bool:
    """Whether torch's compiler may trace a hook.

    transformers installs hooks that collect hidden states, and leaves them behind when a call has asked for
    some. It makes them for torch.compile, too: they do nothing in other calls.
    """
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"
