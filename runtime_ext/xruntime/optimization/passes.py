# SPDX-License-Identifier: Apache-2.0
"""Passes that change how a model is called and stored: layout, precision, joined linears."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from xlaunch.text import counted
from xruntime.aoti.inputs import CHANNELS_LAST, is_channels_last
from xruntime.generation.decode_step import DecodeStep
from xruntime.generation.decoders import UndescribedError
from xruntime.generation.large_pages import put_into_large_pages
from xruntime.generation.linear_layers import linear_kinds
from xruntime.generation.linear_rows import available, row_class
from xruntime.optimization.layers import JoinedLinear, JoinedWeights, LowPrecisionLayer
from xruntime.optimization.module_order import CONVOLUTIONS, has_hooks, shared_parameters
from xruntime.optimization.run import PassRun
from xruntime.optimization.runner import SlowCallWarning
from xruntime.optimization.steps import SkipPassError
from xruntime.pytrees import tensors_in


def _converted() -> tuple[type[nn.Module], ...]:
    """Modules whose weights are stored in a lower precision. Norms are not among them."""
    return (*CONVOLUTIONS, *linear_kinds(), nn.Embedding, nn.EmbeddingBag)


def without_gradients(run: PassRun) -> str:
    run.modes = run.modes._replace(no_grad=True)
    return "calls run under torch.no_grad()"


def use_channels_last(run: PassRun) -> str:
    """Store the weights of convolutions channels-last, if convolutions are most of the run."""
    kinds = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    convolutions = [m for m in run.model.modules() if type(m) in kinds]
    if not convolutions:
        raise SkipPassError("there is no convolution over two or three dimensions")
    if run.recording is not None:
        share = run.recording.convolution_share
        few, why = share < 0.5, f"convolutions are {share:.0%} of the multiplications"
    else:
        linears = sum(type(m) is nn.Linear for m in run.model.modules())
        few = linears > len(convolutions)
        why = f"there are {len(convolutions)} convolutions and {linears} linears"
    if few:
        raise SkipPassError(why)
    for module in convolutions:
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        change = run.edits.set_layout if run.keeps_parameters else run.edits.replace_layout
        change(weight, CHANNELS_LAST[weight.dim()])
    returned = [] if run.check is None else tensors_in(run.check.expected)
    if not any(map(is_channels_last, returned)):
        run.modes = run.modes._replace(contiguous=True)
    return f"converted {counted(len(convolutions), 'weight')}; {why}"


def lower_precision(run: PassRun) -> str:
    """Run under autocast to the dtype that the user asked for."""
    wanted = run.request.dtype
    if wanted is None:
        raise SkipPassError("no dtype was given; the caller's autocast counts")
    dtypes = {p.dtype for p in run.model.parameters() if p.is_floating_point()}
    if wanted is torch.float32:
        run.modes = run.modes._replace(dtype=wanted)
        return "float32: calls run without autocast"
    if run.check is not None and run.check.stored is not None:
        raise SkipPassError(
            f"a call stores a tensor in {run.check.stored}, which would be {_name(wanted)}"
        )
    if dtypes and dtypes == {wanted}:
        raise SkipPassError(f"all weights are {_name(wanted)} already")
    outputs = _output_dtype(run, wanted, dtypes)
    follows = run.request.autocast_outputs
    run.modes = run.modes._replace(dtype=wanted, outputs=outputs, autocast_outputs=follows)
    kept = f"; outputs in {_name(wanted)} are returned as {_name(outputs)}" if outputs else ""
    return f"calls run under autocast to {_name(wanted)}{kept}"


def _output_dtype(
    run: PassRun, wanted: torch.dtype, weights: set[torch.dtype]
) -> torch.dtype | None:
    """Return what outputs in `wanted` are converted to; None: they stay, as the model's are `wanted`, too.

    Raises SkipPassError if the model returns several dtypes that autocast could turn into `wanted`.
    """
    dtypes = weights
    if run.check is not None:
        outputs = tensors_in(run.check.expected)
        dtypes = {tensor.dtype for tensor in outputs if tensor.is_floating_point()}
    dtypes = dtypes - {torch.float64} or dtypes  # which autocast leaves as it is
    if not dtypes or (run.check is None and torch.float32 in dtypes):
        return torch.float32
    if len(dtypes) > 1:
        names = " and ".join(sorted(map(_name, dtypes)))
        raise SkipPassError(f"the model returns tensors in {names}, which autocast would mix up")
    (returned,) = dtypes
    return None if returned == wanted else returned


def lower_weights(run: PassRun) -> str:
    """Store weights in the precision that autocast would convert them to in each call."""
    wanted = run.modes.dtype
    if wanted not in (torch.bfloat16, torch.float16):
        raise SkipPassError("calls do not run in a lower precision")
    parameters = convertible_parameters(run.model)
    if not parameters:
        raise SkipPassError("there is no convolution, linear or embedding with weights in float32")
    for parameter in parameters:
        run.edits.replace_parameter(parameter, parameter.detach().to(wanted))
    take_float32(run, wanted)
    return f"stored {len(parameters)} in {_name(wanted)}; those of norms and other modules are as before"


def take_float32(run: PassRun, low: torch.dtype) -> None:
    """Have the layers whose weights are in `low` take and return float32 where autocast is off."""
    kinds = _converted()
    for module in run.inner_modules():
        if type(module) in kinds and module.weight.dtype == low:
            run.edits.replace_class(module, LowPrecisionLayer)


def convertible_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the fp32 weights of `_converted` modules that no other module shares, each once."""
    kinds = _converted()
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, []).append(module)
    return [
        parameter
        for parameter, modules in owners.items()
        if type(parameter) is nn.Parameter
        and parameter.dtype == torch.float32
        and all(type(owner) in kinds and not has_hooks(owner) for owner in modules)
    ]


def join_linears(run: PassRun) -> str:
    """Join linears that the sample's call gave the same tensor."""
    if run.recording is None:
        raise SkipPassError("without sample_input it is unknown which linears have one input")
    if not run.recording.siblings:
        raise SkipPassError("no two linears have the same input")
    shared = shared_parameters(run.model)
    groups: list[list[nn.Linear]] = []
    refused = 0
    for members in run.recording.siblings:
        usable = [m for m in members if isinstance(m, nn.Linear) and _joinable(run, m, shared)]
        refused += len(members) - len(usable)
        dtypes = {m.weight.dtype for m in usable}
        plain = all(type(m.weight) is nn.Parameter for m in usable)
        if len(usable) > 1 and len(dtypes) == 1 and plain:
            groups.append(usable)
    for group in groups:
        joined = JoinedWeights(group)
        for linear, rows in joined.rows.items():
            for name, value in rows.items():
                run.edits.move_parameter(linear, name, value)
            run.edits.set_attribute(linear, "_xruntime_joined", joined)
            run.edits.replace_class(linear, JoinedLinear)
    left = (
        f"; {refused} are called twice, have hooks or tied weights, or are returned or viewed as they are"
        if refused
        else ""
    )
    if not groups:
        raise SkipPassError(f"none of the linears with one input can be joined{left}")
    return f"joined {sum(map(len, groups))} linears into {len(groups)}{left}"


def use_linear_rows(run: PassRun) -> str:
    """Compute 1 to 3 rows of the model's linears by native code."""
    if not available():
        raise SkipPassError("there is no native library: see python -m xruntime kernels")
    classes: dict[Any, type[nn.Module]] = {}
    count = 0
    kinds = linear_kinds()
    for module in run.inner_modules():
        kind: Any = type(module)
        lowered = issubclass(kind, LowPrecisionLayer) and kind._layer in kinds  # noqa: SLF001
        if kind not in kinds and not lowered:
            continue
        if kind not in classes:
            classes[kind] = row_class(kind, widens=lowered)
        run.edits.set_class(module, classes[kind])
        count += 1
    if not count:
        raise SkipPassError("there is no linear")
    return f"{counted(count, 'linear')} read weights in the order of memory for 1 to 3 rows"


def use_decode_step(run: PassRun) -> str:
    """Compute calls with one token of each sequence by one native call."""
    if not available():
        raise SkipPassError("there is no native library: see python -m xruntime kernels")
    kind = run.runner.kind

    def say(line: str) -> None:
        warnings.warn(f"{kind.__name__}: {line}", SlowCallWarning, stacklevel=2)

    pages = ""
    if run.request.inplace:  # otherwise the original may be short-lived
        size_bytes = put_into_large_pages(_read_weights(run.model))
        pages = f"; {size_bytes / 1e6:.0f} MB of weights are in 2 MiB pages"
    try:
        run.runner.step = DecodeStep(run.model, kind, say)
    except UndescribedError as error:
        raise SkipPassError(f"{error}{pages}") from error
    run.edits.add_undo(lambda: setattr(run.runner, "step", None))
    return f"calls with one token of each sequence are one native call, and the first is compared{pages}"


def _read_weights(model: nn.Module) -> list[torch.Tensor]:
    """What a token reads: of an embedding that is no other layer's weight, too, only a row."""
    modules = [module for module in model.modules() if not isinstance(module, nn.Embedding)]
    return [
        tensor
        for module in modules
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    ]


def _joinable(run: PassRun, linear: Any, shared: set[int]) -> bool:
    recording = run.recording
    assert recording is not None
    return (
        linear is not run.model
        and recording.calls[linear] == 1
        and linear not in recording.read_elsewhere
        and linear not in recording.dense
        and not has_hooks(linear)
        and run.count(linear) == 1
        and not {id(p) for p in linear.parameters()} & shared
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
