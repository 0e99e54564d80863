# SPDX-License-Identifier: Apache-2.0
"""The process of one form: loads a model, then measures a call for each line of its standard input.

    python -m benchmarks.generation.form FORM DIRECTORY THREADS

The first line of its output comes when all is imported; it loads at the first line of its input. The second line of
output says what loading took, in JSON; each other line answers a request.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from torch import nn

from benchmarks.generation.models import GGUF_FORMS, POSITIONS, gguf_path

READ_BYTES: Final = 1 << 30
GEMV_INPUTS: Final = 4096
BITS: Final = {"bits8": 8, "bits4": 4}
"""Bits of all linears of a form, the output layer included."""

Generate = Callable[[list[list[int]], int], list[float]]
"""Takes ids of each sequence and a number of tokens; returns when each step ended."""


def memory() -> dict[str, int]:
    """Bytes of this process: resident, of these not from files, and the most that were resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(values[field].split()[0]) << 10 for name, field in names.items()}


def transformers_model(form: str, directory: Path, threads: int) -> tuple[Generate, Any]:
    """Return a function that generates, with transformers' loop but for OpenVINO; and the model in that loop."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    if form == "openvino":
        from benchmarks.generation.openvino_model import OpenVinoModel

        return OpenVinoModel(model, threads).generate, None
    options: dict[str, Any] = {}
    if form == "compiled":
        import torch._inductor.config as inductor

        inductor.freezing = True
        model.forward = torch.compile(model.forward, dynamic=None)
        options = {"cache_implementation": "static", "disable_compile": True}
    elif form != "eager":
        from xruntime import optimize

        inplace = form not in ("linears", "step-shared")
        passes = {"decode_step": False} if form == "linears" else None
        bits = BITS.get(form)
        model = optimize(model, inplace=inplace, passes=passes, weight_bits=bits, head_bits=bits)

    def generate(ids: list[list[int]], tokens: int) -> list[float]:
        ends: list[float] = []

        def note(sequences: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
            ends.append(time.perf_counter())
            return torch.zeros(len(sequences), dtype=torch.bool)

        tensor = torch.tensor(ids)
        with torch.inference_mode():
            model.generate(
                tensor,
                attention_mask=torch.ones_like(tensor),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                stopping_criteria=[note],
                **options,
            )
        return ends

    return generate, model


def model_of(form: str, directory: Path, threads: int) -> tuple[Generate, Any]:
    """Load the model for a form; return what generates, and transformers' model if it is one."""
    if form in GGUF_FORMS:
        from benchmarks.generation.llama_cpp_model import LlamaCppModel

        return LlamaCppModel(gguf_path(directory, form), threads).generate, None
    return transformers_model(form, directory, threads)


def report_of(form: str, model: Any) -> str:
    """What the decode step says of itself."""
    if form not in ("step", "step-shared", *BITS):
        return ""
    from xruntime.optimization import explain

    return explain(model).step("decode_step").reason


def bytes_of(form: str, directory: Path, model: Any) -> int | None:
    """Return the bytes of weights that a token reads, where they are not those of the model in bf16."""
    if form in GGUF_FORMS and form != "llama.cpp":
        return gguf_path(directory, form).stat().st_size
    if form in BITS:  # the output layer is tied to the embedding, and packed beside it
        tensors = (*model.parameters(), *model.buffers())
        return sum(tensor.nbytes for tensor in tensors) - int(
            model.get_input_embeddings().weight.nbytes
        )
    return None


def measured(generate: Generate, request: dict[str, int]) -> dict[str, float]:
    """Run conversations at once: seconds to the first token, and tokens a second after it of each sequence.

    With several conversations: the latest first token, and the sum of their rates.
    """
    generator = torch.Generator().manual_seed(1)
    shape = (request["batch"], request["prompt"])
    ids: list[list[int]] = torch.randint(3, 1000, shape, generator=generator).tolist()
    tokens = request["tokens"]
    with concurrent.futures.ThreadPoolExecutor(request["conversations"]) as pool:
        began = time.perf_counter()
        running = [pool.submit(generate, ids, tokens) for _ in range(request["conversations"])]
        ends_of_each = [one.result() for one in running]
    rate = sum((tokens - 1) / max(ends[-1] - ends[0], 1e-9) for ends in ends_of_each)
    return {"first_s": max(ends[0] for ends in ends_of_each) - began, "rate": rate}


class ReadLimit:
    """Measures how fast memory is read, in bytes a second."""

    def __init__(self, size: int) -> None:
        from xruntime.generation.large_pages import put_into_large_pages

        self._values = torch.ones(size // 8, dtype=torch.int64)
        weight = torch.ones(max(1, size // 2 // GEMV_INPUTS), GEMV_INPUTS).bfloat16()
        self._weight = nn.Parameter(weight, requires_grad=False)
        self._row = torch.ones(1, GEMV_INPUTS).bfloat16()
        put_into_large_pages((self._values, self._weight))

    def measure(self) -> float:
        """Return the best of a sum and of a linear of one row, of three calls each."""
        from xruntime.generation.linear_rows import linear_rows

        rates = []
        for _ in range(3):
            for call, read in (
                (self._values.sum, self._values.nbytes),
                (lambda: linear_rows(self._row, self._weight, None), self._weight.nbytes),
            ):
                began = time.perf_counter()
                call()
                rates.append(read / (time.perf_counter() - began))
        return max(rates)


def main() -> int:
    form, directory, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what libraries print

    def say(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=out, flush=True)

    if threads:
        torch.set_num_threads(threads)
    if form == "read limit":
        say({})
        sys.stdin.readline()
        limit = ReadLimit(READ_BYTES)
        say({"threads": torch.get_num_threads()})
        for _ in sys.stdin:
            say({"bytes_per_s": limit.measure()})
        return 0
    from transformers import AutoModelForCausalLM, Qwen2ForCausalLM  # noqa: F401 - not part of loading

    say({})
    sys.stdin.readline()
    before = memory()
    began = time.perf_counter()
    generate, model = model_of(form, directory, threads or torch.get_num_threads())
    load_s = time.perf_counter() - began
    say(
        {
            "load_s": load_s,
            "before": before,
            "loaded": memory(),
            "threads": torch.get_num_threads(),
            "weight_bytes": bytes_of(form, directory, model),
        }
    )
    for line in sys.stdin:
        request = json.loads(line)
        if request["prompt"] + request["tokens"] > POSITIONS:
            raise ValueError(f"more than {POSITIONS} positions")
        say({**measured(generate, request), "memory": memory(), "report": report_of(form, model)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
