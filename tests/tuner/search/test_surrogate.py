# SPDX-License-Identifier: Apache-2.0
"""The model learns what is there, knows what it does not know, and its slope is its slope."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tuner.search.scripted import SPACE, gain

from xtune.search.failures import success_chances
from xtune.search.surrogate import Encoder, Floats, Surrogate
from xtune.space.parameters import Parameter, Where
from xtune.space.spaces import Derived, Space

ALL = list(SPACE)
TRUTH = np.array([gain(configuration) for configuration in ALL])


def learnt(count: int, noise: float = 0.01, seed: int = 0) -> tuple[Surrogate, Floats, list[int]]:
    generator = np.random.default_rng(seed)
    encoder = Encoder(SPACE)
    rows = encoder.rows(ALL)
    chosen = [int(one) for one in generator.choice(len(ALL), count, replace=False)]
    surrogate = Surrogate(encoder, generator)
    surrogate.fit(rows[chosen], TRUTH[chosen] + noise * generator.standard_normal(count))
    belief = surrogate.believe(rows)
    return surrogate, belief.means.mean(axis=0), chosen


@pytest.mark.parametrize("seed", range(5))
def test_it_predicts_what_it_has_not_seen(seed: int) -> None:
    _, means, chosen = learnt(40, seed=seed)
    others = np.setdiff1d(np.arange(len(ALL)), chosen)
    assert np.corrcoef(means[others], TRUTH[others])[0, 1] > 0.95


def test_it_is_surer_of_what_it_has_seen() -> None:
    surrogate, _, chosen = learnt(20)
    belief = surrogate.believe(Encoder(SPACE).rows(ALL))
    others = np.setdiff1d(np.arange(len(ALL)), chosen)
    assert belief.variances[:, chosen].mean() < 0.5 * belief.variances[:, others].mean()
    assert (belief.variances > 0).all()


def test_it_learns_the_noise_from_repeated_launches() -> None:
    generator = np.random.default_rng(1)
    encoder = Encoder(SPACE)
    rows = np.repeat(encoder.rows(ALL[::30]), 8, axis=0)
    values = np.repeat(TRUTH[::30], 8) + 0.05 * generator.standard_normal(len(rows))
    surrogate = Surrogate(encoder, generator)
    for _ in range(5):
        surrogate.fit(rows, values)
    noise = np.sqrt(surrogate.believe(rows[:1]).noise)
    assert noise == pytest.approx(0.05, rel=0.3)


def test_covariances_are_those_of_its_beliefs() -> None:
    surrogate, _, chosen = learnt(25)
    rows = Encoder(SPACE).rows(ALL)
    covariances = surrogate.covariances(rows, rows)
    belief = surrogate.believe(rows)
    assert np.diagonal(covariances, axis1=1, axis2=2) == pytest.approx(belief.variances, rel=1e-6)
    assert covariances == pytest.approx(covariances.transpose(0, 2, 1), abs=1e-9)
    alone = surrogate.covariances(rows[:3], rows[chosen])
    assert alone == pytest.approx(covariances[:, :3][:, :, chosen])


def test_order_and_grouping_of_launches_do_not_matter() -> None:
    generator = np.random.default_rng(1)
    encoder = Encoder(SPACE)
    rows = encoder.rows(ALL[:40] + ALL[:10])
    values = generator.standard_normal(50)
    shuffled = generator.permutation(50)
    first = Surrogate(encoder, np.random.default_rng(2))
    second = Surrogate(encoder, np.random.default_rng(2))
    first.fit(rows, values)
    second.fit(rows[shuffled], values[shuffled])
    one, other = first.believe(rows), second.believe(rows)
    assert np.allclose(one.means, other.means, atol=1e-6)


def test_its_slope_is_the_derivative_of_what_it_climbs() -> None:
    surrogate, _, _ = learnt(25, noise=0.1)
    rows = Encoder(SPACE).rows(ALL[:30] + ALL[:5])
    surrogate.fit(rows, np.random.default_rng(3).standard_normal(35))
    slope = surrogate._slope()
    place = surrogate._learnt.copy()
    for at in range(slope.shape[1]):
        ends = []
        for side in (1e-5, -1e-5):
            surrogate._learnt = place.copy()
            surrogate._learnt[:, at] += side
            ends.append(_height(surrogate))
        surrogate._learnt = place
        assert slope[:, at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4)


def _height(surrogate: Surrogate) -> Floats:
    """The log posterior of each fit, up to a constant."""
    covariances = surrogate._covariance(surrogate._kernel(surrogate._pairs))
    found = []
    for learnt, covariance in zip(surrogate._learnt, covariances, strict=True):
        noise = np.exp(learnt[-1])
        targets = surrogate._targets
        height = -0.5 * targets @ np.linalg.solve(covariance, targets)
        height -= 0.5 * np.linalg.slogdet(covariance)[1]
        height -= 0.5 * (surrogate._squares / noise + surrogate._repeats * np.log(noise))
        away = (learnt - surrogate._centre) / surrogate._width
        found.append(height - 0.5 * away @ away)
    return np.array(found)


def test_neighbours_of_an_order_are_alike_and_others_are_not() -> None:
    layouts = ("1x4", "2x2", "4x1", "1x2")
    space = Space(
        [
            Parameter("layout", layouts, "1x4", Where.OPTION),
            Parameter("batch", (1, 2, 4, 8), 1, Where.PROGRAM, ordered=True),
            Parameter("omp", ("a", "b", "c"), "a", Where.OPTION),
            Parameter("fixed", ("only",), "only", Where.OPTION),
        ],
        derived=[
            Derived("instances", "layout", (1, 2, 4, 1)),
            Derived("ncores", "layout", (4, 2, 1, 2)),
        ],
    )
    encoder = Encoder(space)
    layout, batch, omp = encoder.alike
    assert [parameter.name for parameter in encoder.parameters] == ["layout", "batch", "omp"]
    assert layout[0, 1] > layout[0, 2]
    assert layout[0, 3] > layout[2, 3]
    assert batch[0, 1] > batch[0, 2] > batch[0, 3] > 0
    assert np.array_equal(omp, np.eye(3))
    assert np.allclose(np.diag(layout), 1.0)


def test_every_space_is_a_covariance() -> None:
    """No configuration may be believed to have a negative variance."""
    for alike in Encoder(SPACE).alike:
        assert np.linalg.eigvalsh(alike).min() > -1e-9


def rows_of(*changed: dict[str, object]) -> np.ndarray:
    return Encoder(SPACE).rows([SPACE.complete(one) for one in changed])  # type: ignore[arg-type]


def test_what_shares_a_failure_s_cause_will_fail_too() -> None:
    failed = rows_of({"allocator": "tcmalloc", "batch": 8})
    worked = rows_of({}, {"batch": 8}, {"allocator": "tcmalloc"})
    chances = success_chances(
        rows_of(
            {"allocator": "tcmalloc", "batch": 8, "smt": True},
            {"allocator": "tcmalloc", "batch": 16},
            {"allocator": "glibc", "batch": 8},
        ),
        worked,
        failed,
    )
    assert chances[0] < 0.6, "both together, which nobody has seen work"
    assert chances[1] == chances[2] == 1.0, "neither alone was the cause"


def test_a_value_that_always_fails_is_suspected_more_with_each_failure() -> None:
    worked = rows_of({}, {"batch": 8}, {"smt": True})
    candidate = rows_of({"omp": "intel", "thp": "always"})
    failures = [{"omp": "intel"}, {"omp": "intel", "batch": 8}, {"omp": "intel", "smt": True}]
    chances = [
        float(success_chances(candidate, worked, rows_of(*failures[:count]))[0])
        for count in range(4)
    ]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1.0
    assert chances[3] < 0.3
