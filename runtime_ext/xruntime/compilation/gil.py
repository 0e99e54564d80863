# SPDX-License-Identifier: Apache-2.0
"""The kind of callable that streams are given, and whether it holds the GIL."""

from __future__ import annotations

import enum
import sys
from typing import Any

import torch


class CallableKind(enum.Enum):
    """How a callable computes. The value is its name in messages: "16 streams of an eager module"."""

    EAGER = "an eager module"
    """Python calls one operator after the other.

    **Ex.:** ``torchvision.models.resnet50()``"""

    SCRIPT = "a TorchScript module"
    """torch's interpreter runs it without the GIL. TorchScript is deprecated since torch 2.11.

    **Ex.:** ``torch.jit.freeze(torch.jit.trace(model, sample))``"""

    COMPILED = "a module that torch.compile wrapped in Python"
    """The default of torch.compile: the GIL is held in the kernels that it generates, and released only
    in operators that it calls, such as convolutions.

    **Ex.:** ``torch.compile(model)``"""

    COMPILED_CPP = "a module that torch.compile wrapped in C++"
    """The GIL is released while it computes; it is compiled again in threads with another number of
    threads or another grad mode.

    **Ex.:** ``torch.compile(model, options={"cpp_wrapper": True})``"""

    COMPILED_FOR_STREAMS = "a module compiled for streams"
    """**Ex.:** ``compile_for_streams(model, sample, threads=4)``"""

    PACKAGE = "a package that is called without the GIL"
    """**Ex.:** ``load_package("model.pt2", runners=16)``"""

    PACKAGE_UNDER_GIL = "a package that torch calls under the GIL"
    """**Ex.:** ``torch._inductor.aoti_load_package("model.pt2")``"""

    FUNCTION = "a function"
    """Any other callable. Between operators Python holds the GIL.

    **Ex.:** ``lambda x: model(x).softmax(-1)``"""

    @property
    def holds_gil(self) -> bool:
        """Whether streams that call it wait for each other."""
        by_python = self in (CallableKind.EAGER, CallableKind.COMPILED, CallableKind.FUNCTION)
        return by_python or self is CallableKind.PACKAGE_UNDER_GIL


def gil_enabled() -> bool:
    """Whether this interpreter has a GIL."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def kind_of(module: object) -> CallableKind:
    """Return the kind of `module`, without calling, changing or importing anything.

    A module with a part that torch.compile wrapped in Python is CallableKind.COMPILED.
    """
    stated = getattr(module, "stream_kind", None)
    if isinstance(stated, CallableKind):
        return stated
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return CallableKind.SCRIPT
    if _is_torchs_package(module):
        return CallableKind.PACKAGE_UNDER_GIL
    parts = list(module.modules()) if isinstance(module, torch.nn.Module) else [module]
    compiled = [part for part in parts if _is_compiled(part)]
    if compiled:
        in_cpp = compiled[0] is module and all(_has_cpp_wrapper(part) for part in compiled)
        return CallableKind.COMPILED_CPP if in_cpp else CallableKind.COMPILED
    return CallableKind.EAGER if isinstance(module, torch.nn.Module) else CallableKind.FUNCTION


def _is_compiled(part: Any) -> bool:
    """Whether torch.compile returned it, or its own .compile() was called."""
    # torch._dynamo takes a second to import; if it is not imported, nothing was compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    if isinstance(part, torch.nn.Module):
        wrapper = getattr(dynamo, "OptimizedModule", None)
        in_place = getattr(part, "_compiled_call_impl", None) is not None
        return in_place or (wrapper is not None and isinstance(part, wrapper))
    return hasattr(part, "_torchdynamo_orig_callable")


def _has_cpp_wrapper(part: Any) -> bool:
    """Whether it was compiled with Inductor's wrapper in C++."""
    part = getattr(part, "_compiled_call_impl", None) or part
    ask = getattr(part, "get_compiler_config", None)
    # Returns the settings that the module was compiled with; None for other backends than Inductor.
    settings = ask() if callable(ask) else None
    return bool(settings and settings.get("cpp_wrapper"))


def _is_torchs_package(module: object) -> bool:
    package = sys.modules.get("torch.export.pt2_archive._package")
    loaded = getattr(package, "AOTICompiledModel", None)
    return isinstance(loaded, type) and isinstance(module, loaded)
