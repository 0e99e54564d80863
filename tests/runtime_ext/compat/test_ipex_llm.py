# SPDX-License-Identifier: Apache-2.0
"""`ipex.llm.optimize`: which of its arguments are followed, and what is said of the others."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.runtime_ext.generation.decoder_models import decoder

import xruntime.compat.ipex as ipex
from xruntime.compat.ipex import replacements
from xruntime.errors import CompatibilityError, CompatibilityWarning
from xruntime.optimization import PassOutcome, explain

PROMPT = torch.arange(3, 10)[None]
quantization: Any = ipex.quantization


@pytest.fixture(autouse=True)
def nothing_reported() -> None:
    replacements.reported.clear()


@pytest.fixture
def model(native: None, needs: Any) -> Any:
    needs(find_spec("transformers"), "pip install transformers")
    torch.manual_seed(0)
    return decoder("llama", hidden_size=192, intermediate_size=256, num_hidden_layers=1)


def test_the_precision_stays_or_becomes_bf16(model: Any, one_thread: None) -> None:
    fast = ipex.llm.optimize(model)
    assert explain(fast).step("decode_step").outcome is PassOutcome.APPLIED
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    assert torch.equal(fast.generate(PROMPT, **options), model.generate(PROMPT, **options))
    fast = ipex.llm.optimize(model, dtype=torch.bfloat16, inplace=True)
    assert fast is model
    assert fast.model.layers[0].mlp.up_proj.weight.dtype is torch.bfloat16
    assert fast.generate(PROMPT, **options).shape == (1, 13)


@pytest.mark.parametrize("name", ["INT8", "INT4"])
def test_weights_of_few_bits(model: Any, one_thread: None, name: str) -> None:
    config = quantization.get_weight_only_quant_qconfig_mapping(
        weight_dtype=quantization.WoqWeightDtype[name]
    )
    fast = ipex.llm.optimize(model, dtype=torch.bfloat16, quantization_config=config)
    assert explain(fast).step("weight_bits").outcome is PassOutcome.APPLIED
    assert fast.generate(PROMPT, max_new_tokens=4, min_new_tokens=4).shape == (1, 11)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sample_inputs": (PROMPT,)}, "no sample is needed"),
        ({"deployment_mode": False}, "generates as it is"),
        ({"cache_weight_for_large_batch": True}, "reads the same weights"),
        ({"qconfig_summary_file": "conf.json"}, "static quantization"),
    ],
)
def test_arguments_without_effect_are_reported(
    model: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.warns(CompatibilityWarning, match=said):
        ipex.llm.optimize(model, **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"optimizer": object()}, r"use ipex\.optimize\(model, optimizer=optimizer\)"),
        ({"device": "xpu"}, "only 'cpu' is possible"),
        ({"low_precision_checkpoint": {}}, "by transformers' from_pretrained"),
        ({"quantization_config": torch.ao.quantization.QConfigMapping()}, "SmoothQuant torchao"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(CompatibilityError, match=said):
        ipex.llm.optimize(torch.nn.Linear(2, 2), **arguments)


def test_other_settings_of_weights_are_reported() -> None:
    with pytest.warns(CompatibilityWarning, match="follows weight_dtype alone"):
        quantization.get_weight_only_quant_qconfig_mapping(
            lowp_mode=quantization.WoqLowpMode.BF16, group_size=128
        )
    for other in ("NF4", "FP8"):
        with pytest.raises(CompatibilityError, match=r"WoqWeightDtype\.INT8 and INT4"):
            quantization.get_weight_only_quant_qconfig_mapping(
                weight_dtype=quantization.WoqWeightDtype[other]
            )


def test_numbers_of_settings_are_those_of_the_extension() -> None:
    """As intel_extension_for_pytorch 2.8 has them: programs may pass the numbers."""
    assert list(quantization.WoqWeightDtype) == [1, 2, 3, 4]
    assert quantization.WoqActQuantMode.NONE == -1
    assert quantization.WoqActQuantMode.PER_BATCH_IC_BLOCK_SYM == 7
    assert (quantization.WoqLowpMode.INT8, quantization.WoqWeightQScheme.SYMMETRIC) == (3, 2)
