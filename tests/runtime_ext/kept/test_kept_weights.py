# SPDX-License-Identifier: Apache-2.0
"""Packed weights that the next process finds again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import quick_first

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.kept import kept_weights, weights_digest  # noqa: E402
from xruntime.optimization import explain  # noqa: E402

ROOT = Path(__file__).parents[3]
IDS = torch.tensor([[5, 17, 200, 3, 44, 9]])


@pytest.fixture(autouse=True)
def installed(native: None, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which small models are kept, too."""
    path = tmp_path / "cache"
    monkeypatch.setenv("XRUNTIME_CACHE_DIR", str(path))
    monkeypatch.setattr(kept_weights, "MIN_BYTES", 0)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The directory of a model whose linears fit no group."""
    path = tmp_path / "checkpoint"
    sizes = {"hidden_size": 144, "intermediate_size": 203}
    decoder("qwen2", torch.bfloat16, **sizes).save_pretrained(path)
    return path


def started(
    checkpoint: Path, *, scale: float | None = None, **options: Any
) -> tuple[torch.Tensor, str]:
    """Load and pack a model as a process does that starts; return its logits, and what was said of the pass.

    scale
        A factor of the last weight, as a program that trains would change it. None: all stay pages of the file.
    """
    from transformers import AutoModelForCausalLM

    kept_weights._saved.clear()
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    if scale is not None:
        with torch.no_grad():
            model.model.layers[-1].mlp.down_proj.weight[-1, -1] *= scale
    model = optimize(model, **{"weight_bits": 8, "head_bits": 4, "inplace": True} | options)
    for thread in threading.enumerate():
        if thread.name == "xruntime-weights":
            thread.join()
    with torch.no_grad():
        return model(IDS).logits, explain(model).step("weight_bits").reason


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*"))


def test_a_second_start_reads_what_the_first_one_packed(cache: Path, checkpoint: Path) -> None:
    wanted, first = started(checkpoint)
    found, second = started(checkpoint)
    assert first.endswith("; kept for the next start")
    assert second.endswith("; read from the cache")
    assert torch.equal(found, wanted)
    (entry,) = entries(cache)
    assert [path.name for path in entry.iterdir()] == [kept_weights.FILE]
    assert (entry / kept_weights.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "options",
    quick_first([{"scale": 2}, {"weight_bits": 4}, {"head_bits": 8}, {"head_bits": None}], quick=2),
)
def test_other_weights_are_packed(cache: Path, checkpoint: Path, options: Any) -> None:
    started(checkpoint)
    found, first = started(checkpoint, **options)
    assert first.endswith("; kept for the next start")
    again, second = started(checkpoint, **options)
    assert second.endswith("; read from the cache")
    assert torch.equal(again, found)
    assert len(entries(cache)) == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip, "damaged"),
        (lambda path: os.truncate(path, 1000), "not whole"),
        (lambda path: path.chmod(0o666), "write"),
        (link, "symbolic links"),
    ],
)
def test_what_cannot_be_trusted_is_packed_again(
    cache: Path, checkpoint: Path, harm: Any, reason: str
) -> None:
    wanted, _ = started(checkpoint)
    (entry,) = entries(cache)
    harm(entry / kept_weights.FILE)
    found, told = started(checkpoint)
    assert "kept weights are removed: " in told
    assert reason in told
    assert told.endswith("; kept for the next start")
    assert torch.equal(found, wanted)
    assert started(checkpoint)[1].endswith("; read from the cache")


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many matrices were read for each digest of their values; files that are new count, too."""
    monkeypatch.setattr(weights_digest, "MIN_AGE_S", 0)
    read: list[int] = []

    def digest(tensors: list[Any]) -> bytes:
        read.append(len(tensors))
        return weights_digest.weights_digest(tensors)

    monkeypatch.setattr(kept_weights, "weights_digest", digest)
    return read


def test_unchanged_files_are_not_read(cache: Path, checkpoint: Path, digests: list[int]) -> None:
    wanted, _ = started(checkpoint)
    assert len(digests) == 1
    found, told = started(checkpoint)
    assert told.endswith("; read from the cache")
    assert torch.equal(found, wanted)
    assert len(digests) == 1
    started(checkpoint, scale=1)  # the process's own page
    assert len(digests) == 2
    assert len(entries(cache)) == 1


def test_a_copy_of_a_checkpoint_is_read_once(
    cache: Path, checkpoint: Path, digests: list[int]
) -> None:
    started(checkpoint)
    other = checkpoint.with_name("other")
    shutil.copytree(checkpoint, other, copy_function=shutil.copy2)
    for _ in range(2):
        assert started(other)[1].endswith("; read from the cache")
    assert len(digests) == 2
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("how", ["written", "replaced", "too new"])
def test_files_that_changed_are_read(
    how: str,
    cache: Path,
    checkpoint: Path,
    digests: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started(checkpoint)
    path = checkpoint / "model.safetensors"
    data, status = bytearray(path.read_bytes()), path.stat()
    data[8 + int.from_bytes(data[:8], "little")] ^= (
        1  # of the output layer, the first behind the header
    )
    if how == "too new":
        monkeypatch.setattr(weights_digest, "MIN_AGE_S", 3600)
    elif how == "written":
        path.write_bytes(data)
    else:
        path.unlink()
        path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    started(checkpoint)
    assert len(digests) == 2
    assert len(entries(cache)) == (1 if how == "too new" else 2)


def test_what_is_not_kept(cache: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = optimize(decoder("llama", hidden_size=144), weight_bits=8)
    reason = explain(made).step("weight_bits").reason
    assert reason.endswith("; packed at each start, as the model is not from a checkpoint")
    monkeypatch.setenv("XRUNTIME_CACHE_DIR", "0")
    assert started(checkpoint)[1].endswith("; packed at each start: XRUNTIME_CACHE_DIR=0")
    assert not entries(cache)


def test_a_process_keeps_one_form_of_a_checkpoint_once(cache: Path, checkpoint: Path) -> None:
    started(checkpoint)
    assert "kept" not in started_again(checkpoint)
    assert len(entries(cache)) == 1


def started_again(checkpoint: Path) -> str:
    """Pack changed weights in a process that has kept others."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    model.lm_head.weight.data *= 2
    made = optimize(model, weight_bits=8, head_bits=4, inplace=True)
    return explain(made).step("weight_bits").reason.rpartition(";")[2]


def test_matrices_that_share_their_memory_are_told_apart() -> None:
    first, second = torch.zeros(2, 2), torch.ones(2, 2)
    one = kept_weights._description([(first, 8), (second, 8), (first, 8)])
    other = kept_weights._description([(first, 8), (second, 8), (second, 8)])
    assert one != other


PROGRAM = """
import sys, torch
from transformers import AutoModelForCausalLM
from xruntime import optimize
from xruntime.optimization import explain
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
print(explain(optimize(model, weight_bits=8, inplace=True)).step("weight_bits").reason)
"""


@pytest.mark.long
def test_programs_and_bundles(tmp_path: Path) -> None:
    model, program = tmp_path / "model", tmp_path / "program.py"
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8}
    decoder("qwen2", torch.bfloat16, **sizes).save_pretrained(model)
    program.write_text(PROGRAM)
    bundle = tmp_path / "caches.tar"

    def xlaunch(*words: str | Path, cache: str = "a") -> str:
        command = [sys.executable, "-m", "xlaunch", *map(str, words)]
        at = 5 if words[0] == "cache" else 3
        command[at:at] = ["--cache-dir", str(tmp_path / cache)]
        environment = {k: v for k, v in os.environ.items() if k != "XRUNTIME_CACHE_DIR"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    warmed = xlaunch("cache", "warm", "--", program, model)
    assert "kept for the next start" in warmed
    assert "optimized (packed weights 1)" in warmed
    assert "with a model's weights" in xlaunch("cache", "export", bundle)
    xlaunch("cache", "import", bundle, cache="b")
    assert "read from the cache" in xlaunch("--", program, model, cache="b")
