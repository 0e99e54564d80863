# SPDX-License-Identifier: Apache-2.0
"""Models of Qwen2's kind and GPT-2 with random weights in bf16, built from their configuration and written to files."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

SIZES: Final = {
    "tiny": (256, 512, 4, 4096, 4, 2),
    "0.1": (576, 1536, 30, 49152, 9, 3),
    "0.5": (896, 4864, 24, 151936, 14, 2),
    "1.2": (2048, 8192, 16, 128256, 32, 8),
}
"""By billions of parameters: the values of `_NAMES`."""

GPT2: Final = "gpt2"
"""In place of a size: GPT-2 of 0.12 billion parameters, whose weights are stored as (inputs, outputs)."""

_NAMES: Final = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads"),
)
POSITIONS: Final = 16384
GPT2_POSITIONS: Final = 4096

_GGUF_NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""llama.cpp's names of tensors."""


def new_model(size: str) -> Any:
    """Return a model of that size in bf16."""
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model: Any
        if size == GPT2:
            model = GPT2LMHeadModel(GPT2Config(n_positions=GPT2_POSITIONS)).eval()
        else:
            sizes: dict[str, Any] = dict(zip(_NAMES, SIZES[size], strict=True))
            sizes |= {"tie_word_embeddings": True, "max_position_embeddings": POSITIONS}
            model = Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


GGUF_FORMS: Final = {"llama.cpp": "BF16", "llama.cpp-q8_0": "Q8_0", "llama.cpp-q4_0": "Q4_0"}
"""By forms that llama.cpp computes: gguf's type of their matrices."""


def gguf_path(directory: Path, form: str) -> Path:
    """Return where the model of such a form is."""
    return directory / f"model-{GGUF_FORMS[form]}.gguf"


def save(size: str, directory: Path, forms: Iterable[str]) -> int:
    """Write a model as transformers loads it and, for some forms, as llama.cpp does; return its bytes."""
    model = new_model(size)
    model.save_pretrained(directory)
    for form in GGUF_FORMS.keys() & set(forms):
        _save_gguf(model, gguf_path(directory, form), GGUF_FORMS[form])
    return sum(parameter.nbytes for parameter in model.parameters())


def can_save_gguf() -> bool:
    """Whether llama.cpp's bindings and the package that writes its files are installed."""
    return find_spec("llama_cpp") is not None and find_spec("gguf") is not None


def _save_gguf(model: Any, path: Path, kind: str) -> None:
    import gguf  # type: ignore[import-not-found,unused-ignore]

    config, matrices = model.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config.vocab_size)
    for name, value in model.named_parameters():
        place, kind = name.rsplit(".", 1)
        prefix = ""
        if place.startswith("model.layers."):
            _, _, number, place = place.split(".", 3)
            prefix = f"blk.{number}."
        to = f"{prefix}{_GGUF_NAMES[place]}.{kind}"
        if value.dim() == 1:
            writer.add_tensor(to, value.detach().float().numpy())
        elif kind == "BF16":
            raw = value.detach().contiguous().view(torch.uint8).numpy()
            writer.add_tensor(to, raw, raw_dtype=matrices)
        else:
            raw = gguf.quants.quantize(value.detach().float().numpy(), matrices)
            writer.add_tensor(to, raw, raw_dtype=matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
