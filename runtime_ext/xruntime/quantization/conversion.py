# SPDX-License-Identifier: Apache-2.0
"""The conversion of a calibrated module to INT8."""

from __future__ import annotations

import copy
import operator

import torch

from xruntime.compilation.inductor import first_line
from xruntime.errors import QuantizationError
from xruntime.quantization.calibration import Observed
from xruntime.quantization.quantized_module import QuantizedModule, in_eval_mode
from xruntime.quantization.recipe import QuantConf
from xruntime.quantization.signatures import export_again


def convert(observed: Observed) -> QuantizedModule:
    """Return the INT8 module that the recipe describes. It is compiled, with freezing, when first called.

    `observed` and the model are not changed: after a change of the recipe, or more batches, convert again.
    Raises QuantizationError, RecipeError.
    """
    if not isinstance(observed, Observed):
        raise QuantizationError(
            f"convert takes what calibrate() or prepare() returned, and this is a"
            f" {type(observed).__name__}"
        )
    if not observed.finished:
        # As if the calibration ended now; it goes on.
        observed = copy.copy(observed)
        observed.conf = observed.conf.copy()
        observed.finish()
    return converted(observed, observed.conf)


def converted(observed: Observed, conf: QuantConf) -> QuantizedModule:
    """Return the INT8 module that `conf` describes, of a module that was calibrated."""
    conf.check_operators(observed.operators, observed.name)
    graph, complete = converted_graph(observed, conf)
    exported = export_again(graph, observed.exported)
    return QuantizedModule(exported, complete, observed.name)


def converted_graph(observed: Observed, conf: QuantConf) -> tuple[torch.fx.GraphModule, QuantConf]:
    """Return a graph module that computes in float what INT8 kernels compute, and its complete recipe.

    Raises UnobservedError, QuantizationError, RecipeError.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    prepared, complete = observed.with_scales(conf)
    try:
        graph: torch.fx.GraphModule = convert_pt2e(prepared)
    except Exception as error:
        raise QuantizationError(
            f"torchao cannot convert {observed.name}: {first_line(error)}"
        ) from error
    _include_zero(graph)
    _drop_unused(graph)
    return in_eval_mode(graph), complete


def _include_zero(graph: torch.fx.GraphModule) -> None:
    """Let the ranges of dynamic quantization include zero, as torch's operator does.

    Inductor's decomposition of choose_qparams does not do so in torch 2.13: if all inputs
    are positive, the range is too short by the smallest of them, and the largest are clipped.
    """
    aten, nodes = torch.ops.aten, graph.graph
    choose = torch.ops.quantized_decomposed.choose_qparams.tensor
    for node in nodes.find_nodes(op="call_function", target=choose):
        with nodes.inserting_before(node):
            both = nodes.call_function(aten.aminmax.default, (node.args[0],))
            smallest, largest = (nodes.call_function(operator.getitem, (both, at)) for at in (0, 1))
            bounds = [
                nodes.call_function(aten.clamp_max.default, (smallest, 0.0)),
                nodes.call_function(aten.clamp_min.default, (largest, 0.0)),
            ]
            node.update_arg(0, nodes.call_function(aten.stack.default, (bounds,)))
    graph.recompile()


def _drop_unused(graph: torch.fx.GraphModule) -> None:
    """Drop the float weights, which are still attributes of the graph module."""
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in (*graph.named_parameters(), *graph.named_buffers())]:
        if name not in used:
            path, _, attribute = name.rpartition(".")
            delattr(graph.get_submodule(path), attribute)
    graph.delete_all_unused_submodules()
