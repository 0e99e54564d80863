# SPDX-License-Identifier: Apache-2.0
"""The arguments of `optimize`, checked before anything is done."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypedDict

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from xruntime.compilation.gil import kind_of
from xruntime.compilation.inductor import eager_module, parts_in_training
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
    "auto": "a library that is compiled in the background and kept for the next start; until then as with none",
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


def checked(request: OptimizeRequest) -> OptimizeRequest:
    """Check the arguments. Raises OptimizationError, SampleError, CompilationError."""
    model = request.model
    if not isinstance(model, nn.Module):
        raise OptimizationError(
            f"optimize() takes a torch.nn.Module, and this is a {type(model).__name__}"
        )
    original = getattr(model, "_orig_mod", None)
    if not isinstance(original, nn.Module):
        original = model
    if is_for_training(original) and not request.training:
        if request.inplace:
            raise OptimizationError(
                f"this {type(original).__name__} is optimized for training, and its optimizer may hold a"
                " part of its weights: leave inplace out, and a copy of it is optimized"
            )
        model = original = copy.deepcopy(original)
    _check_model(original)
    _check_options(request)
    _check_bits(request)
    _check_combination(request)
    call = None if request.sample_input is None else live_call(request.sample_input)
    if call is None and request.measure:
        raise OptimizationError("measure=True needs sample_input: the arguments of one call")
    if not request.training:
        if training := parts_in_training(original):
            raise OptimizationError(
                f"{type(original).__name__} is in training mode ({training}): call .eval() on it first, or"
                " give its optimizer to optimize it for training"
            )
        model = eager_module(model)
    elif original is not model or isinstance(model, torch.jit.ScriptModule):
        raise OptimizationError(
            f"this {type(model).__name__} is {kind_of(model).value}: give optimize() the module that it"
            " was made from, and call torch.compile on the model that optimize() returns"
        )
    if "forward" in model.__dict__:
        raise OptimizationError(
            f"forward was replaced on this {type(model).__name__} object, as some libraries do: remove that"
            " (accelerate: remove_hook_from_module), or optimize the module before"
        )
    return request._replace(model=model, call=call)


def _check_model(model: nn.Module) -> None:
    """Refuse a model that is optimized already, as a whole or in part, or has parameters without a size."""
    name = type(model).__name__
    if is_explained(model):
        raise OptimizationError(
            f"this {name} is optimized already: give optimize() the original module"
        )
    if isinstance(inspect.getattr_static(type(model), "forward"), (staticmethod, classmethod)):
        raise OptimizationError(
            f"forward of this {name} is a static method or one of the class: make it a method of the module"
        )
    for path, part in model.named_modules():
        if isinstance(part, OptimizedModule):
            raise OptimizationError(
                f"{path} of this {name} is optimized already: put the original module there, and optimize"
                " the whole"
            )
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise OptimizationError(
                f"{path} of this {name} gets its size in the first call: call the model before optimize()"
            )


def _check_options(request: OptimizeRequest) -> None:
    """Check each option by itself."""
    training, dtype = request.training, request.dtype
    tolerance: Any = request.tolerance
    passes: Any = request.passes or {}
    _check_choice("level", request.level, LEVELS)
    if request.graph in REMOVED_GRAPHS:
        raise OptimizationError(
            f"graph={request.graph!r} was removed: call torch.compile(optimize(model, graph='none', ...)), or"
            " let graph='auto' compile at once by wait=True"
        )
    _check_choice("graph", request.graph, tuple(GRAPHS))
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
        raise OptimizationError(
            f"tolerance={tolerance!r}: a number of at least 0 is expected, or None for the precision's own"
        )
    if not isinstance(passes, Mapping) or not all(
        isinstance(value, bool) for value in passes.values()
    ):
        raise OptimizationError(
            f"passes={passes!r}: a dict of True and False by the names of passes is expected, for example"
            " {'join_linears': False}"
        )
    names = TRAINING if training else INFERENCE
    for name in passes:
        if name not in names:
            raise OptimizationError(
                f"passes: there is no {name!r} for {'training' if training else 'inference'}; allowed are"
                f" {', '.join(names)}"
            )
    allowed = DTYPES[:2] if training else DTYPES
    if dtype is not None and dtype not in allowed:
        raise OptimizationError(
            f"dtype={dtype}: allowed{' for training' if training else ''} are"
            f" {', '.join(str(value).removeprefix('torch.') for value in allowed)}, or None to leave it"
        )


def _check_combination(request: OptimizeRequest) -> None:
    """Check options that exclude each other."""
    level, dtype, training = request.level, request.dtype, request.training
    if level == "O0" and dtype is not None:
        raise OptimizationError(
            f"level='O0' changes no numerics, and dtype={dtype} would: use level='O1', with passes={{...}}"
            " to switch others off"
        )
    compiles = not training and request.graph == "auto" and level != "O0"
    if request.wait and not (compiles and request.sample_input is not None):
        raise OptimizationError(
            "wait=True is for inference with graph='auto', level='O1' and sample_input: leave it out"
        )
    if request.measure and training:
        raise OptimizationError("measure=True is for inference: leave it out with an optimizer")


def _check_bits(request: OptimizeRequest) -> None:
    """Check `weight_bits` and `head_bits`, and that the model and the other arguments go with them."""
    model, bits = request.model, request.weight_bits
    for name, value in (("weight_bits", bits), ("head_bits", request.head_bits)):
        if value is not None and (isinstance(value, bool) or value not in BITS):
            raise OptimizationError(
                f"{name}={value!r}: allowed are 8 and 4, or None to keep the weights' precision"
            )
    if bits is None:
        if request.head_bits is not None:
            raise OptimizationError(
                f"head_bits={request.head_bits} goes with weight_bits: give both"
            )
        return
    asking, what = f"weight_bits={bits}", type(model).__name__
    if request.training:
        raise OptimizationError(f"{asking} is for inference: leave it out with an optimizer")
    if not generates(model):
        raise OptimizationError(
            f"{asking} is for language models with transformers' generate(), and this is a {what}"
        )
    if request.level == "O0":
        raise OptimizationError(f"level='O0' changes no numerics, and {asking} would: use 'O1'")
    if request.sample_input is not None:
        raise OptimizationError(
            f"{asking} changes outputs by more than a comparison allows: leave sample_input out"
        )
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    for dtype in (request.dtype, *dtypes):
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
            f"{name}={value!r}: allowed are {', '.join(repr(choice) for choice in allowed)}"
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
