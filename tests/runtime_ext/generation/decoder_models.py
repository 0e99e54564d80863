# SPDX-License-Identifier: Apache-2.0
"""Tiny models of each family that has a decode step, with sizes that fit no vector."""

from __future__ import annotations

from typing import Any, Final

import torch

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 72,
    "intermediate_size": 101,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 301,
}


def _rope(kind: str, **values: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **values}}


SHORT: Final = {"original_max_position_embeddings": 32}
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama3": (
        "Llama",
        _rope("llama3", factor=8, low_freq_factor=1, high_freq_factor=4, **SHORT),
    ),
    "llama-linear": ("Llama", _rope("linear", factor=2)),
    "llama-dynamic": ("Llama", {"max_position_embeddings": 32, **_rope("dynamic", factor=2)}),
    "llama-yarn": ("Llama", _rope("yarn", factor=4, **SHORT)),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 18}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-sliding": ("Mistral", {"sliding_window": 12}),
}


def decoder(case: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A model whose norms and biases are random, too."""
    import transformers

    name, special = CASES[case]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **special, **sizes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.generation_config.pad_token_id = 0
    return model.to(dtype)
