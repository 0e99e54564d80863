# SPDX-License-Identifier: Apache-2.0
"""Generate text, or tokens of a model with random weights, and print how fast that was.

    python examples/generate.py
    xlaunch --optimize auto -- examples/generate.py
    xlaunch --optimize auto -- examples/generate.py --model ~/models/Qwen2.5-0.5B-Instruct --prompt "The capital of France is"
    xtune --metric tokens/s --param batch=1,4,8 -- examples/generate.py --batch {batch}

Without --model, a Llama-like model of 134 million random weights in bf16 is built from its
configuration, and nothing is asked of a network: its tokens mean nothing, its speed is that of a trained
model. With --model, a directory with the weights and tokenizer of a language model is loaded. The last
lines are the seconds to the first token, and the tokens a second of all sequences after it.

Needs `pip install transformers`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is asked of a network

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

PROMPT = "Once upon a time"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def random_model(dtype: torch.dtype) -> Any:
    """Return a Llama-like model of 134 million random weights."""
    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        vocab_size=32000,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(dtype).eval()


def timed(model: Any, ids: torch.Tensor, tokens: int) -> tuple[torch.Tensor, float]:
    """Generate exactly so many tokens; return all tokens and the seconds."""
    began = time.perf_counter()
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return found, time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="directory of a language model")
    parser.add_argument("--prompt", help=f"text to continue, default {PROMPT!r}; needs --model")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate, default 64")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once, default 1")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="default bf16")
    arguments = parser.parse_args()
    if arguments.tokens < 2:
        parser.error(f"--tokens {arguments.tokens}: at least 2 are needed")
    if arguments.batch < 1:
        parser.error(f"--batch {arguments.batch}: at least 1 is needed")
    if arguments.prompt is not None and arguments.model is None:
        parser.error("--prompt needs --model: random weights know no words")
    if arguments.model is not None and not (arguments.model / "config.json").is_file():
        parser.error(f"--model {arguments.model}: not a directory with a config.json")
    logging.set_verbosity_error()
    dtype, tokenizer = DTYPES[arguments.dtype], None
    if arguments.model is None:
        model, ids = random_model(dtype), torch.arange(3, 35)[None]
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        ids = tokenizer(arguments.prompt or PROMPT, return_tensors="pt").input_ids
    ids = ids.repeat(arguments.batch, 1)
    size = sum(parameter.numel() for parameter in model.parameters())
    sequences = "" if arguments.batch == 1 else f"{arguments.batch} sequences of "
    print(
        f"{type(model).__name__}: {size:,} parameters, {arguments.dtype}, {sequences}{ids.shape[1]} tokens"
    )
    timed(model, ids, 2)  # the first calls prepare things
    _, first_s = timed(model, ids, 1)
    found, all_s = timed(model, ids, arguments.tokens)
    if tokenizer is None:
        print(f"tokens: {found[0, ids.shape[1] :][:8].tolist()} ...")
    else:
        print(tokenizer.decode(found[0], skip_special_tokens=True))
    print(f"first token after {first_s:.3f} s")
    count = arguments.batch * (arguments.tokens - 1)
    print(f"{count / max(all_s - first_s, 1e-9):.1f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
