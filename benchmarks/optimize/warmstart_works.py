# SPDX-License-Identifier: Apache-2.0
"""The programs of `python -m benchmarks.optimize.warmstart`: each compiles something, uses it once, and prints times.

    python -m benchmarks.optimize.warmstart_works resnet50

The last line of output is JSON: `first_result_s`, seconds from the call that compiles to its result; of language models
also `imports_s`, which are not part of that, and `optimize_s`, which are.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEQUENCE_LENGTH = 128
DIRECTORY = "WARMSTART_DIRECTORY"
"""The variable with a directory for the files of all starts."""


def compiled(model: Any, *inputs: Any, freezing: bool = False, streams: bool = False) -> float:
    """Compile a module for inference and call it once; the seconds until its result."""
    import torch

    import xruntime  # noqa: F401 - writes torch's counters for the launch's report

    if streams:
        return for_streams(model, *inputs)

    if torch.cuda.is_available():
        model, inputs = model.cuda(), tuple([value.cuda() for value in inputs])
    fast = torch.compile(model, options={"freezing": freezing})
    start = time.perf_counter()
    with torch.no_grad():
        fast(*inputs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return time.perf_counter() - start


def resnet50(**how: bool) -> float:
    """ResNet-50, one image, channels last."""
    import torch

    sys.path.insert(0, str(EXAMPLES))
    import resnet50 as example

    torch.manual_seed(0)
    model = example.resnet50().eval().to(memory_format=torch.channels_last)
    image = torch.randn(1, 3, 224, 224).to(memory_format=torch.channels_last)
    return compiled(model, image, **how)


def minilm(**how: bool) -> float:
    """A transformer of MiniLM's shape (6 layers of 384), one sequence of 128 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    shape = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    torch.manual_seed(0)
    tokens = torch.randint(0, 30_000, (1, SEQUENCE_LENGTH))
    return compiled(BertModel(shape).eval(), tokens, **how)


def generate(bits: int | None = None) -> dict[str, float]:
    """A language model of 0.5 billion parameters in bf16 from files: the seconds from loading to its first token.

    Imports are not part of loading, neither transformers' nor xruntime's, whose seconds are given beside.

    bits
        Of the weights of xruntime's form; None: eager.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.qwen2 import modeling_qwen2  # noqa: F401

    parts: dict[str, float] = {}
    if bits is not None:
        start = time.perf_counter()
        from xruntime import optimize

        parts["imports_s"] = time.perf_counter() - start
    sys.path.insert(0, str(EXAMPLES.parent))
    from benchmarks.generation.models import save

    checkpoint = Path(os.environ[DIRECTORY], "checkpoint")
    if not checkpoint.exists():
        checkpoint.mkdir()
        save("0.5", checkpoint, ())
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    if bits is not None:
        loaded = time.perf_counter()
        model = optimize(model, weight_bits=bits, head_bits=bits, inplace=True)
        parts["optimize_s"] = time.perf_counter() - loaded
    model.generate(torch.arange(3, 35)[None], max_new_tokens=1)
    return {"first_result_s": time.perf_counter() - start, **parts}


def for_streams(model: Any, *inputs: Any) -> float:
    """Compile a module by `compile_for_streams` and call it in a stream; the seconds until its result."""
    from xruntime import CPUPool, Task, compile_for_streams

    start = time.perf_counter()
    fast = compile_for_streams(model, inputs, threads=1)
    Task(fast, CPUPool([CPUPool().core_ids[0]])).run_sync(*inputs)
    return time.perf_counter() - start


def numba() -> float:
    """Loops that numba runs in parallel, kept by `cache=True`."""
    import numpy as np
    from numba import njit, prange

    @njit(cache=True, parallel=True)
    def smooth(values: Any, rounds: int) -> Any:
        for _ in range(rounds):
            result = np.empty_like(values)
            for row in prange(values.shape[0]):
                for column in range(values.shape[1]):
                    near = values[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
                    result[row, column] = np.sqrt((near * near).mean())
            values = result
        return values

    values = np.ones((8, 8))
    start = time.perf_counter()
    smooth(values, 2)
    return time.perf_counter() - start


def jax() -> float:
    """A small network; JAX keeps what took a second to compile unless told otherwise."""
    import jax as library
    import jax.numpy as jnp

    library.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    def network(x: Any) -> Any:
        for _ in range(40):
            x = jnp.tanh(x @ x.T @ x)
        return x

    values = jnp.ones((64, 64))
    start = time.perf_counter()
    library.jit(network)(values).block_until_ready()
    return time.perf_counter() - start


def cuda() -> float:
    """A long kernel in PTX, which the driver compiles for the GPU."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    lines = [f"fma.rn.f32 %f{n % 8}, %f{(n + 1) % 8}, %f{(n + 3) % 8}, %f2;" for n in range(60_000)]
    source = "\n".join(
        [
            ".version 7.0\n.target sm_70\n.address_size 64",
            ".visible .entry kernel(.param .u64 out) {",
            ".reg .f32 %f<8>; .reg .u64 %d<2>;",
            "ld.param.u64 %d0, [out];",
            *[f"ld.global.f32 %f{n}, [%d0+{4 * n}];" for n in range(8)],
            *lines,
            "st.global.f32 [%d0], %f0;\nret;\n}",
        ]
    )

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code:
            raise SystemExit(f"{name}: CUDA error {code}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    start = time.perf_counter()
    call("cuModuleLoadData", ctypes.byref(module), source.encode())
    return time.perf_counter() - start


WORKS: dict[str, Callable[[], float | dict[str, float]]] = {
    "resnet50": resnet50,
    "minilm": minilm,
    "resnet50-streams": lambda: resnet50(streams=True),
    "minilm-streams": lambda: minilm(streams=True),
    "resnet50-freezing": lambda: resnet50(freezing=True),
    "minilm-freezing": lambda: minilm(freezing=True),
    "generate": generate,
    "generate-8-bits": lambda: generate(8),
    "generate-4-bits": lambda: generate(4),
    "numba": numba,
    "jax": jax,
    "cuda": cuda,
}

if __name__ == "__main__":
    result = WORKS[sys.argv[1]]()
    print(json.dumps(result if isinstance(result, dict) else {"first_result_s": result}))
