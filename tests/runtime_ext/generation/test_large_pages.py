# SPDX-License-Identifier: Apache-2.0
"""Weights in pages of 2 MiB."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.generation.large_pages import collapse  # noqa: E402
from xruntime.optimization import explain  # noqa: E402


def test_values_and_addresses_stay() -> None:
    tensors = [torch.randn(3 << 20), torch.randn(5), torch.randn(0), torch.randn(1 << 20)[7:]]
    values = [tensor.clone() for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    collapsed = collapse([*tensors, tensors[0]])
    # How many pages are collapsed is up to the kernel.
    assert collapsed in range(0, (16 << 20) + 1, 2 << 20)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert all(map(torch.equal, tensors, values))


def test_a_model_in_place() -> None:
    model = optimize(decoder("llama"), inplace=True)
    reason = explain(model).step("decode_step").reason
    assert re.search(r"; \d+ MB of weights are in 2 MiB pages$", reason)
    assert "pages" not in explain(optimize(decoder("llama"))).step("decode_step").reason


MEMORY = """
import torch
from benchmarks.generation.models import new_model
from benchmarks.generation.form import memory
from xruntime import optimize

def generate(size):
    model = optimize(new_model(size), inplace=True)
    model.generate(torch.arange(3, 300)[None], min_new_tokens=20, max_new_tokens=20)
    return sum(one.nbytes for one in model.parameters())

generate("tiny")  # loads libraries
before = memory()["resident"]
print(generate("0.1"), memory()["peak"] - before)
"""


@pytest.mark.long
def test_one_copy_of_the_weights_is_resident() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    weights, peak = map(int, done.stdout.split())
    assert weights <= peak <= 1.3 * weights
