# SPDX-License-Identifier: Apache-2.0
"""Every way to call an optimized module gives what the model gives: calls, gradients, methods, parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xruntime import optimize
from xruntime.optimization import PassOutcome, explain


class Calling(nn.Module):
    """Its class has a `__call__` of its own, which changes the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout()
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        return self.drop(self.linear(values)).relu()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2 + 1


@pytest.mark.parametrize("graph", ["none", pytest.param("auto", marks=pytest.mark.long)])
def test_own_call_is_applied_once_and_gradients_to_inputs_are_kept(
    graph: str, compiler: None
) -> None:
    model, sample = Calling(), torch.randn(3, 4)
    optimized = optimize(model, sample_input=sample, graph=graph)
    assert explain(optimized).difference.relative < 1e-5
    torch.testing.assert_close(optimized(sample), model(sample))
    assert not optimized(sample).requires_grad
    with torch.device("cpu"):  # a default device changes nothing
        assert not optimized(sample).requires_grad
    found, expected = (sample.clone().requires_grad_() for _ in range(2))
    optimized(found).sum().backward()
    model(expected).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
    assert found.grad.any()
    with torch.no_grad():
        assert not optimized(found).requires_grad
    for function in (
        lambda called: torch.func.grad(lambda values: called(values).sum())(sample),
        lambda called: torch.func.jvp(called, (sample,), (torch.ones(3, 4),))[1],
        lambda called: torch.vmap(called)(sample),
    ):
        torch.testing.assert_close(function(optimized), function(model))


def test_gradient_to_an_input_inside_of_a_nest() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.eval()

        def forward(self, parts: dict[str, list[Tensor]]) -> Tensor:
            return self.linear(parts["values"][0])

    optimized = optimize(Nested(), sample_input=({"values": [torch.ones(2, 4)]},), graph="none")
    inner = torch.ones(2, 4, requires_grad=True)
    optimized({"values": [inner]}).sum().backward()
    assert inner.grad is not None


class Encoder(nn.Module):
    """Has methods besides forward: one of its own, and those of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)
        self.eval()

    def encode(self, ids: Tensor) -> Tensor:
        hidden = self.convolution(self.tokens(ids).transpose(1, 2)).transpose(1, 2)
        return self.norm(self.queries(hidden).relu() + self.keys(hidden))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encode(ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_methods_and_parts_take_and_return_float32(dtype: torch.dtype) -> None:
    model, ids = Encoder(), torch.randint(0, 10, (2, 5))
    optimized = optimize(model, sample_input=ids, graph="none", dtype=dtype)
    assert explain(optimized).step("weights").outcome is PassOutcome.APPLIED
    assert explain(optimized).step("join_linears").outcome is PassOutcome.APPLIED
    hidden = torch.randn(2, 5, 8)
    calls = [
        lambda it: it.encode(ids),
        lambda it: it.head(hidden),
        lambda it: it.queries(hidden),
        lambda it: it.keys(hidden),
        lambda it: it.tokens(ids),
        lambda it: it.convolution(hidden.transpose(1, 2)),
    ]
    for call in calls:
        found, expected = call(optimized), call(model)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    # What is in the lower precision stays in it, as do calls under autocast.
    assert optimized.head(hidden.to(dtype)).dtype == dtype
    with torch.autocast("cpu", dtype=dtype):
        assert optimized.head(hidden).dtype == optimized.queries(hidden).dtype == dtype
    # One input, first under autocast and then not.
    with torch.autocast("cpu", dtype=dtype):
        optimized.queries(hidden)
    assert optimized.keys(hidden).dtype == torch.float32


SIZES = {"vocab_size": 60, "d_model": 32}


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    wide = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64)
    return BartForConditionalGeneration(BartConfig(**SIZES, **layers, **heads, **wide)).eval()


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        **SIZES, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config).eval()


@pytest.mark.long
@pytest.mark.parametrize("make", [bart, t5])
def test_generate_in_bf16(make: Any) -> None:
    model, ids = make(), torch.randint(3, 50, (2, 6))
    call = {"input_ids": ids, "decoder_input_ids": ids}
    optimized = optimize(model, sample_input=call, dtype=torch.bfloat16, graph="none")
    assert explain(optimized).step("weights").outcome is PassOutcome.APPLIED
    options = {"max_new_tokens": 5, "min_new_tokens": 5}
    assert optimized.generate(ids, **options).shape == model.generate(ids, **options).shape


def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=60,
    )
    return BertModel(config).eval()


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.1)])
def test_transformers_model(dtype: torch.dtype | None, tolerance: float) -> None:
    model, ids = bert(), torch.randint(0, 50, (2, 6))
    mask = {"attention_mask": torch.ones(2, 6, dtype=torch.long)}
    optimized = optimize(model, sample_input=((ids,), mask), graph="none", dtype=dtype)
    assert explain(optimized).step("join_linears").outcome is PassOutcome.APPLIED
    found, expected = optimized(ids, **mask), model(ids, **mask)
    assert type(found) is type(expected)
    torch.testing.assert_close(
        found.last_hidden_state, expected.last_hidden_state, rtol=tolerance, atol=tolerance
    )


@pytest.mark.long
@pytest.mark.parametrize("use", ["inference", "without a sample", "training"])
def test_transformers_finds_the_models_own_name_and_dtype(use: str, tmp_path: Path) -> None:
    from transformers import BertModel

    model, ids = bert(), torch.randint(0, 50, (2, 6))
    if use == "training":
        optimizer = torch.optim.AdamW(model.parameters())
        optimized, _ = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    else:
        sample = ids if use == "inference" else None
        optimized = optimize(model, sample_input=sample, dtype=torch.bfloat16, graph="none")
    optimized.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == ["BertModel"]
    assert saved["dtype"] == "float32"
    again = BertModel.from_pretrained(tmp_path)
    torch.testing.assert_close(dict(again.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    # transformers finds by the class's name which layers' outputs are hidden states.
    found = optimized(ids, output_hidden_states=True).hidden_states
    expected = model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


@pytest.mark.long
def test_hooks_that_transformers_leaves_behind_are_compiled(compiler: None) -> None:
    model, ids = bert(), torch.randint(0, 50, (2, 6))
    expected = model(ids, output_hidden_states=True)
    optimized = optimize(model, sample_input=ids)
    assert explain(optimized).step("graph").outcome is PassOutcome.APPLIED
    found = optimized(ids)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
    found = optimized(ids, output_hidden_states=True)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states)


@pytest.mark.parametrize("training", [False, True])
def test_slice_of_a_sequential_is_a_plain_module(training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).train(training)
    values = torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if training else None
    made = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    part = (made[0] if isinstance(made, tuple) else made)[:2]
    assert type(part) is nn.Sequential
    torch.testing.assert_close(part(values), model[:2](values), rtol=0.05, atol=0.05)


def test_vmap_of_layers_with_weights_in_bf16() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    images = torch.randn(3, 2, 3, 6, 6)
    optimized = optimize(model, sample_input=images[0], graph="none", dtype=torch.bfloat16)
    found, expected = torch.vmap(optimized)(images), torch.vmap(model)(images)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_nested_tensors() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    rows = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    for sample in (rows, torch.randn(2, 4)):
        fast = optimize(model, sample_input=sample, graph="none")
        torch.testing.assert_close([*fast(rows).unbind()], [*model(rows).unbind()])
