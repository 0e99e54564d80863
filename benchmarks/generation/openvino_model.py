# SPDX-License-Identifier: Apache-2.0
"""A model that OpenVINO computes: converted from transformers' modules, with keys and values as its states."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found,unused-ignore]
import torch
from openvino._offline_transformations import (  # type: ignore[import-not-found,unused-ignore]
    apply_make_stateful_transformation,
)
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _Step(nn.Module):
    """The logits of the last position, and the keys and values of all, of which those before are given."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        sources: torch.Tensor,
        *before: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        # Chosen by sequence, as for beams: OpenVINO has an attention with such a cache.
        chosen = [value.index_select(0, sources) for value in before]
        cache = DynamicCache()
        for keys, values in zip(chosen[::2], chosen[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            cache.layers.append(layer)
        outputs = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask.bfloat16(),
            past_key_values=cache,
            logits_to_keep=1,
        )
        after = [value for layer in cache.layers for value in (layer.keys, layer.values)]
        return outputs.logits.float(), *after  # numpy has no bf16


class OpenVinoModel:
    """Generates greedily.

    model
        Of transformers, in bf16, without windows of attention.
    """

    def __init__(self, model: Any, threads: int) -> None:
        self._threads = threads
        self._weights = list(model.parameters())  # the converted model has their memory
        self._model = self._converted(model.eval())
        self._requests: dict[int, Any] = {}
        """By numbers of sequences, which its states have to know."""

    @staticmethod
    def _converted(model: Any) -> Any:
        config = model.config
        heads, layers = config.num_key_value_heads, config.num_hidden_layers
        width = model.model.layers[0].self_attn.head_dim
        before = [torch.zeros(2, heads, 3, width).bfloat16() for _ in range(2 * layers)]
        example = (
            torch.ones(2, 4, dtype=torch.int64),
            torch.arange(3, 7).expand(2, 4),
            torch.zeros(2, 1, 4, 7),
            torch.arange(2),
            *before,
        )
        with torch.inference_mode():
            converted = openvino.convert_model(_Step(model), example_input=example)
        names = {}
        for number, value in enumerate((*converted.inputs, *converted.outputs)):
            value.get_tensor().set_names({f"value{number}"})
        inputs, outputs = converted.inputs, converted.outputs
        for given, kept in zip(inputs[4:], outputs[1:], strict=True):
            given.get_node().set_partial_shape(openvino.PartialShape([-1, heads, -1, width]))
            names[given.get_any_name()] = kept.get_any_name()
        for value, ranks in zip(inputs[:4], (2, 2, 4, 1), strict=True):
            value.get_node().set_partial_shape(openvino.PartialShape([-1] * ranks))
        converted.validate_nodes_and_infer_types()
        apply_make_stateful_transformation(converted, names)
        return converted

    def _request(self, sequences: int) -> Any:
        if sequences not in self._requests:
            # The states begin as empty tensors of this many sequences.
            shapes = {value: [sequences, *value.partial_shape[1:]] for value in self._model.inputs}
            self._model.reshape(shapes)
            options = {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": self._threads,
                "INFERENCE_PRECISION_HINT": "bf16",
                "KV_CACHE_PRECISION": "bf16",
                "ENABLE_CPU_PINNING": False,
            }
            compiled = openvino.Core().compile_model(self._model, "CPU", options)
            self._requests[sequences] = compiled.create_infer_request()
        return self._requests[sequences]

    def generate(self, ids: list[list[int]], tokens: int) -> list[float]:
        """Generate that many tokens for each sequence; return when each step ended."""
        sequences, length = len(ids), len(ids[0])
        request, ends = self._request(sequences), []
        request.reset_state()
        given, begin = np.array(ids, np.int64), 0
        for end in range(length, length + tokens):
            positions = np.arange(begin, end)
            hidden = np.arange(end)[None] > positions[:, None]
            mask = np.broadcast_to(
                np.where(hidden, np.float32(-1e9), np.float32(0)), (sequences, 1, *hidden.shape)
            )
            values = (
                given,
                np.broadcast_to(positions, given.shape),
                np.ascontiguousarray(mask),
                np.arange(sequences),
            )
            request.infer(dict(enumerate(values)))
            given, begin = request.get_output_tensor(0).data[:, -1].argmax(-1)[:, None], end
            ends.append(time.perf_counter())
        return ends
