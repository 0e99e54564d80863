# SPDX-License-Identifier: Apache-2.0
"""An INT8 module: the exported graph with quantized weights, compiled for each number of threads."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, Self

import torch
from torch.export import ExportedProgram

from xruntime.compilation.compiled_code import CompiledCode
from xruntime.compilation.gil import CallableKind
from xruntime.compilation.inductor import compiling
from xruntime.errors import QuantizationError
from xruntime.quantization.recipe import QuantConf
from xruntime.quantization.signatures import Signature

MAX_OWN_CODES: Final = 8
"""Shapes that get code of their own, for each number of threads. Inductor's INT8 kernels are several
times slower in code whose sizes may vary, which the next shape gets."""

MAX_CODES: Final = 64


def in_eval_mode(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Let a graph module of torch.export be asked for eval mode, which it has, and return it."""
    # torch.export forbids .train() and .eval(), though nothing in the graph depends on them.
    for method in ("train", "eval"):
        vars(graph).pop(method, None)
    graph.eval()
    return graph


class QuantizedModule(torch.nn.Module):
    """A module in INT8. Called like the module that it was made from; made by `convert` or `load`.

    The first call with a new shape, or in a thread with another number of threads, compiles; the very
    first one is compared with the graph run operator by operator. Any number of threads may call at once;
    one at a time compiles. Calls run in inference mode and without autocast, whatever the caller's modes.

    A call raises QuantizationError for inputs of another dtype or of sizes that were exported as fixed,
    CompilationError if it cannot be compiled or computes something else.
    """

    conf: QuantConf
    """The recipe that it was made by."""

    stream_kind: Final = CallableKind.COMPILED_CPP

    def __init__(self, exported: ExportedProgram, conf: QuantConf, name: str) -> None:
        super().__init__()
        self.exported = exported
        self.conf = conf
        self.name = name
        model = in_eval_mode(exported.module(check_guards=False))
        # Under torch.compile's name for it: compile_for_streams() and MultiStreamModule look there.
        self._orig_mod = model
        self._signature = Signature(exported, name)
        self._codes: dict[int, _Code] = {}
        self._compared = False
        self.training = False

    @property
    def model(self) -> torch.nn.Module:
        """The graph as an eager module, which computes in float what the INT8 kernels compute."""
        return self._orig_mod

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed in INT8."""
        args, kwargs = self._signature.check(args, kwargs)
        code = self._codes.get(torch.get_num_threads())
        if code is None:
            return self._first_call(args, kwargs)
        return code(args, kwargs)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of `model`, which is slow and differs by rounding only."""
        args, kwargs = self._signature.check(args, kwargs)
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            return self._orig_mod(*args, **kwargs)

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        threads = torch.get_num_threads()
        with compiling:
            code = self._codes.get(threads)
            if code is None:
                code = _Code(self._orig_mod, threads=threads)
                code.name = self.name
                outputs = code(args, kwargs)
                if not self._compared:
                    code.compare_outputs(code.eager(args, kwargs), outputs)
                    self._compared = True
                self._codes[threads] = code
                return outputs
        return code(args, kwargs)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode. Raises QuantizationError for training mode."""
        if mode:
            self._refuse("trained: train the original module, then calibrate and convert it again")
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._refuse("moved or cast: its weights are part of compiled code")

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Raises QuantizationError: the weights are part of compiled code."""
        self._refuse(
            "given other weights: load them into the original module, then convert it again"
        )

    def __reduce__(self) -> NoReturn:
        self._refuse("pickled or copied: use xruntime.quantization.save and load")

    def _refuse(self, what: str) -> NoReturn:
        raise QuantizationError(f"{self.name} in INT8 cannot be {what}")


class _Code(CompiledCode):
    """Compiled code of an INT8 graph, for one number of threads."""

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        from torch._dynamo import config

        own = len(self._entry.seen) < MAX_OWN_CODES
        limit = {"automatic_dynamic_shapes": not own, "recompile_limit": MAX_CODES}
        with super()._settings(), config.patch(limit), warnings.catch_warnings():
            # Inductor copies zero points in a way that torch warns of.
            warnings.filterwarnings("ignore", message="To copy construct from a tensor")
            yield
