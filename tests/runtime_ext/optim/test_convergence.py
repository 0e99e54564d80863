# SPDX-License-Identifier: Apache-2.0
"""Training two networks: split bf16 weights follow fp32, plain bf16 falls behind."""

from __future__ import annotations

import importlib.util
import math

import pytest
from benchmarks.optimizers import training
from benchmarks.optimizers.training import WAYS, Work, gap, losses
from tests.runtime_ext.conftest import Needs


@pytest.fixture(scope="module")
def digits(needs: Needs) -> Work:
    needs(importlib.util.find_spec("sklearn"), "scikit-learn")
    return training.digits()


@pytest.fixture(scope="module")
def transformer() -> Work:
    return training.transformer()


Bounds = dict[int, tuple[float, float]]
"""After so many steps the curve of split weights differs from fp32's by less than the first number, relatively,
and that of plain bf16 by more than the second one."""


def check(work: Work, optimizer: str, bounds: Bounds, rounded: float = math.inf) -> None:
    """Stochastic rounding may differ by `rounded` at the end."""
    ways = [WAYS[way] for way in ("fp32", "split bf16", "plain bf16")]
    if rounded < math.inf:
        ways.append(WAYS["stochastic bf16"])
    curves = [losses(work, optimizer, way, max(bounds)) for way in ways]
    for steps, (split, plain) in bounds.items():
        full, *others = (curve[: steps // training.INTERVAL] for curve in curves)
        assert full[-1] < 0.97 * full[0]
        ours, theirs, *drawn = (gap(curve, full) for curve in others)
        assert ours < split
        assert theirs > max(plain, 3 * ours)
    assert max(drawn, default=0.0) < rounded


def test_split_weights_follow_fp32_for_100_steps(digits: Work) -> None:
    check(digits, "adamw", {100: (0.003, 0)})


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_split_weights_follow_fp32_for_1000_steps(digits: Work, optimizer: str) -> None:
    check(digits, optimizer, {100: (0.003, 0), 1000: (0.01, 0.5)})


@pytest.mark.long
def test_a_transformer_follows_fp32_for_100_steps(transformer: Work) -> None:
    check(transformer, "adamw", {100: (0.003, 0.1)}, rounded=0.02)


@pytest.mark.full
def test_a_transformer_in_split_bf16_follows_fp32_for_1000_steps(transformer: Work) -> None:
    check(transformer, "adamw", {1000: (0.01, 0.5)})


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
