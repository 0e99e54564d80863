# SPDX-License-Identifier: Apache-2.0
"""The families of language models that have a decode step: a table, and the names of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

NORMS: Final = (
    "input_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm", "query_norm", "key_norm",
)  # fmt: skip
LINEARS: Final = ("query", "key", "value", "output", "gate", "up", "down")
"""Names of a layer's parts, each of which may be missing; its bias is NAME_bias."""


class Family(NamedTuple):
    """A row of the table: where modules are, how their classes are called, and what they compute."""

    prefix: str
    """How the names of its classes begin."""

    parts: Mapping[str, str]
    """Of a layer: parts, and the paths of their modules. Several parts of one module are its rows in that order."""

    model: str = "ForCausalLM"
    body: tuple[str, str] = ("model", "Model")
    """The path of what has the layers, and its class without the prefix, as in the following."""

    layers: tuple[str, str] = ("layers", "DecoderLayer")
    attention: str = "self_attn"
    grouped: bool = True
    """Whether several heads may share keys and values."""

    mlp: str = "mlp"
    """Empty: its linears are the layer's own."""

    activation: str = "mlp.act_fn"
    embedding: tuple[str, str] = ("embed_tokens", "")
    """Without a class it is torch's."""

    places: tuple[str, str] = ("", "")
    """Learned embeddings of positions."""

    norm: str = "norm"
    norms: str = "RMSNorm"
    """Their class; empty: torch's LayerNorm."""

    norm_offset: float = 0
    rotary: str = "rotary_emb"
    windows: str = ""
    """Which layers have sliding windows: "all", those that config's layer_types name ("types"), or none."""

    rotary_by_type: bool = False
    """Whether layers of different layer_types have different rotary embeddings."""

    parallel: bool | str = False
    """Whether attention and MLP see the same values, or the attribute of a layer that says so."""

    score_cap: bool = False
    logit_cap: bool = False
    """Whether config names soft caps of attention scores and logits."""

    padded_places: bool = False
    """Whether positions that a call does not pass count without padding."""

    needs: Mapping[str, object] = {}
    """Attributes that each layer must have."""

    outputs: str = "CausalLMOutputWithPast"


_NORMS: Final = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_ATTENTION: Final = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
}
_MLP: Final = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_HEAD_NORMS: Final = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
_LLAMA: Final = {**_NORMS, **_ATTENTION, **_MLP}
_GEMMA2: Final = {
    **_LLAMA,
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_gemma2: Final = Family(
    "Gemma2",
    _GEMMA2,
    embedding=("embed_tokens", "TextScaledWordEmbedding"),
    norm_offset=1,
    windows="types",
    score_cap=True,
    logit_cap=True,
    needs={"self_attn.is_causal": True},
)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama", _LLAMA),
    "mistral": Family("Mistral", _LLAMA, windows="all"),
    "qwen2": Family("Qwen2", _LLAMA, windows="types"),
    "qwen3": Family("Qwen3", {**_LLAMA, **_HEAD_NORMS}, windows="types"),
    "phi3": Family(
        "Phi3",
        {
            **_NORMS,
            "query key value": "self_attn.qkv_proj",
            "output": "self_attn.o_proj",
            "gate up": "mlp.gate_up_proj",
            "down": "mlp.down_proj",
        },
        activation="mlp.activation_fn",
        windows="all",
    ),
    "gemma2": _gemma2,
    "gemma3": _gemma2._replace(
        prefix="Gemma3",
        parts={**_GEMMA2, **_HEAD_NORMS},
        body=("model", "TextModel"),
        rotary_by_type=True,
        score_cap=False,
    ),
    "phi": Family(
        "Phi",
        {
            "input_norm": "input_layernorm",
            "mlp_norm": "input_layernorm",
            "query_norm": "self_attn.q_layernorm",
            "key_norm": "self_attn.k_layernorm",
            **_ATTENTION,
            "output": "self_attn.dense",
            "up": "mlp.fc1",
            "down": "mlp.fc2",
        },
        activation="mlp.activation_fn",
        norm="final_layernorm",
        norms="",
        parallel=True,
    ),
    "gpt_neox": Family(
        "GPTNeoX",
        {
            **_NORMS,
            "query": "attention.query_key_value",
            "output": "attention.dense",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        },
        body=("gpt_neox", "Model"),
        layers=("layers", "Layer"),
        attention="attention",
        grouped=False,
        activation="mlp.act",
        embedding=("embed_in", ""),
        norm="final_layer_norm",
        norms="",
        parallel="use_parallel_residual",
    ),
    "gpt2": Family(
        "GPT2",
        {
            "input_norm": "ln_1",
            "mlp_norm": "ln_2",
            "query key value": "attn.c_attn",
            "output": "attn.c_proj",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        },
        model="LMHeadModel",
        body=("transformer", "Model"),
        layers=("h", "Block"),
        attention="attn",
        grouped=False,
        activation="mlp.act",
        embedding=("wte", ""),
        places=("wpe", ""),
        norm="ln_f",
        norms="",
        rotary="",
        outputs="CausalLMOutputWithCrossAttentions",
    ),
    "opt": Family(
        "OPT",
        {
            "input_norm": "self_attn_layer_norm",
            "mlp_norm": "final_layer_norm",
            **_ATTENTION,
            "output": "self_attn.out_proj",
            "up": "fc1",
            "down": "fc2",
        },
        body=("model.decoder", "Decoder"),
        grouped=False,
        mlp="",
        activation="activation_fn",
        places=("embed_positions", "LearnedPositionalEmbedding"),
        norm="final_layer_norm",
        norms="",
        rotary="",
        padded_places=True,
        needs={"do_layer_norm_before": True},
    ),
}
"""By transformers' names of families."""
