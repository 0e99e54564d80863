# SPDX-License-Identifier: Apache-2.0
"""One decode step of a language model of two layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from tests.kernels.recorded.cases import Array, Case, Expectation, stored, values_of

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


SIZES = (
    Sizes(1, 64, 2, 2, 32, 128, 64, 40),
    Sizes(1, 12, 3, 1, 4, 7, 9, 0, biased=True),
    Sizes(2, 33, 4, 2, 18, 61, 50, 21, head_norms=True),
    Sizes(4, 40, 2, 1, 70, 33, 21, 19, dropped=8, window=12, biased=True),
    Sizes(5, 20, 6, 3, 6, 18, 31, 9, window=3, head_norms=True),
    Sizes(1, 300, 4, 2, 64, 260, 500, 130),
)


def cases() -> Iterator[Case]:
    for number, sizes in enumerate(SIZES):
        for weight_type, norm_type in (("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")):
            yield _case(number, sizes, weight_type, norm_type)


def _case(number: int, it: Sizes, weight_type: str, norm_type: str) -> Case:
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
    arrays: dict[str, Array] = {}
    for name, (outputs, inputs) in shapes.items():
        weights = random.standard_normal((LAYERS, outputs, inputs)) / np.sqrt(inputs)
        arrays[name] = stored(weights, weight_type)
        if it.biased:
            arrays[f"{name}_bias"] = stored(random.standard_normal((LAYERS, outputs)), weight_type)
    arrays["embedding"] = stored(random.standard_normal((it.vocabulary, it.hidden)), weight_type)
    arrays["head"] = stored(random.standard_normal((it.vocabulary, it.hidden)), weight_type)
    norms = {"input_norm": it.hidden, "attention_norm": it.hidden}
    if it.head_norms:
        norms |= {"query_norm": it.head_dim, "key_norm": it.head_dim}
    for name, size in norms.items():
        arrays[name] = stored(random.standard_normal((LAYERS, size)), norm_type)
    arrays["norm"] = stored(random.standard_normal(it.hidden), norm_type)
    arrays["tokens"] = random.integers(0, it.vocabulary, it.batch).astype("<i8")
    angles = np.repeat(random.uniform(-3, 3, (it.batch, 1, it.head_dim // 2)), 2, 1).reshape(
        it.batch, it.head_dim
    )
    arrays["cosines"], arrays["sines"] = np.cos(angles).astype("<f4"), np.sin(angles).astype("<f4")
    arrays["starts"] = (np.arange(it.batch) * 3 % (it.positions + 1)).astype("<i8")
    shape = (LAYERS, it.batch, it.kv_heads, it.positions + 3, it.head_dim)
    for name in ("keys", "values"):
        cache = random.standard_normal(shape)
        cache[0, ..., it.positions :, :] = UNUSED
        cache[1, ..., it.positions - it.dropped :, :] = UNUSED
        arrays[name] = stored(cache, weight_type)
    exact = _Exact(it, {name: values_of(one) for name, one in arrays.items()})
    logits, new = exact.logits()
    arrays["logits"] = stored(np.full(logits.shape, 7), weight_type)
    expected = {
        "logits": _near(logits, weight_type),
        "keys": _near(new["keys"], weight_type),
        "values": _near(new["values"], weight_type),
    }
    numbers = {**it._asdict(), "layers": LAYERS, "capacity": it.positions + 3, "epsilon": 1e-6}
    return Case(f"decode/{number}/{weight_type}/{norm_type}", numbers, arrays, expected)


def _near(wanted: Array, as_type: str) -> Expectation:
    # Keys that were rounded to bf16 are a unit off where fp32 is on the other side of the middle.
    largest = float(np.abs(wanted[wanted != UNUSED]).max())
    return Expectation(wanted, 2**-7 if as_type == "bf16" else 2e-5, largest * (
        2e-3 if as_type == "bf16" else 2e-5
    ))  # fmt: skip


class _Exact:
    """The step in fp64."""

    def __init__(self, sizes: Sizes, values: dict[str, Any]) -> None:
        self.it = sizes
        self.values = values

    def linear(self, name: str, layer: int, x: Array) -> Array:
        bias = self.values[f"{name}_bias"][layer] if self.it.biased else 0
        found: Array = x @ self.values[name][layer].T + bias
        return found

    def norm(self, x: Array, weight: Array) -> Array:
        found: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
        return found

    def turned(self, x: Array, norm: str, layer: int) -> Array:
        """Of shape (batch, heads, head_dim)."""
        if self.it.head_norms:
            x = self.norm(x, self.values[norm][layer])
        half = self.it.head_dim // 2
        rotated = np.concatenate([-x[..., half:], x[..., :half]], -1)
        cosines, sines = self.values["cosines"][:, None], self.values["sines"][:, None]
        found: Array = x * cosines + rotated * sines
        return found

    def attended(self, layer: int, x: Array) -> Array:
        it, batch = self.it, self.it.batch
        dropped, window = (it.dropped, it.window) if layer == 1 else (0, 0)
        at = it.positions - dropped
        split = (batch, -1, it.head_dim)
        query = self.turned(self.linear("query", layer, x).reshape(split), "query_norm", layer)
        keys, values = self.values["keys"][layer], self.values["values"][layer]
        keys[:, :, at] = self.turned(self.linear("key", layer, x).reshape(split), "key_norm", layer)
        values[:, :, at] = self.linear("value", layer, x).reshape(split)
        outputs = np.empty_like(query)
        for b in range(batch):
            begin = max(0, int(self.values["starts"][b]) - dropped)
            if window:
                begin = max(begin, at + 1 - window)
            for head in range(it.heads):
                kv = head // (it.heads // it.kv_heads)
                scores = keys[b, kv, begin : at + 1] @ query[b, head] / np.sqrt(it.head_dim)
                weights = np.exp(scores - scores.max())
                outputs[b, head] = weights / weights.sum() @ values[b, kv, begin : at + 1]
        return self.linear("output", layer, outputs.reshape(batch, -1))

    def logits(self) -> tuple[Array, dict[str, Array]]:
        values = self.values
        x = values["embedding"][values["tokens"].astype(int)]
        for layer in range(LAYERS):
            x = x + self.attended(layer, self.norm(x, values["input_norm"][layer]))
            y = self.norm(x, values["attention_norm"][layer])
            gate = self.linear("gate", layer, y)
            x = x + self.linear(
                "down", layer, gate / (1 + np.exp(-gate)) * self.linear("up", layer, y)
            )
        logits: Array = self.norm(x, values["norm"]) @ values["head"].T
        return logits, {name: values[name] for name in ("keys", "values")}
