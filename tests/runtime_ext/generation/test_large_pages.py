# SPDX-License-Identifier: Apache-2.0
"""Weights in pages of 2 MiB."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.generation import large_pages  # noqa: E402
from xruntime.generation.large_pages import put_into_large_pages  # noqa: E402
from xruntime.optimization import explain  # noqa: E402


@pytest.fixture
def large(needs: Any) -> None:
    pages = Path("/sys/kernel/mm/transparent_hugepage")
    needs(pages.exists(), "a kernel with transparent huge pages")


def mapped(path: Path, count: int, *, shared: bool = False) -> Any:
    """Return a tensor of int32 that is pages of a new file with the numbers from 0."""
    torch.arange(count, dtype=torch.int32).numpy().tofile(path)
    return torch.from_file(str(path), shared=shared, size=count, dtype=torch.int32)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_values_and_addresses_stay() -> None:
    tensors = [torch.randn(3 << 20), torch.randn(5), torch.randn(0), torch.randn(1 << 20)[7:]]
    values = [tensor.clone() for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    # How many pages are collapsed is up to the kernel.
    assert put_into_large_pages([*tensors, tensors[0]]) in range(0, (16 << 20) + 1, 2 << 20)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert all(map(torch.equal, tensors, values))


def test_pages_of_a_file_are_copied(large: None, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    whole = mapped(path, 3 << 20)
    first, second = whole[:7].data, whole[7:].view(-1, 1).data  # without a base
    weight = torch.nn.Parameter(second.view(torch.float32), requires_grad=False)
    put_into_large_pages([first, second, weight, first])
    assert weight.data_ptr() == second.data_ptr() != whole.data_ptr() + 28
    assert first.data_ptr() % 64 == second.data_ptr() % 64 == 0
    numbers = torch.arange(3 << 20, dtype=torch.int32)
    assert torch.equal(whole, numbers)  # its pages are read again
    assert torch.equal(torch.cat([first, second.flatten()]), numbers)
    del whole
    assert not is_mapped(path)


def test_changed_pages_are_kept_for_others(large: None, tmp_path: Path) -> None:
    whole = mapped(tmp_path / "weights", 1 << 20)
    whole[5000] = -1  # this process's own page
    weight = whole[:]
    put_into_large_pages([weight])
    assert weight.data_ptr() != whole.data_ptr()
    assert whole[5000] == weight[5000] == -1


@pytest.mark.parametrize("case", ["shared", "overlapping", "strided", "too large"])
def test_what_is_not_copied(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mapped(tmp_path / "weights", 1 << 20, shared=case == "shared")
    tensors = {"overlapping": [whole[:], whole[5:]], "strided": [whole[::2]]}.get(case, [whole[:]])
    if case == "too large":
        monkeypatch.setattr(large_pages, "_available_bytes", lambda: whole.nbytes)
    addresses = [tensor.data_ptr() for tensor in tensors]
    put_into_large_pages(tensors)
    assert [tensor.data_ptr() for tensor in tensors] == addresses


def test_a_model_in_place() -> None:
    model = optimize(decoder("llama"), inplace=True)
    reason = explain(model).step("decode_step").reason
    assert re.search(r"; \d+ MB of weights are in 2 MiB pages$", reason)
    assert "pages" not in explain(optimize(decoder("llama"))).step("decode_step").reason


def test_a_model_of_a_file(large: None, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    saved = decoder("llama-tied", vocab_size=16384)
    saved.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    parameters = dict(loaded.named_parameters())
    assert is_mapped(tmp_path / "model.safetensors")
    model = optimize(loaded, inplace=True)
    assert not is_mapped(tmp_path / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert torch.equal(parameter, saved.get_parameter(name))
    assert model.lm_head.weight is model.model.embed_tokens.weight


MEMORY = """
import sys, tempfile
import torch
from benchmarks.generation.models import new_model
from benchmarks.generation.form import memory
from transformers import Qwen2ForCausalLM
from xruntime import optimize

def generate(directory):
    model = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    model = optimize(model, inplace=True)
    model.generate(torch.arange(3, 300)[None], min_new_tokens=20, max_new_tokens=20)
    return sum(one.nbytes for one in model.parameters())

if sys.argv[1] == "save":
    for size in sys.argv[3:]:
        new_model(size).save_pretrained(f"{sys.argv[2]}/{size}")
else:
    generate(f"{sys.argv[2]}/tiny")  # loads libraries
    before = memory()["resident"]
    print(generate(f"{sys.argv[2]}/0.1"), memory()["peak"] - before)
"""


@pytest.mark.long
def test_one_copy_of_the_weights_is_resident(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        command = [sys.executable, "-c", MEMORY, *map(str, words)]
        root = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("save", tmp_path, "tiny", "0.1")
    weights, peak = map(int, run("measure", tmp_path).split())
    assert weights <= peak <= 1.3 * weights
