# SPDX-License-Identifier: Apache-2.0
"""Steps of every optimizer, in every combination of formats. The formulas are those of optimizer.h."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from tests.kernels.recorded.cases import (
    Array,
    Case,
    Expectation,
    join,
    split,
    stored,
    to_bf16,
    values_of,
)

# Empty, odd, around the 256 elements of a block; two cases of each optimizer are large enough for a
# team, with tensors around the 8192 elements of a chunk.
SIZES = (1, 0, 7, 255, 256, 257, 513)
LARGE_SIZES = (8191, 3, 8193, 20_001)
FLOAT32, SPLIT, STOCHASTIC = range(3)
FORMATS = {"fp32": FLOAT32, "split": SPLIT, "stochastic": STOCHASTIC}
STEPS_BEFORE = 3

NUMBERS: dict[str, dict[str, float]] = {
    "sgd": {"momentum": 0.8, "dampening": 0.25, "nesterov": 0},
    "sgd/plain": {"momentum": 0, "dampening": 0, "nesterov": 0},
    "sgd/nesterov": {"momentum": 0.8, "dampening": 0, "nesterov": 1},
    "lars": {"momentum": 0.8, "dampening": 0.25, "nesterov": 0, "trust": 0.02, "eps": 1e-6},
    "adagrad": {"lr_decay": 0.01, "eps": 1e-6},
    "adam": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "decoupled": 0},
    "adam/decoupled": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "decoupled": 1},
    "lamb": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6},
}
SHARED = {"lr": 0.1, "weight_decay": 0.03}


def cases() -> Iterator[Case]:
    random = np.random.default_rng(0)
    for name in NUMBERS:
        types = itertools.product(FORMATS, ("fp32", "bf16"), ("fp32", "bf16"))
        for number, (weights, gradient, state) in enumerate(types):
            large = (gradient, state) == ("bf16", "fp32") and weights != "fp32"
            sizes = LARGE_SIZES if large else SIZES
            yield _case(name, weights, gradient, state, sizes, maximize=number % 4 == 3, of=random)


def _case(
    name: str,
    weights: str,
    gradient: str,
    state: str,
    sizes: tuple[int, ...],
    *,
    maximize: bool,
    of: np.random.Generator,
) -> Case:
    count = sum(sizes)
    numbers = SHARED | NUMBERS[name]
    numbers |= {"weight_format": FORMATS[weights], "maximize": maximize}
    masters = of.standard_normal(count).astype("<f4")
    arrays = {
        "sizes": np.array(sizes, dtype="<i8"),
        "gradients": stored(of.standard_normal(count), gradient),
        "first": stored(np.abs(of.standard_normal(count)), state),
        "second": stored(of.standard_normal(count) ** 2, state),
        "steps": np.full(len(sizes), STEPS_BEFORE, dtype="<f4"),
        "fresh": np.arange(len(sizes), dtype="<i4") % 2,
    }
    if weights == "split":
        arrays["weights"], arrays["remainders"] = split(masters)
        # Halves that were changed from outside, beside the remainders of other weights.
        arrays["weights"][3::5] = of.choice([0, 0x8000, 0x3F80, 0xBF80], len(masters[3::5]))
        masters = join(arrays["weights"], arrays["remainders"])
    else:
        arrays["weights"] = masters if weights == "fp32" else to_bf16(masters)
        masters = values_of(arrays["weights"])
    inputs = {
        "w": masters,
        "g": values_of(arrays["gradients"]) * (-1 if maximize else 1),
        "first": values_of(arrays["first"]),
        "second": values_of(arrays["second"]),
    }
    ends = np.cumsum(sizes)[:-1]
    tensors = zip(
        *(np.split(values.astype("<f8"), ends) for values in inputs.values()), strict=True
    )
    kind = name.partition("/")[0]
    results = [
        _step(kind, numbers, *tensor, fresh=bool(fresh), state=state)
        for tensor, fresh in zip(tensors, arrays["fresh"], strict=True)
    ]
    new_weights, first, second = (np.concatenate(field) for field in zip(*results, strict=True))
    counts = "lr_decay" in numbers or "beta1" in numbers
    # Lamb reads the stored moments: one that lies between two values of bf16 may become either.
    between = 2e-3 if kind == "lamb" and state == "bf16" else 1e-6
    # Stochastic rounding takes a neighbour.
    rtol = 2**-7 if weights == "stochastic" else 2e-6
    state_rtol = 2**-8 if state == "bf16" else 2e-6
    expectations = {
        "masters": Expectation(new_weights, rtol, between),
        "first": Expectation(first, state_rtol, 3e-7),
        "second": Expectation(second, state_rtol, 3e-7),
        "steps": Expectation(arrays["steps"] + counts),
        "fresh": Expectation(arrays["fresh"] * (0 if numbers.get("momentum") else 1)),
    }
    return Case(f"{name}/{weights}/{gradient}/{state}", numbers, arrays, expectations)


def _step(
    kind: str,
    n: dict[str, float],
    w: Array,
    g: Array,
    first: Array,
    second: Array,
    *,
    fresh: bool,
    state: str,
) -> tuple[Array, Array, Array]:
    """The weight and the states of one tensor after a step, in fp64."""
    lr, decay, t = n["lr"], n["weight_decay"], STEPS_BEFORE + 1
    if "momentum" in n:
        ratio = 1.0
        if kind == "lars" and w.size:
            ratio = n["trust"] * _norm(w) / (_norm(g) + decay * _norm(w) + n["eps"])
        g = ratio * (g + decay * w)
        if not n["momentum"]:
            return w - lr * g, first, second
        first = g if fresh else n["momentum"] * first + (1 - n["dampening"]) * g
        return w - lr * (g + n["momentum"] * first if n["nesterov"] else first), first, second
    if kind == "adagrad":
        g = g + decay * w
        first = first + g * g
        rate = lr / (1 + (t - 1) * n["lr_decay"])
        return w - rate * g / (np.sqrt(first) + n["eps"]), first, second
    if kind == "adam":
        w, g = (w * (1 - lr * decay), g) if n["decoupled"] else (w, g + decay * w)
    first = n["beta1"] * first + (1 - n["beta1"]) * g
    second = n["beta2"] * second + (1 - n["beta2"]) * g * g
    if kind == "lamb":
        first, second = (values_of(stored(values, state)) for values in (first, second))
    m, v = first / (1 - n["beta1"] ** t), second / (1 - n["beta2"] ** t)
    u = m / (np.sqrt(v) + n["eps"])
    if kind == "lamb":
        u = u + decay * w
        u = u * (_norm(w) / _norm(u) if w.size else 1.0)
    return w - lr * u, first, second


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(values * values)))
