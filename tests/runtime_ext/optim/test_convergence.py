# SPDX-License-Identifier: Apache-2.0
"""Training two networks: split bf16 weights follow fp32, plain bf16 falls behind."""

from __future__ import annotations

import importlib.util
import math

import pytest
from benchmarks.optimizers import training
from benchmarks.optimizers.training import WAYS, Work, gap, losses
from tests.runtime_ext.conftest import Needs
from tests.tiers import quick_first


@pytest.fixture(scope="module")
def digits(needs: Needs) -> Work:
    needs(importlib.util.find_spec("sklearn"), "scikit-learn")
    return training.digits()


@pytest.fixture(scope="module")
def transformer() -> Work:
    return training.transformer()


def check(work: Work, optimizer: str, steps: int, *, split: float, plain: float = 0) -> None:
    """The curves differ from fp32's by less than `split` and by more than `plain`, relatively."""
    full = losses(work, optimizer, WAYS["fp32"], steps)
    assert full[-1] < 0.97 * full[0]
    ours = gap(losses(work, optimizer, WAYS["split bf16"], steps), full)
    theirs = gap(losses(work, optimizer, WAYS["plain bf16"], steps), full)
    assert ours < split
    assert theirs > max(plain, 3 * ours)


@pytest.mark.parametrize("optimizer", quick_first(["adamw", "sgd", "adagrad"]))
def test_split_weights_follow_fp32_for_100_steps(digits: Work, optimizer: str) -> None:
    check(digits, optimizer, 100, split=0.003)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_split_weights_follow_fp32_for_1000_steps(digits: Work, optimizer: str) -> None:
    check(digits, optimizer, 1000, split=0.01, plain=0.5)


@pytest.mark.long
def test_a_transformer_in_split_bf16_follows_fp32_for_100_steps(transformer: Work) -> None:
    check(transformer, "adamw", 100, split=0.003, plain=0.1)


@pytest.mark.full
def test_a_transformer_in_split_bf16_follows_fp32_for_1000_steps(transformer: Work) -> None:
    check(transformer, "adamw", 1000, split=0.01, plain=0.5)


@pytest.mark.long
def test_a_transformer_with_stochastic_rounding_follows_fp32(transformer: Work) -> None:
    full = losses(transformer, "adamw", WAYS["fp32"], 100)
    assert gap(losses(transformer, "adamw", WAYS["stochastic bf16"], 100), full) < 0.02


def test_the_sentences_agree_and_their_entropy_is_known() -> None:
    text = training.sentences()
    found = text.rstrip(".").split(". ")
    assert len(found) == training.SENTENCES
    for sentence in found:
        number = next(n for n in (0, 1) if sentence.startswith(training.SUBJECTS[n]))
        rest = sentence.removeprefix(
            next(s for s in training.SUBJECTS[number] if sentence.startswith(s))
        )
        verb, _, last = rest.strip().partition(" ")
        assert verb in training.VERBS[number]
        assert last in training.OBJECTS
    entropy = training.entropy_per_character(text)
    assert math.isclose(entropy * len(text), len(found) * math.log(2 * 4 * 4 * 8))
