# SPDX-License-Identifier: Apache-2.0
"""The arguments of `optimize`, checked before anything is done."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypedDict

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from xruntime.compilation.gil import kind_of
from xruntime.compilation.inductor import eager_module
from xruntime.compilation.samples import Sample, sample_call
from xruntime.errors import OptimizationError
from xruntime.generation.language_models import generates
from xruntime.generation.linear_rows import available
from xruntime.generation.packed_weights import BITS
from xruntime.optimization.optimized_module import OptimizedModule
from xruntime.optimization.steps import INFERENCE, TRAINING, is_explained, is_for_training
from xruntime.pytrees import place

LEVELS: Final = ("O0", "O1")
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


GRAPHS: Final = {
    "auto": "a library that is compiled aside and kept for the next start; until then as with none",
    "none": "the modules are called one by one",
}
"""The values of `graph`, and what each means."""

REMOVED_GRAPHS: Final = ("compile", "compile_cpp")


class OptimizeOptions(TypedDict, total=False):
    """The options of `optimize`, which describes them; their defaults are those of `OptimizeRequest`."""

    dtype: torch.dtype | None
    sample_input: Any
    level: str
    inplace: bool
    graph: str
    measure: bool
    wait: bool
    passes: Mapping[str, bool] | None
    tolerance: float | None
    keep_weights: bool
    weight_bits: int | None
    head_bits: int | None


class OptimizeRequest(NamedTuple):
    """What the caller of `optimize` asked for."""

    model: Any
    sample_input: Any = None
    training: bool = False
    dtype: torch.dtype | None = None
    level: str = "O1"
    inplace: bool = False
    graph: str = "auto"
    measure: bool = False
    wait: bool = False
    passes: Mapping[str, bool] | None = None
    tolerance: float | None = None
    keep_weights: bool = True
    weight_bits: int | None = None
    head_bits: int | None = None
    autocast_outputs: bool = False
    """Whether outputs stay in `dtype` where the caller's autocast makes the model's own outputs so."""
    call: Sample | None = None
    """The call that the sample describes, once it is checked."""

    def obstacle(self, name: str) -> str | None:
        """Why a pass is off; None if it is on."""
        switches = self.passes or {}
        if name in switches:
            return None if switches[name] else "switched off"
        return "level O0" if self.level == "O0" else None


def checked(asked: OptimizeRequest) -> OptimizeRequest:
    """Check the arguments. Raises OptimizationError, SampleError, CompilationError."""
    model, training, dtype, level, graph = asked.model, *asked[2:5], asked.graph
    if not isinstance(model, nn.Module):
        raise OptimizationError(
            f"optimize() takes a torch.nn.Module, and this is a {type(model).__name__}"
        )
    original = getattr(model, "_orig_mod", None)
    if not isinstance(original, nn.Module):
        original = model
    if is_for_training(original) and not training:
        if asked.inplace:
            raise OptimizationError(
                f"this {type(original).__name__} is optimized for training, and its optimizer may hold a"
                " part of its weights: leave inplace out, and a copy of it is optimized"
            )
        model = original = copy.deepcopy(original)
    if is_explained(original):
        raise OptimizationError(
            f"this {type(original).__name__} is optimized already: give optimize() the original module"
        )
    for name, part in original.named_modules():
        if isinstance(part, OptimizedModule):
            raise OptimizationError(
                f"{name} of this {type(original).__name__} is optimized already: put the original module"
                " there, and optimize the whole"
            )
    for name, tensor in (*original.named_parameters(), *original.named_buffers()):
        if is_lazy(tensor):
            raise OptimizationError(
                f"{name} of this {type(original).__name__} gets its size in the first call: call the model"
                " before optimize()"
            )
    _check_choice("level", level, LEVELS)
    if graph in REMOVED_GRAPHS:
        raise OptimizationError(
            f"graph={graph!r} was removed: call torch.compile(optimize(model, graph='none', ...)), or let"
            " graph='auto' compile at once by wait=True"
        )
    _check_choice("graph", graph, tuple(GRAPHS))
    tolerance: Any = asked.tolerance
    passes: Any = asked.passes or {}
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
        raise OptimizationError(
            f"tolerance={tolerance!r}: a number of at least 0 is expected, or None for the precision's own"
        )
    if not isinstance(passes, Mapping) or not all(isinstance(it, bool) for it in passes.values()):
        raise OptimizationError(
            f"passes={passes!r}: a dict of True and False by the names of passes is expected, for example"
            " {'join_linears': False}"
        )
    known = TRAINING if training else INFERENCE
    for name in passes:
        if name not in known:
            raise OptimizationError(
                f"passes: there is no {name!r} for {'training' if training else 'inference'}; allowed are"
                f" {', '.join(known)}"
            )
    allowed = DTYPES[:2] if training else DTYPES
    if dtype is not None and dtype not in allowed:
        raise OptimizationError(
            f"dtype={dtype}: allowed{' for training' if training else ''} are"
            f" {', '.join(str(one).removeprefix('torch.') for one in allowed)}, or None to leave it"
        )
    if level == "O0" and dtype is not None:
        raise OptimizationError(
            f"level='O0' changes no numerics, and dtype={dtype} would: use level='O1', with passes={{...}}"
            " to switch others off"
        )
    _check_bits(asked)
    unsampled = asked.sample_input is None
    if asked.wait and (training or graph != "auto" or level == "O0" or unsampled):
        raise OptimizationError(
            "wait=True is for inference with graph='auto', level='O1' and sample_input: leave it out"
        )
    call = None if unsampled else live_call(asked.sample_input)
    if call is None and asked.measure:
        raise OptimizationError("measure=True needs sample_input: the arguments of one call")
    if training:
        if asked.measure:
            raise OptimizationError("measure=True is for inference: leave it out with an optimizer")
        if original is not model or isinstance(model, torch.jit.ScriptModule):
            raise OptimizationError(
                f"this {type(model).__name__} is {kind_of(model).value}: give optimize() the module that it"
                " was made from, and call torch.compile on the model that optimize() returns"
            )
    else:
        _check_modes(original)
        model = eager_module(model)
    if "forward" in model.__dict__:
        raise OptimizationError(
            f"forward was replaced on this {type(model).__name__} object, as some libraries do: remove that"
            " (accelerate: remove_hook_from_module), or optimize the module before"
        )
    return asked._replace(model=model, call=call)


def _check_bits(asked: OptimizeRequest) -> None:
    """Check `weight_bits` and `head_bits`, and that the model and the other arguments go with them."""
    model, bits = asked.model, asked.weight_bits
    for name, value in (("weight_bits", bits), ("head_bits", asked.head_bits)):
        if value is not None and (isinstance(value, bool) or value not in BITS):
            raise OptimizationError(
                f"{name}={value!r}: allowed are 8 and 4, or None to keep the weights' precision"
            )
    if bits is None:
        if asked.head_bits is not None:
            raise OptimizationError(f"head_bits={asked.head_bits} goes with weight_bits: give both")
        return
    asking, what = f"weight_bits={bits}", type(model).__name__
    if asked.training:
        raise OptimizationError(f"{asking} is for inference: leave it out with an optimizer")
    if not generates(model):
        raise OptimizationError(
            f"{asking} is for language models with transformers' generate(), and this is a {what}"
        )
    if asked.level == "O0":
        raise OptimizationError(f"level='O0' changes no numerics, and {asking} would: use 'O1'")
    if asked.sample_input is not None:
        raise OptimizationError(
            f"{asking} changes outputs by more than a comparison allows: leave sample_input out"
        )
    dtypes = {it.dtype for it in model.parameters() if it.is_floating_point()}
    for dtype in (asked.dtype, *dtypes):
        if dtype not in (None, torch.float32, torch.bfloat16):
            raise OptimizationError(
                f"{asking} computes in float32 or bfloat16, and not in {dtype}: load the model with"
                " dtype=torch.bfloat16"
            )
    if not available():
        raise OptimizationError(
            f"{asking} needs the native library: see python -m xruntime kernels"
        )


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptimizationError(
            f"{name}={value!r}: allowed are {', '.join(repr(one) for one in allowed)}"
        )


def live_call(sample: Any) -> Sample:
    """Return the call that `sample_input` describes.

    A tensor, a tuple of arguments, a dict of keyword arguments, or a pair (args, kwargs) of both. A tuple
    of a tuple and a dict with strings as keys is such a pair. Raises SampleError.
    """
    if type(sample) is tuple and len(sample) == 2:
        args, kwargs = sample
        if (
            isinstance(args, (tuple, list))
            and isinstance(kwargs, Mapping)
            and all(isinstance(key, str) for key in kwargs)
        ):
            return sample_call(Sample(tuple(args), dict(kwargs)))
    return sample_call(sample)


def _check_modes(model: nn.Module) -> None:
    training = [name or "the module itself" for name, m in model.named_modules() if m.training]
    if training:
        raise OptimizationError(
            f"{type(model).__name__} is in training mode ({training[0]}{', ...' if training[1:] else ''}):"
            " call .eval() on it first, or give its optimizer to optimize it for training"
        )


def sample_problem(model: nn.Module, call: Sample) -> str:
    """Return a hint for a sample with which the model fails."""
    weights = {p.dtype for p in model.parameters() if p.is_floating_point()}
    for path, leaf in call.tensors() if weights else ():
        if leaf.is_floating_point() and leaf.dtype not in weights:
            have = ", ".join(sorted(map(str, weights)))
            wanted = next(iter(weights)) if len(weights) == 1 else torch.float32
            return (
                f"; {place(path)} of the sample is {leaf.dtype} and the weights are {have}: give"
                f" a sample as the model is called with, for example {place(path)}.to({wanted})"
            )
    return ": give the arguments of a call that works"
