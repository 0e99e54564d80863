# SPDX-License-Identifier: Apache-2.0
"""One decode step of a language model of two layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from tests.kernels.recorded.cases import Array, Case, Expectation, stored, values_of
from tests.kernels.recorded.packing import FORMATS, packed

LAYERS = 2
LINEARS = ("query", "key", "value", "output", "gate", "up", "down")
UNUSED = 6e4
"""What the cache holds where nothing is cached. No result may depend on it."""


class Sizes(NamedTuple):
    batch: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    dropped: int = 0
    """How many positions the second layer has dropped."""
    window: int = 0
    """Of the second layer."""
    biased: bool = False
    head_norms: bool = False
    post_norms: bool = False
    joined: bool = False
    """Queries, keys and values of each head are rows of one matrix."""
    plain: bool = False
    """Without gates."""
    parallel: bool = False
    norm_kind: int = 0
    norm_offset: float = 0
    activation: int = 0
    score_cap: float = 0
    logit_cap: float = 0
    embedding_scale: float = 1
    rotary_size: int = -1
    """Elements of a head that are turned; -1: all."""
    addends: bool = False
    by_input: bool = False
    """Weights that are not packed are stored as (inputs, outputs)."""


SIZES = (
    Sizes(1, 64, 2, 2, 32, 128, 64, 40),
    Sizes(1, 12, 3, 1, 4, 7, 9, 0, biased=True),
    Sizes(2, 33, 4, 2, 18, 61, 50, 21, head_norms=True),
    Sizes(4, 40, 2, 1, 70, 33, 21, 19, dropped=8, window=12, biased=True),
    Sizes(5, 20, 6, 3, 6, 18, 31, 9, window=3, head_norms=True),
    Sizes(1, 300, 4, 2, 64, 260, 500, 130),
    Sizes(
        2,
        33,
        4,
        2,
        18,
        61,
        50,
        21,
        head_norms=True,
        post_norms=True,
        norm_offset=1,
        activation=2,
        score_cap=2,
        logit_cap=3,
        embedding_scale=5.5,
    ),
    Sizes(
        3,
        20,
        3,
        3,
        7,
        18,
        31,
        9,
        biased=True,
        joined=True,
        plain=True,
        parallel=True,
        norm_kind=1,
        activation=1,
        rotary_size=4,
    ),
    Sizes(
        1,
        40,
        2,
        2,
        20,
        33,
        21,
        30,
        biased=True,
        plain=True,
        norm_kind=1,
        activation=3,
        rotary_size=0,
        addends=True,
    ),
    Sizes(
        8,
        33,
        3,
        3,
        11,
        70,
        21,
        12,
        biased=True,
        plain=True,
        norm_kind=1,
        activation=2,
        rotary_size=0,
        addends=True,
        by_input=True,
    ),
)


def cases() -> Iterator[Case]:
    for number, sizes in enumerate(SIZES):
        for weight_type, norm_type in (("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")):
            yield _case(number, sizes, weight_type, norm_type)
    for number, sizes in enumerate(SIZES):
        yield _case(number, sizes, "fp32", "fp32", 8 if number % 2 else 4)


def _case(number: int, it: Sizes, weight_type: str, norm_type: str, bits: int = 0) -> Case:
    random = np.random.default_rng(number)
    queries, keys = it.heads * it.head_dim, it.kv_heads * it.head_dim
    shapes = {
        "query": (queries, it.hidden),
        "key": (keys, it.hidden),
        "value": (keys, it.hidden),
        "output": (it.hidden, queries),
        "gate": (it.intermediate, it.hidden),
        "up": (it.intermediate, it.hidden),
        "down": (it.hidden, it.intermediate),
    }
    if it.joined:
        shapes["query"] = (queries + 2 * shapes.pop("key")[0], it.hidden)
        del shapes["value"]
    if it.plain:
        del shapes["gate"]
    arrays: dict[str, Array] = {}
    exact_weights: dict[str, Array] = {}
    for name, (outputs, inputs) in shapes.items():
        if bits:
            arrays[name], arrays[f"{name}_scales"], exact_weights[name] = packed(
                random, (LAYERS, outputs, inputs), bits
            )
            if it.biased:
                arrays[f"{name}_bias"] = stored(random.standard_normal((LAYERS, outputs)), "fp32")
            continue
        weights = random.standard_normal((LAYERS, outputs, inputs)) / np.sqrt(inputs)
        arrays[name] = stored(weights, weight_type)
        if it.by_input:
            exact_weights[name] = values_of(arrays[name])
            arrays[name] = np.ascontiguousarray(arrays[name].swapaxes(1, 2))
        if it.biased:
            arrays[f"{name}_bias"] = stored(random.standard_normal((LAYERS, outputs)), weight_type)
    arrays["embedding"] = stored(random.standard_normal((it.vocabulary, it.hidden)), weight_type)
    arrays["head"] = stored(random.standard_normal((it.vocabulary, it.hidden)), weight_type)
    if it.biased:
        arrays["head_bias"] = stored(random.standard_normal(it.vocabulary), weight_type)
    norms = {"input_norm": it.hidden, "mlp_norm": it.hidden}
    if it.post_norms:
        norms |= {"attention_post_norm": it.hidden, "mlp_post_norm": it.hidden}
    if it.head_norms:
        norms |= {"query_norm": it.head_dim, "key_norm": it.head_dim}
    for name, size in norms.items():
        arrays[name] = stored(random.standard_normal((LAYERS, size)), norm_type)
        if it.norm_kind == 1:
            arrays[f"{name}_bias"] = stored(random.standard_normal((LAYERS, size)), norm_type)
    arrays["norm"] = stored(random.standard_normal(it.hidden), norm_type)
    arrays["tokens"] = random.integers(0, it.vocabulary, it.batch).astype("<i8")
    if it.norm_kind == 1:
        arrays["norm_bias"] = stored(random.standard_normal(it.hidden), norm_type)
    if it.addends:
        arrays["addends"] = random.standard_normal((it.batch, it.hidden)).astype("<f4")
    turned = it.head_dim if it.rotary_size < 0 else it.rotary_size
    # The second layer has a rotary embedding of its own.
    angles = random.uniform(-3, 3, (LAYERS, it.batch, 1, turned // 2))
    angles = np.repeat(angles, 2, 2).reshape(LAYERS, it.batch, turned)
    arrays["cosines"], arrays["sines"] = np.cos(angles).astype("<f4"), np.sin(angles).astype("<f4")
    arrays["starts"] = (np.arange(it.batch) * 3 % (it.positions + 1)).astype("<i8")
    shape = (LAYERS, it.batch, it.kv_heads, it.positions + 3, it.head_dim)
    for name in ("keys", "values"):
        cache = random.standard_normal(shape)
        cache[0, ..., it.positions :, :] = UNUSED
        cache[1, ..., it.positions - it.dropped :, :] = UNUSED
        arrays[name] = stored(cache, weight_type)
    values = {name: values_of(one) for name, one in arrays.items()}
    exact = _Exact(it, values | exact_weights)
    logits, new = exact.logits()
    arrays["logits"] = stored(np.full(logits.shape, 7), weight_type)
    expected = {
        name: _near(wanted, "packed" if bits else weight_type)
        for name, wanted in (("logits", logits), *((it, new[it]) for it in ("keys", "values")))
    }
    numbers = {
        **it._asdict(),
        "rotary_size": turned,
        "layers": LAYERS,
        "capacity": it.positions + 3,
        "epsilon": 1e-6,
        "format": FORMATS.get(bits, 0),
        **{f"{name}_stride": it.by_input * outputs for name, (outputs, _) in shapes.items()},
    }
    name = f"decode/{number}/{f'packed{bits}' if bits else weight_type}/{norm_type}"
    return Case(name, numbers, arrays, expected)


def _near(wanted: Array, as_type: str) -> Expectation:
    # Keys that were rounded to bf16 are a unit off where fp32 is on the other side of the middle.
    largest = float(np.abs(wanted[wanted != UNUSED]).max())
    rtol, atol = {"bf16": (2**-7, 2e-3), "packed": (1e-3, 1e-3)}.get(as_type, (2e-5, 2e-5))
    return Expectation(wanted, rtol, largest * atol)


def _capped(values: Array, cap: float) -> Array:
    return cap * np.tanh(values / cap) if cap else values


ACTIVATIONS = (
    lambda x: x / (1 + np.exp(-x)),
    lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    lambda x: np.maximum(x, 0),
)
"""In the order of xkernels.h."""


class _Exact:
    """The step in fp64."""

    def __init__(self, sizes: Sizes, values: dict[str, Any]) -> None:
        self.it = sizes
        self.values = values

    def linear(self, name: str, layer: int, x: Array) -> Array:
        bias = self.values[f"{name}_bias"][layer] if self.it.biased else 0
        found: Array = x @ self.values[name][layer].T + bias
        return found

    def norm(self, x: Array, name: str, layer: int | tuple[()] = ()) -> Array:
        """As it is, if there is no such norm."""
        if name not in self.values:
            return x
        if self.it.norm_kind == 1:
            x = x - x.mean(-1, keepdims=True)
        weight = self.values[name][layer] + self.it.norm_offset
        bias = self.values[f"{name}_bias"][layer] if self.it.norm_kind == 1 else 0
        found: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight + bias
        return found

    def turned(self, x: Array, norm: str, layer: int) -> Array:
        """Of shape (batch, heads, head_dim)."""
        x = self.norm(x, norm, layer)
        cosines, sines = (self.values[name][layer][:, None] for name in ("cosines", "sines"))
        size, half = cosines.shape[-1], cosines.shape[-1] // 2
        rotated = np.concatenate([-x[..., half:size], x[..., :half]], -1)
        return np.concatenate([x[..., :size] * cosines + rotated * sines, x[..., size:]], -1)

    def projected(self, layer: int, x: Array) -> list[Array]:
        """Queries, keys and values, each of shape (batch, heads, head_dim)."""
        split = (self.it.batch, -1, self.it.head_dim)
        if self.it.joined:
            every = self.linear("query", layer, x).reshape(self.it.batch, -1, 3, self.it.head_dim)
            return [every[:, :, part] for part in range(3)]
        return [self.linear(name, layer, x).reshape(split) for name in ("query", "key", "value")]

    def attended(self, layer: int, x: Array) -> Array:
        it, batch = self.it, self.it.batch
        dropped, window = (it.dropped, it.window) if layer == 1 else (0, 0)
        at = it.positions - dropped
        query, key, value = self.projected(layer, x)
        query = self.turned(query, "query_norm", layer)
        keys, values = self.values["keys"][layer], self.values["values"][layer]
        keys[:, :, at] = self.turned(key, "key_norm", layer)
        values[:, :, at] = value
        outputs = np.empty_like(query)
        for b in range(batch):
            begin = max(0, int(self.values["starts"][b]) - dropped)
            if window:
                begin = max(begin, at + 1 - window)
            for head in range(it.heads):
                kv = head // (it.heads // it.kv_heads)
                scores = keys[b, kv, begin : at + 1] @ query[b, head] / np.sqrt(it.head_dim)
                scores = _capped(scores, it.score_cap)
                weights = np.exp(scores - scores.max())
                outputs[b, head] = weights / weights.sum() @ values[b, kv, begin : at + 1]
        return self.linear("output", layer, outputs.reshape(batch, -1))

    def logits(self) -> tuple[Array, dict[str, Array]]:
        values = self.values
        x = values["embedding"][values["tokens"].astype(int)] * self.it.embedding_scale
        x = x + values.get("addends", 0)
        for layer in range(LAYERS):
            attended = self.attended(layer, self.norm(x, "input_norm", layer))
            after = x + self.norm(attended, "attention_post_norm", layer)
            y = self.norm(x if self.it.parallel else after, "mlp_norm", layer)
            up = self.linear("up", layer, y)
            act = ACTIVATIONS[self.it.activation]
            gated = act(up) if self.it.plain else act(self.linear("gate", layer, y)) * up
            x = after + self.norm(self.linear("down", layer, gated), "mlp_post_norm", layer)
        logits = self.norm(x, "norm") @ values["head"].T + values.get("head_bias", 0)
        return _capped(logits, self.it.logit_cap), {
            name: values[name] for name in ("keys", "values")
        }
