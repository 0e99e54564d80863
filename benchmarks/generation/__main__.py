#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare ways to generate tokens: eager transformers, xruntime's, and a static cache with torch.compile.

    python -m benchmarks.generation --quick
    python -m benchmarks.generation --size 0.5 --threads 16 --json generation.json
    python -m benchmarks.generation --size 0.1 0.5 1.2 --batch 1 4 --prompt 32 2048 --form eager linears step

Models are of Qwen2's kind, with random weights in bf16, built from their configuration: nothing is
downloaded. Every form generates the same number of tokens in each round, interleaved. Tokens a second are
those after the first one. The read limit is measured in each round, too: the best rate of a sum over
1 GB and of a linear of one row, in pages of 2 MiB; its share is of the weights' bytes, which every token reads.

Forms: `eager`; `linears`, xruntime with native linears of few rows only; `step`, xruntime's decode step, with
weights in pages of 2 MiB; `compiled`, a static cache and torch.compile with frozen weights, whose compilation is not counted.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

from benchmarks.harness.measurement import (
    in_turn,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from xruntime import optimize
from xruntime.generation.large_pages import collapse
from xruntime.generation.linear_rows import linear_rows

SIZES = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "vocab_size": 4096,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "0.1": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "0.5": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "vocab_size": 151936,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.2": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "vocab_size": 128256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
"""By billions of parameters."""

FORMS = ("eager", "linears", "step", "compiled")
READ_BYTES = 1 << 30
GEMV_SHAPE = (131072, 4096)


class Measured(NamedTuple):
    """One call of a form in one round."""

    first_s: float
    """Seconds to the first token."""
    rate: float
    """Tokens a second of each sequence, after the first."""


def new_model(size: str) -> Any:
    """Return a model of that size in bf16."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        config = Qwen2Config(**SIZES[size], tie_word_embeddings=True, max_position_embeddings=16384)
        model = Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


Generate = Callable[[torch.Tensor, int], Any]


def form_of(model: Any, form: str) -> Generate:
    """Return a function that generates that many tokens."""
    options: dict[str, Any] = {}
    if form == "compiled":
        import torch._inductor.config as inductor

        inductor.freezing = True
        model = copy.deepcopy(model)
        model.forward = torch.compile(model.forward, dynamic=None)
        options = {"cache_implementation": "static", "disable_compile": True}
    elif form == "linears":
        model = optimize(model, passes={"decode_step": False})
    elif form == "step":
        model = optimize(copy.deepcopy(model), inplace=True)

    def generate(ids: torch.Tensor, tokens: int) -> Any:
        with torch.inference_mode():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                **options,
            )

    return generate


def measured(generate: Generate, ids: torch.Tensor, tokens: int) -> Measured:
    """Time one call for a single token, and one for all."""
    began = time.perf_counter()
    generate(ids, 1)
    middle = time.perf_counter()
    generate(ids, tokens)
    first_s, all_s = middle - began, time.perf_counter() - middle
    return Measured(first_s, (tokens - 1) / max(all_s - first_s, 1e-9))


class ReadLimit:
    """Measures how fast memory is read, in bytes a second."""

    def __init__(self, size: int) -> None:
        self._values = torch.ones(size // 8, dtype=torch.int64)
        rows = min(GEMV_SHAPE[0], size // 2 // GEMV_SHAPE[1])
        self._weight = nn.Parameter(torch.ones(rows, GEMV_SHAPE[1]).bfloat16(), requires_grad=False)
        self._row = torch.ones(1, GEMV_SHAPE[1]).bfloat16()
        collapse((self._values, self._weight))

    def measure(self) -> float:
        """Return the best of both ways, of two calls each."""
        found = []
        for _ in range(2):
            for call, read in (
                (self._values.sum, self._values.nbytes),
                (lambda: linear_rows(self._row, self._weight, None), self._weight.nbytes),
            ):
                began = time.perf_counter()
                call()
                found.append(read / (time.perf_counter() - began))
        return max(found)


def measure_case(
    model: Any, size: str, batch: int, prompt: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure all forms with one prompt; the raw values of each round."""
    ids = torch.randint(3, 1000, (batch, prompt), generator=torch.Generator().manual_seed(1))
    forms = {form: form_of(model, form) for form in options.form}
    prepared_s = {}
    for form, generate in forms.items():
        began = time.perf_counter()
        generate(ids, 2)
        generate(ids, options.tokens)
        prepared_s[form] = time.perf_counter() - began
    limit = ReadLimit(options.read_bytes)
    limits: list[float] = []
    values: dict[str, list[Measured]] = {form: [] for form in forms}
    for number in range(options.rounds):
        limits.append(limit.measure())
        for form in in_turn(list(forms), number):
            values[form].append(measured(forms[form], ids, options.tokens))
    return {
        "size": size,
        "batch": batch,
        "prompt": prompt,
        "tokens": options.tokens,
        "weight_bytes": sum(one.nbytes for one in model.parameters()),
        "read_limit_bytes_per_s": limits,
        "prepared_s": prepared_s,
        "forms": {form: [one._asdict() for one in rounds] for form, rounds in values.items()},
    }


def rows_of(case: dict[str, Any]) -> list[list[str]]:
    """The lines of the table for one case."""
    limit = max(case["read_limit_bytes_per_s"])
    medians = {
        form: [statistics.median(one[name] for one in rounds) for name in ("rate", "first_s")]
        for form, rounds in case["forms"].items()
    }
    base = medians.get("eager")
    rows = []
    for form, (rate, first_s) in medians.items():
        times = "-" if base is None else f"{rate / base[0]:.2f}"
        share = rate * case["weight_bytes"] / limit
        name = f"{case['size']} B, batch {case['batch']}, prompt {case['prompt']}: {form}"
        rows.append([name, f"{rate:.1f}", times, f"{share:.0%}", f"{first_s:.3f}"])
    return rows


def main() -> int:
    parser = option_parser(__doc__, rounds=5)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few tokens")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["0.1", "0.5", "1.2"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--prompt", nargs="+", type=int, default=[32, 2048], help="tokens")
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate, default 64")
    parser.add_argument("--threads", type=int, help="default: torch's")
    options = parser.parse_args()
    options.read_bytes = READ_BYTES
    if options.quick:
        options.size, options.batch, options.prompt = ["tiny"], [1], [32]
        options.tokens, options.rounds, options.read_bytes = 16, 2, 1 << 26
        options.form = [form for form in options.form if form != "compiled"]
    if options.tokens < 2 or min(*options.batch, *options.prompt, 1) < 1:
        parser.error("--tokens needs at least 2, --batch and --prompt at least 1")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    print(f"{machine_line()}; torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    cases: list[dict[str, Any]] = []
    with until_stopped():
        for size in options.size:
            model = new_model(size)
            for batch in options.batch:
                for prompt in options.prompt:
                    print(f"{size} B, batch {batch}, prompt {prompt} ...", file=sys.stderr)
                    cases.append(measure_case(model, size, batch, prompt, options))
                    gc.collect()
            del model
            gc.collect()
    header = ("case", "tokens/s", "times eager", "of the read limit", "first token, s")
    print_table(header, [row for case in cases for row in rows_of(case)])
    if cases:
        best = max(max(case["read_limit_bytes_per_s"]) for case in cases)
        print(f"\nread limit: {best / 1e9:.1f} GB/s")
    threads = torch.get_num_threads()
    values = {"torch": torch.__version__, "threads": threads, "cases": cases}
    write_raw(options.json, "generation", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
