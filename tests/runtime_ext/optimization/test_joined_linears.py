# SPDX-License-Identifier: Apache-2.0
"""Linears whose weights `optimize` joined stay layers of the model: what a program does to one of them counts."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, vector_to_parameters

from xruntime.optimization import PassOutcome, explain, optimize

WIDTH = 8
MODES = (torch.enable_grad, torch.inference_mode)
VALUES = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        q, k, v = self.q(values), self.k(values), self.v(values)
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Doubled(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, values: Tensor) -> Tensor:
        return 2 * self.base(values)


def rows_of_linears(monkeypatch: pytest.MonkeyPatch, model: Callable[..., Any]) -> list[int]:
    """How many rows the weight of each product in one call has."""
    rows: list[int] = []
    linear = nn.functional.linear

    def counted(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows.append(len(weight))
        return linear(value, weight, bias)

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "linear", counted)
        model(VALUES)
    return rows


def other_weight() -> Tensor:
    return torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH)


def scale(model: Any) -> None:
    """Change a weight in a way that torch does not count."""
    model.k.weight.data.mul_(1.5)


CHANGES: dict[str, Callable[[Any], object]] = {
    "data": lambda model: setattr(model.k.weight, "data", other_weight()),
    "transposed": lambda model: setattr(model.k.weight, "data", model.k.weight.data.t()),
    "parameter": lambda model: setattr(model.k, "weight", nn.Parameter(other_weight())),
    "in place": lambda model: model.k.weight.data.mul_(2),
    "vector": lambda model: vector_to_parameters(other_weight().view(-1), model.k.parameters()),
    "loaded": lambda model: model.k.load_state_dict({"weight": other_weight()}),
    "assigned": lambda model: model.k.load_state_dict({"weight": other_weight()}, assign=True),
    "converted": lambda model: model.k.half().float(),
    "pruned": lambda model: prune.l1_unstructured(model.k, "weight", 0.5),
    "normed": lambda model: parametrizations.weight_norm(model.k).to(torch.float32),
    "shared": lambda model: model.k.share_memory().weight.data.mul_(2),
    "hook before": lambda model: model.k.register_forward_pre_hook(lambda *_: scale(model)),
    "hook behind": lambda model: model.q.register_forward_hook(lambda *_: scale(model)),
    "wrapped": lambda model: setattr(model, "k", Doubled(model.k)),
    "swapped": lambda model: setattr(model, "k", nn.Identity()),
    "first swapped": lambda model: setattr(model, "q", nn.Identity()),
    "tied": lambda model: setattr(model.k, "weight", model.q.weight),
    "one for two": lambda model: setattr(model, "k", model.q),
    "bias": lambda model: setattr(model.k, "bias", nn.Parameter(torch.ones(WIDTH))),
    "no bias": lambda model: setattr(model.v, "bias", None),
    "forward": lambda model: setattr(model.k, "forward", lambda values: values),
    "copied": lambda model: setattr(model, "k", copy.deepcopy(model.q)),
    "loaded from another": lambda model: model.v.load_state_dict(model.q.state_dict()),
}


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, *(pytest.param(it, marks=pytest.mark.long) for it in MODES)],
)
@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_one_linear_are_followed(
    change: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Attention()
    fast = optimize(model, sample_input=VALUES, graph="none")
    assert rows_of_linears(monkeypatch, fast) == [3 * WIDTH]
    with mode():
        for changed in (model, fast):
            CHANGES[change](changed)
        for values in (VALUES, VALUES + 1, VALUES):
            torch.testing.assert_close(fast(values), model(values))
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in fast.named_parameters()] == names


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_joined_linears_are_layers_of_the_model(
    dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Attention()
    fast = optimize(model, sample_input=VALUES, graph="none", dtype=dtype)
    assert explain(fast).step("join_linears").outcome is PassOutcome.APPLIED
    assert rows_of_linears(monkeypatch, fast) == [3 * WIDTH]
    assert isinstance(fast.k, nn.Linear)
    assert list(fast.k.state_dict()) == ["weight"]
    assert (explain(fast).bytes_kept == 0) is (dtype is None)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], value, rtol=0, atol=0)
    inputs = [VALUES.clone().requires_grad_() for _ in range(2)]
    for call, values in zip((fast, model), inputs, strict=True):
        call(values).sum().backward()
    close = {"rtol": 0.1, "atol": 0.2} if dtype else {}
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **close)
    for mine, theirs in zip(fast.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.float(), theirs.grad, **close)
    copied = copy.deepcopy(fast.q)
    torch.testing.assert_close(copied(VALUES), model.q(VALUES), **close)
    weights = {"k.weight": torch.zeros(WIDTH, WIDTH)}
    seen, expected = (torch.func.functional_call(it, weights, VALUES) for it in (fast, model))
    torch.testing.assert_close(seen, expected, **close)
    traced = torch.jit.trace(fast, VALUES)
    torch.testing.assert_close(traced(VALUES + 1), model(VALUES + 1), **close)
    assert {name for name, _ in traced.named_parameters()} == set(model.state_dict())
    program = torch.export.export(fast, (VALUES,))
    torch.testing.assert_close(program.module()(VALUES + 1), model(VALUES + 1), **close)


def test_linears_changed_in_place_keep_their_objects() -> None:
    model = Attention()
    query, expected = model.q, Attention()
    assert optimize(model, sample_input=VALUES, graph="none", inplace=True).q is query
    query.weight.data.zero_()
    expected.q.weight.data.zero_()
    torch.testing.assert_close(model(VALUES), expected(VALUES))


@pytest.mark.long
def test_libraries_hold_joined_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without oneDNN weights are not packed, and the compiler writes the memory behind each as it is."""
    monkeypatch.setenv("XRUNTIME_CACHE_DIR", f"{tmp_path}")
    model, values = Attention(1024), torch.randn(2, 4, 1024)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    fast = optimize(model, sample_input=values, wait=True)
    assert "joined 3 linears" in explain(fast).step("join_linears").reason
    sizes = [os.path.getsize(path) for path in tmp_path.rglob("*.so")]
    assert max(sizes) < 2 * sum(it.nbytes for it in model.parameters())
