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
PHI3: Final = {"pad_token_id": 0}
GEMMA: Final = {"head_dim": 18, "query_pre_attn_scalar": 20, "sliding_window": 12} | {
    "attn_logit_softcapping": 2.0
}
UNCAPPED: Final = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
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
    "phi3": ("Phi3", PHI3),
    "phi3-sliding": ("Phi3", PHI3 | {"sliding_window": 12}),
    "phi3-partial": ("Phi3", PHI3 | _rope("default", partial_rotary_factor=0.5)),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2-uncapped": ("Gemma2", GEMMA | UNCAPPED),
    "gemma3": ("Gemma3", GEMMA | {"final_logit_softcapping": 3.0}),
    "phi": ("Phi", {}),
    "phi-head-norms": ("Phi", {"qk_layernorm": True, "num_key_value_heads": 6}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neox-sequential": ("GPTNeoX", {"use_parallel_residual": False, "hidden_act": "relu"}),
    "gpt2": ("GPT2", {"n_inner": 101}),
    "gpt2-upcast": ("GPT2", {"reorder_and_upcast_attn": True, "scale_attn_weights": False}),
    "opt": ("OPT", {"ffn_dim": 101, "word_embed_proj_dim": 72}),
    "opt-without-biases": (
        "OPT",
        {"ffn_dim": 101, "word_embed_proj_dim": 72, "enable_bias": False},
    ),
}


def decoder(case: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A model whose norms and biases are random, too."""
    import transformers

    name, special = CASES[case]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**SIZES, **special, **sizes})
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model = getattr(transformers, name + kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.generation_config.pad_token_id = 0
    return model.to(dtype)
