# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device` with real programs that decode."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cli.commands import XLAUNCH, clean_environment

from xlaunch.doctor.decode_probe import VARIABLE

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("installed")]

SIZES = "hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4"
PROGRAM = f"""
import os, sys, threading, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
print([os.environ.get(name) for name in ("PYTHONPATH", "{VARIABLE}")])
ids = torch.arange(3, 9)[None]
options = dict(max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0)
def llama(**more):
    return LlamaForCausalLM(LlamaConfig({SIZES}, **{{"vocab_size": 300, **more}})).eval()
def weights(model):
    return sum(it.nbytes for it in model.parameters())
"""
KINDS = """
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM,
                          T5Config, T5ForConditionalGeneration)

plain = llama()
plain.generate(ids.repeat(2, 1), **options)
tied = llama(tie_word_embeddings=True).bfloat16()
tied.generate(ids, **options)
gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=300)).eval()
tokens, cache = ids, None
for _ in range(20):  # a loop of one's own
    outputs = gpt2(tokens, past_key_values=cache)
    cache, tokens = outputs.past_key_values, outputs.logits[:, -1:].argmax(-1)
mixtral = MixtralForCausalLM(MixtralConfig(num_local_experts=2, num_key_value_heads=4, SIZES, vocab_size=300)).eval()
mixtral.generate(ids, **options)
embeddings = [plain.model.embed_tokens.weight, gpt2.transformer.wpe.weight]
print([weights(plain) - embeddings[0].nbytes, weights(tied), weights(gpt2) - embeddings[1].nbytes])

# Nothing is said of these.
bert = BertModel(BertConfig(hidden_size=128, num_hidden_layers=1, num_attention_heads=4, intermediate_size=99)).eval()
t5 = T5Config(vocab_size=300, d_model=128, d_kv=32, d_ff=256, num_layers=1, num_heads=4, decoder_start_token_id=0)
with torch.no_grad():
    for _ in range(20):
        bert(ids)
T5ForConditionalGeneration(t5).eval().generate(ids, **options)
llama().generate(ids, max_new_tokens=6)
if os.fork() == 0:
    llama().generate(ids, **options)
    os._exit(0)
os.wait()
sys.stdout.flush()
os._exit(5)
""".replace("SIZES", SIZES)
SLOW = """
from transformers import LogitsProcessor

class Slow(LogitsProcessor):
    def __call__(self, tokens, scores):
        time.sleep(2)
        return scores

model = llama(vocab_size=262144)
print(weights(model) - model.model.embed_tokens.weight.nbytes)
options = {**options, "max_new_tokens": 9, "min_new_tokens": 9}
print(model.generate(ids, **options, logits_processor=[Slow()]).shape[1])
raise SystemExit("its end")
"""
COMPILED = """
model = llama()
expected = model(ids).logits
whole = torch.compile(model, backend="eager", fullgraph=True)
print(torch.equal(whole(ids).logits, expected), len(torch.export.export(model, (ids,), {"use_cache": False}, strict=False).graph.nodes) > 9)
model.forward = torch.compile(model.forward, backend="eager")
print(model.generate(ids, **options).shape[1])
from xruntime import optimize
print(optimize(llama(), inplace=True).generate(ids, **options).shape[1])
"""


def seen(tmp_path: Path, program: str, *launch: str, code: int = 0) -> tuple[Any, list[str], str]:
    """What --json says of decoding; what the program printed, and the rest of standard error."""
    script = tmp_path / "decode.py"
    script.write_text(PROGRAM + program)
    env = clean_environment(PYTHONPATH=str(tmp_path))
    words = ("doctor", "--device", "--json", "--", "--ncores", "1", *launch, script)
    done = subprocess.run(
        [*XLAUNCH, *words], env=env, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"['{tmp_path}'"))
    assert lines[first] == f"['{tmp_path}', None]"
    return json.loads(done.stdout)["decoding"], lines[first + 1 :], done.stderr


def test_models_of_a_program(tmp_path: Path):
    decoding, printed, _ = seen(tmp_path, KINDS, code=5)
    by_form = {(it["model"], it["batch"], *(it["weight_bytes"] or ())): it for it in decoding}
    assert len(by_form) == len(decoding) == 4
    told = [
        by_form["LlamaForCausalLM", 2, "float32"],
        by_form["LlamaForCausalLM", 1, "bfloat16"],
        by_form["GPT2LMHeadModel", 1, "float32"],
    ]
    assert [sum(it["weight_bytes"].values()) for it in told] == json.loads(printed[0])
    assert [it["gradients"] for it in told] == [False, False, True]
    assert by_form["MixtralForCausalLM", 1]["limit_s"] is None
    for it in decoding:
        assert (it["steps"], it["slow"], it["native"]) == (16, False, False)
        assert 0 < it["model_s"] <= it["token_s"]
        assert it["cache_bytes"] > 0


def test_slow_decoding_is_a_finding(tmp_path: Path):
    decoding, printed, err = seen(tmp_path, SLOW, code=1)
    assert printed[1:3] == ["15", "its end"]
    (found,) = decoding
    if found["read_bytes_per_s"] is None:
        pytest.skip("needs 2 GiB of memory")
    assert found["weight_bytes"] == {"float32": int(printed[0])}
    assert (found["steps"], found["threads"], found["slow"]) == (8, 1, True)
    assert any("a token pass outside the model's calls" in cause for cause in found["causes"])
    assert "xlaunch doctor: decoding: LlamaForCausalLM: 2" in err
    assert "xlaunch doctor:   likely cause: weights are float32" in err
    assert "xlaunch doctor:   next step: load the model with dtype=torch.bfloat16" in err


@pytest.mark.parametrize("launch", [(), ("--optimize", "auto")])
def test_compiled_and_optimized_models(launch: tuple[str, ...], tmp_path: Path):
    decoding, printed, _ = seen(tmp_path, COMPILED, *launch)
    assert [line for line in printed if line in ("True True", "26")] == ["True True", "26", "26"]
    assert [it["native"] for it in sorted(decoding, key=lambda it: it["native"])] == (
        [True, True] if launch else [False, True]
    )
