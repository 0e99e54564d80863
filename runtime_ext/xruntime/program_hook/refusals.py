# SPDX-License-Identifier: Apache-2.0
"""Reasons why a module, or one of its calls, is not optimized."""

from __future__ import annotations

import sys
from typing import Any

import torch

from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.optimization.optimized_module import OptimizedModule
from xruntime.pytrees import CONSTANT_TYPES, described, leaves, place, tensor_leaves

PLAIN = tuple(CONSTANT_TYPES)
"""Types of arguments and outputs, besides tensors, that no call can change."""

COMPILERS = (
    "xruntime",
    "torch.jit",
    "torch.export",
    "torch.fx",
    "torch._dynamo",
    "torch._inductor",
)
"""Packages that call a module to compile it, or to compare it with its compiled form."""

TRAINS = (
    "it runs in training mode. A script that trains calls xruntime.optimize(model, optimizer=optimizer,"
    " dtype=torch.bfloat16): fused steps of the optimizer, weights in bf16, dropouts on all cores"
)

Form = tuple[Any, ...]
"""What an optimized form is for: each argument's place, and its dtype and rank or plain value."""


class UnfitError(Exception):
    """A module has no optimized form, or its form can no longer be used.

    The text is the reason; without one it is not reported. The module is left alone for good.
    """


class NotYetError(UnfitError):
    """One call cannot be optimized, but the next may be: a first call often fills caches of the module."""


class PipelineError(UnfitError):
    """The module passes one object from part to part. The parts may be optimized.

    **Ex.:** a SentenceTransformer, whose parts add their outputs to one dict.
    """


class DifferentError(UnfitError):
    """The outputs of the optimized form differ from the module's."""


class SlowerError(UnfitError):
    """A call of the optimized form takes longer than one of the module."""


def module_refusal(module: torch.nn.Module) -> UnfitError | None:
    """Return why `module` is left alone for all arguments; None if it can be optimized."""
    kind = kind_of(module)
    if kind is not CallableKind.EAGER:
        return UnfitError(f"it is {kind.value} already")
    own_call = type(module).__call__ is not torch.nn.Module.__call__
    if own_call and not isinstance(module, torch.fx.GraphModule):
        return UnfitError("its class has a __call__ of its own")
    parts = list(module.modules())
    if any(isinstance(part, OptimizedModule) for part in parts):
        return UnfitError("the program uses xruntime.optimize")
    ours = [part for part in parts if type(part).__module__.partition(".")[0] == "xruntime"]
    if ours:
        return UnfitError(f"the program uses xruntime's {type(ours[0]).__name__}")
    parameters = list(module.parameters())
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in parameters):
        return NotYetError()
    if not parameters:
        return UnfitError()
    if len(parts) == 1 and type(module).__module__.startswith("torch.nn."):
        return UnfitError("the program calls a single layer of torch's")
    if any(part.training for part in parts):
        return UnfitError(TRAINS)
    tensors = [*parameters, *module.buffers()]
    unusual = [
        tensor for tensor in tensors if type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    ]
    if unusual:
        return UnfitError(f"it holds a {type(unusual[0]).__name__}, not plain tensors")
    elsewhere = [tensor.device for tensor in tensors if tensor.device.type != "cpu"]
    return NotYetError(f"it is on {elsewhere[0]}, not on the CPU") if elsewhere else None


def caller_refusal() -> UnfitError | None:
    """Refuse calls by one of `COMPILERS`, at any depth of the stack."""
    frame = sys._getframe()  # noqa: SLF001 - quicker by far than module inspect
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
        if name.startswith("xruntime.program_hook"):
            continue
        for compiler in COMPILERS:
            if f"{name}.".startswith(f"{compiler}."):
                return UnfitError(f"the program uses {compiler}")
    return None


def mode_refusal(module: torch.nn.Module, args: Any, kwargs: Any) -> UnfitError | None:
    """Return why a call cannot run an optimized form under torch's modes as they are."""
    if torch.is_autocast_enabled("cpu"):
        return NotYetError("the program chose autocast")
    if torch.is_grad_enabled():
        inputs = [tensor for _, tensor in tensor_leaves((args, kwargs))]
        if any(tensor.requires_grad for tensor in (*inputs, *module.parameters())):
            reason = "gradients are on; torch.inference_mode() or torch.no_grad() turns them off"
            return NotYetError(reason)
    return None


def form_of(**values: Any) -> Form:
    """Return the form of arguments, or of outputs. Raises NotYetError for what a call may change.

    **Ex.:** ``form_of(args=(x,), kwargs={})``
    """
    form: list[Any] = []
    for path, value in [leaf for name in values for leaf in leaves(values[name], (name,))]:
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            if value.device.type != "cpu" or value.layout is not torch.strided:
                raise NotYetError(f"{place(path)} is {value.layout} on {value.device}")
            form.append((path, value.dtype, value.dim()))
        elif isinstance(value, PLAIN):
            form.append((path, type(value), value))
        else:
            raise NotYetError(f"{place(path)} is {described(value)}, which a call may change")
    return tuple(form)


def sizes_of(args: Any, kwargs: Any) -> tuple[torch.Size, ...]:
    """Return the shapes of all tensors of a call."""
    return tuple([tensor.shape for _, tensor in tensor_leaves((args, kwargs))])
