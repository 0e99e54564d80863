# SPDX-License-Identifier: Apache-2.0
"""`optimize`: makes a model faster in one call, and says what it did."""

from __future__ import annotations

import inspect
from typing import Any, Final, TypeVar, Unpack, overload

import torch
from torch import nn

from xruntime.optimization.arguments import OptimizeOptions, OptimizeRequest, checked
from xruntime.optimization.inference import optimize_for_inference

Model = TypeVar("Model", bound=nn.Module)


@overload
def optimize(
    model: Model, *, optimizer: None = None, **options: Unpack[OptimizeOptions]
) -> Model: ...


@overload
def optimize(
    model: Model, *, optimizer: torch.optim.Optimizer, **options: Unpack[OptimizeOptions]
) -> tuple[Model, torch.optim.Optimizer]: ...


def optimize(model: nn.Module, **options: Any) -> Any:
    """Return a faster form of `model`, or of (model, optimizer) for training.

    model
        An eager module on the CPU; for inference in eval mode. It is not changed, unless `inplace`.
    dtype
        Precision of convolutions and matrix multiplications: bfloat16, float16 (inference only) or
        float32. Outputs keep the dtype that the model's have. None: the caller's autocast counts.
    optimizer
        The model's optimizer: optimizes for training, and returns a new optimizer.
    sample_input
        The arguments of one call, of the usual size: a tensor, a tuple of arguments, a dict of keyword
        arguments, or (args, kwargs). Without it nothing is compiled and nothing is checked.
    level
        "O1": all passes; "O0": none but those in `passes`.
    inplace
        Change the model itself and return it. Its old weights are freed with keep_weights=False.
    graph
        "auto" or "none", see `xruntime.optimization.GRAPHS`. "auto" needs a sample; it calls the modules
        until a child process has compiled them, which begins after calls of half a second, and whose code
        is kept for the next start. What cannot be compiled runs as modules.
    measure
        Time the input and each form of it on the sample, and return the fastest.
    wait
        With graph="auto": compile now, and later at the first call of another size, and wait for it.
    passes
        Switches by the names of passes, for example {"join_linears": False}.
    tolerance
        The largest allowed difference from the model's outputs, relative to the largest value of each;
        None: what the precision in use explains, see `xruntime.compilation.judge`.
    keep_weights
        Keep the weights that passes replace, for state_dict(). They are the input's tensors, not copies.
    weight_bits
        8 or 4: store the weights of linears of language models in so many bits, in groups of 32 with one scale,
        which changes outputs. With `inplace` the model's old weights are freed. Embeddings and the output layer keep
        their precision.
    head_bits
        8 or 4: the same for the output layer, in addition to weight_bits.

    A pass whose result differs from the model's outputs on the sample is undone. `xruntime.optimization.
    explain(model)` lists what was applied, skipped and undone, and why.

    The module that is returned has a subclass of the model's class. Optimized for inference, it is frozen:
    state_dict() returns the model's own weights, and loading others, train(), conversions and copies are
    refused.

    Raises OptimizationError, SampleError, CompilationError; the model is as before then.
    """
    try:
        _SIGNATURE.bind(model, **options)
    except TypeError as error:
        raise TypeError(f"optimize() {error}") from None
    optimizer = options.pop("optimizer", None)
    return optimize_by(OptimizeRequest(model, training=optimizer is not None, **options), optimizer)


def _signature() -> inspect.Signature:
    """Return the signature of `optimize` with each of its options, for help() and errors."""
    keyword, defaults = inspect.Parameter.KEYWORD_ONLY, OptimizeRequest._field_defaults
    names = ("optimizer", *OptimizeOptions.__annotations__)
    options = [inspect.Parameter(name, keyword, default=defaults.get(name)) for name in names]
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([model, *options])


_SIGNATURE: Final = _signature()
optimize.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


def optimize_by(request: OptimizeRequest, optimizer: torch.optim.Optimizer | None) -> Any:
    """Check a request of `optimize` and carry it out. Raises as `optimize` does."""
    request = checked(request)
    if optimizer is None:
        return optimize_for_inference(request)
    # The optimizers import torch's compiler, which takes most of a second.
    from xruntime.optimization.training import optimize_for_training

    return optimize_for_training(request, optimizer)
