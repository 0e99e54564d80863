# SPDX-License-Identifier: Apache-2.0
"""Times of launches are compared in one unit, whatever unit each prints; NaN and infinities fail a launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.tuner.recorded import decode_launch
from tests.golden import Golden
from tests.tiers import quick_first
from tests.tuner.launches.conftest import MakeRunner

from xtune.launches.generators import summaries_of
from xtune.launches.launch import Goal, Launch, Limits, Objective, Outcome
from xtune.launches.runner import Runner
from xtune.launches.summaries import with_unit
from xtune.search.encoding import encode_launch
from xtune.space.parameters import Configuration

DEFAULT = Configuration({})


@pytest.fixture
def launched(make_runner: MakeRunner, tmp_path: Path):
    """Launches of a program that prints other lines at each start."""

    def launch(
        *printed: Sequence[str], metric: str = "latency", runner: Runner | None = None, **options
    ) -> list[Launch]:
        runner = runner or make_runner(
            "for line in open('printed'): tell(line.strip())", metric, Goal.MINIMIZE, **options
        )
        made = []
        for lines in printed:
            (tmp_path / "printed").write_text("\n".join(["started 9", *lines]))
            made.append(runner.measure(DEFAULT))
        return made

    return launch


PRINTED = (
    ("latency", ["latency: 948.6 ms", "latency: 1.143 s", "latency 12 us"], [0.9486, 1.143, 12e-6]),
    ("latency", ["latency: 2 min", "latency: 1.5m"], [120, 90]),
    ("step_ms", ["step_ms: 12", "step_ms: 0.02 s", "step_ms 5 us"], [12, 20, 0.005]),
    ("ms", ["12.5 ms", "13 ms"], [12.5, 13]),
    # A number without a unit has that of the first one.
    ("step time", ["step time: 20 ms", "step time: 25", "step time: 1 s"], [0.02, 0.025, 1]),
    ("step time", ["step time: 20", "step time: 25"], [20, 25]),
    # Rates and values have the unit that was printed first.
    ("throughput", ["throughput: 900 MB/s", "throughput: 1.2GB/s"], [900, 1200]),
    ("throughput", ["throughput: 12.5 items/s", "throughput: 1.5k items/min"], [12.5, 25]),
    ("peak", ["peak: 900MiB", "peak: 1.5 GiB", "peak: 1000"], [900, 1536, 1000]),
    ("median", ["median: 950 ms", "median: 1.01 s"], [950, 1010]),
    ("accuracy", ["accuracy: 93%", "accuracy: 95 %"], [93, 95]),
)  # fmt: skip
"""A metric, what is printed of it by each launch, and the values in one unit."""


@pytest.mark.parametrize(
    ("metric", "printed", "values"), quick_first([pytest.param(*one) for one in PRINTED], quick=5)
)
def test_launches_are_compared_in_one_unit(launched, metric, printed, values):
    launches = launched(*[[line] * 3 for line in printed], metric=metric)
    assert [launch.value for launch in launches] == pytest.approx(values)
    for launch, value in zip(launches, values, strict=True):
        (series,) = launch.series
        assert series.values[-1] == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "number", "other"),
    quick_first(
        [
            pytest.param("step time", "20", "20 ms"),
            pytest.param("accuracy", "93%", "0.93"),
            pytest.param("accuracy", "0.93", "93 %"),
            pytest.param("throughput", "9 MB/s", "9 items/s"),
        ],
        quick=2,
    ),
)
def test_units_that_cannot_be_compared_fail_the_launch(
    golden: Golden, launched, metric, number, other
):
    lines = [f"{metric}: {one}" for one in (number, other)]
    first, second = launched(lines[:1], lines[1:], metric=metric)
    assert (first.outcome, second.outcome) == (Outcome.MEASURED, Outcome.NO_METRIC)
    golden(second.notes[0])


@pytest.mark.parametrize(
    ("metric", "text", "scale"),
    [
        ("step time", "step time <= 30", 1),
        ("median", "last(median) <= 30 ms", 1e-3),
        pytest.param("step time", "p50(step time) <= 30", 1, marks=pytest.mark.long),
        pytest.param("median", "median <= 30", 1, marks=pytest.mark.long),
    ],
)
def test_a_limit_without_a_unit_is_in_the_unit_that_was_printed_first(
    launched, metric, text, scale
):
    printed = [[f"{metric}: {one}"] * 3 for one in ("20 ms", "0.025 s", "0.04 s")]
    launches = launched(*printed, metric=metric, requirements=[text])
    seen = [dict(launch.requirements)[text] for launch in launches]
    assert seen == pytest.approx([20 * scale, 25 * scale, 40 * scale])


def test_the_study_s_first_launch_decides_after_resuming(launched, make_runner, tmp_path):
    (first,) = launched(["step time: 20 ms"], metric="step time")
    kept = decode_launch(encode_launch(first))
    runner = make_runner(
        "for line in open('printed'): tell(line.strip())", "step time", Goal.MINIMIZE
    )
    runner.reader.learn([kept])
    (resumed,) = launched(["step time: 25"], runner=runner)
    assert resumed.value == pytest.approx(0.025)
    # Launches of older versions do not tell their unit: nothing is compared with them silently.
    runner.reader.learn([kept._replace(units=())])
    (refused,) = launched(["step time: 25 ms"], runner=runner)
    assert refused.outcome is Outcome.NO_METRIC


def test_a_launch_is_cut_by_values_in_any_unit(make_runner):
    code = "for _ in range(200): time.sleep(0.01); tell('latency: 50 ms')"
    launch = make_runner(code, "latency", Goal.MINIMIZE).measure(DEFAULT, Limits(cut_at=0.06))
    assert launch.outcome is Outcome.MEASURED
    launch = make_runner(code, "latency", Goal.MINIMIZE).measure(DEFAULT, Limits(cut_at=0.02))
    assert launch.outcome is Outcome.CUT


def test_times_are_shown_in_the_unit_that_fits():
    from xtune.show.words import amount

    launch = Launch(DEFAULT, "", Outcome.MEASURED, 0.9486, 0.0, units=(("latency", "ms"),))
    objective = with_unit(Objective("latency", Goal.MINIMIZE), [launch])
    shown = [amount(value, objective) for value in (0.9486, 1.143, 12e-6, 0.0)]
    assert shown == ["948.6 ms", "1.143 s", "12 us", "0 s"]
    bare = with_unit(Objective("latency", Goal.MINIMIZE), [launch._replace(units=())])
    assert amount(12.5, bare) == "12.5 (latency)"
    named = with_unit(Objective("step_ms", Goal.MINIMIZE), [launch])
    assert amount(12.5, named) == "12.5 ms"


def test_percentiles_of_a_generator_are_in_seconds_and_remember_their_unit():
    wrk = "  Latency Distribution\n     50%  948.60us\n     99%    1.14ms\nRequests/sec: 10\n"
    latency = summaries_of([wrk], ["requests/sec", "latency"])["latency"]
    assert (latency.unit, latency.printed_in) == ("s", "ms")
    assert (latency.value, latency.p99) == pytest.approx((948.6e-6, 1.14e-3))


@pytest.mark.parametrize(
    ("metric", "lines", "line"),
    [
        ("loss", ["loss 3", "step 2 loss nan"], "loss: step 2 loss nan"),
        ("loss", ["loss nan", "loss inf"], "loss: loss nan"),
        ("x/s", ["5 x/s", "6 x/s accuracy NaN"], "accuracy: 6 x/s accuracy NaN"),
        ("@hypertune", ["@hypertune {'name': 'loss'}", "nan"], "nan"),
    ],
)
def test_a_value_that_is_not_finite_fails_the_launch(launched, metric, lines, line):
    (launch,) = launched(lines, metric=metric, metrics=["accuracy"])
    assert (launch.outcome, launch.value) == (Outcome.NOT_FINITE, None)
    assert launch.notes[0] == line


def test_a_value_that_is_not_finite_before_all_run_does_not_count(launched):
    (launch,) = launched(["loss nan", "loss 3", "loss 2"], metric="loss")
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 2)
