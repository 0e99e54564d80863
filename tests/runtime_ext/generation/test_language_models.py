# SPDX-License-Identifier: Apache-2.0
"""Models with transformers' generate(), optimized."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.generation import linear_rows  # noqa: E402
from xruntime.generation.language_models import generates  # noqa: E402
from xruntime.generation.linear_layers import linear_kinds  # noqa: E402
from xruntime.optimization import PassOutcome, explain  # noqa: E402


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of weights that native code was called with."""
    found, original = [], linear_rows.linear_rows

    def counting(value: Any, weight: Any, bias: Any) -> Any:
        found.append(tuple(weight.shape))
        return original(value, weight, bias)

    monkeypatch.setattr(linear_rows, "linear_rows", counting)
    return found


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
    )
    return LlamaForCausalLM(config).eval()


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=300,
        d_model=128,
        d_kv=32,
        d_ff=160,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def image_gpt() -> Any:
    """A model of Conv1D layers, without a decode step."""
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    config = ImageGPTConfig(vocab_size=301, n_positions=64, n_embd=128, n_layer=2, n_head=4)
    return ImageGPTForCausalImageModeling(config).eval()


OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
MODULES = {"decode_step": False}
PROMPT = torch.arange(3, 10)[None]


@pytest.mark.parametrize("make", [llama, t5, image_gpt])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_generate_reads_weights_natively(
    make: Any, dtype: torch.dtype | None, computed: list[Any]
) -> None:
    model = make()
    assert generates(model)
    optimized = optimize(model, dtype=dtype, passes=MODULES)
    assert explain(optimized).step("linear_rows").outcome is PassOutcome.APPLIED
    tokens = optimized.generate(PROMPT, **OPTIONS)
    assert len(computed) >= 7 * 8
    plain = [module for module in model.modules() if type(module) in linear_kinds()]
    assert len(plain) > 7  # the model itself is as it was
    if dtype is None:
        assert torch.equal(tokens, model.generate(PROMPT, **OPTIONS))
        assert not list(set(optimized.parameters()) & set(model.parameters()))
        assert {p.data_ptr() for p in optimized.parameters()} == {
            p.data_ptr() for p in model.parameters()
        }
    with torch.no_grad():
        inputs = {"input_ids": PROMPT, "use_cache": False}
        inputs |= {"decoder_input_ids": PROMPT} if make is t5 else {}
        found, expected = optimized(**inputs).logits, model(**inputs).logits
    assert found.dtype == torch.float32
    tolerance = 1e-5 if dtype is None else 0.05
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_weights_in_bf16_as_they_lie(computed: list[Any]) -> None:
    model = llama().bfloat16()
    optimized = optimize(model, dtype=torch.bfloat16, inplace=True, passes=MODULES)
    assert optimized is model
    tokens = optimized.generate(PROMPT, **OPTIONS)
    assert tokens.shape == (1, 15)
    # The first token's linears have seven rows, except the head's; keys and values have few weights.
    assert len(computed) == 7 * 2 * 5 + 8


@pytest.mark.parametrize("wait", [True, False])
def test_nothing_is_compiled(wait: bool, computed: list[Any]) -> None:
    sample = {"input_ids": PROMPT}
    model = llama()
    optimized = optimize(model, sample_input=sample, wait=wait, passes=MODULES)
    step = explain(optimized).step("graph")
    assert step.outcome is PassOutcome.SKIPPED
    assert "longer sequence for each token" in step.reason
    assert torch.equal(optimized.generate(PROMPT, **OPTIONS), model.generate(PROMPT, **OPTIONS))
    assert computed


def test_the_pass_can_be_switched_off(computed: list[Any]) -> None:
    optimized = optimize(llama(), passes={"linear_rows": False, **MODULES})
    optimized.generate(PROMPT, **OPTIONS)
    assert not computed


def test_other_models_have_torchs_linears() -> None:
    optimized = optimize(nn.Sequential(nn.Linear(200, 200)).eval())
    assert type(optimized[0]) is nn.Linear
    assert "linear_rows" not in [step.name for step in explain(optimized).steps]
