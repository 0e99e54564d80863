# SPDX-License-Identifier: Apache-2.0
"""Programs that generate tokens, untouched, with `xlaunch --optimize`."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.runtime_ext.program_hook.scripts import run_optimized

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("native")]

PROGRAM = """
import copy
import gc
import weakref

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
t5 = T5Config(vocab_size=300, d_model=128, d_kv=32, d_ff=256, num_layers=1, num_heads=4, decoder_start_token_id=0)
sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
models = [LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=300)), T5ForConditionalGeneration(t5)]
for model in models:
    model.eval()
    seen = []
    linear = next(module for module in model.modules() if type(module) is torch.nn.Linear)
    linear.register_forward_hook(lambda *_: seen.append(1))
    for length in (4, 5, 6):
        prompt = torch.arange(3, 3 + length)[None]
        print(model.generate(prompt, max_new_tokens=9, min_new_tokens=9, do_sample=False)[0].tolist())
    print(len(seen), {type(module) for module in model.modules()} & {torch.nn.Linear})
    loss = model(input_ids=prompt, labels=prompt).loss
    loss.backward()
    print(round(loss.item(), 4), all(it.grad is not None for it in model.parameters()))
    twin = copy.deepcopy(model)
    print(torch.equal(twin.generate(prompt, max_new_tokens=5), model.generate(prompt, max_new_tokens=5)))
gone = weakref.ref(models[0])
del models, model, twin, linear
gc.collect()
print(gone() is None)
"""


@pytest.mark.parametrize("options", [(), ("--optimize-wait",)])
def test_tokens_are_the_same_and_nothing_is_compiled(
    options: tuple[str, ...], tmp_path: Path, needs: Any
) -> None:
    needs(find_spec("transformers"), "pip install transformers")
    script = tmp_path / "generate.py"
    script.write_text(PROGRAM)
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=200
    )
    ended = run_optimized(script, precision="auto", options=options)
    assert ended.out == plain.stdout
    line = "linears of 1 to 3 rows run by native code, in float32 as the program loads it; nothing is compiled"
    assert ended.reports == [
        f"LlamaForCausalLM: generates: each token is one native call; {line}",
        f"T5Stack: called by generate(): {line}",
        f"T5ForConditionalGeneration: generates: {line}",
    ]
    assert not ended.unfinished


CONV1D = """
import torch
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling
from transformers.utils import logging
from xruntime.generation import linear_rows

logging.set_verbosity_error()
sizes = {"n_positions": 64, "n_embd": 128, "n_layer": 1, "n_head": 4}
model = ImageGPTForCausalImageModeling(ImageGPTConfig(vocab_size=301, **sizes)).eval()
computed, original = set(), linear_rows.linear_rows
def noting(value, weight, bias):
    computed.add(tuple(weight.shape))
    return original(value, weight, bias)
linear_rows.linear_rows = noting
model.generate(torch.arange(3, 9)[None], max_new_tokens=5, min_new_tokens=5, do_sample=False)
print(sorted(computed))
"""


def test_conv1d_is_computed_as_linears_are(tmp_path: Path, needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")
    script = tmp_path / "generate.py"
    script.write_text(CONV1D)
    ended = run_optimized(script, precision="auto")
    assert ended.out == "[(128, 128), (128, 512), (300, 128), (384, 128), (512, 128)]\n"
