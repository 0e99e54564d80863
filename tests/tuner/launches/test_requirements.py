# SPDX-License-Identifier: Apache-2.0
"""What --require takes, what it refuses, and what launches come to by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden

from xlaunch.metrics.metric_lines import MetricKind
from xtune.errors import ObjectiveError
from xtune.launches.launch import Goal, Objective, Requirement, Secondary, Series
from xtune.launches.requirements import check, metrics_to_read, parse_requirement
from xtune.launches.summaries import Summary, summarise

GIB = 2.0**30
NOTHING_ELSE = Secondary(1.0)


def objective(metric: str, *requirements: str) -> Objective:
    return Objective(metric, Goal.MAXIMIZE, tuple(map(parse_requirement, requirements)))


def summaries(**by_metric: list[float]) -> dict[str, Summary]:
    found = {}
    for name, values in by_metric.items():
        times = tuple(float(at) for at in range(len(values)))
        summary = summarise(name, [Series(0, name, times, tuple(values))])
        assert summary is not None
        found[name] = summary
    return found


# Reading


@pytest.mark.parametrize(
    ("text", "quantity", "at_most", "limit"),
    [
        ("p99<=20ms", "p99", True, 0.02),
        ("p50≤1.5s", "p50", True, 1.5),
        ("p99(step_ms)<=2min", "p99(step_ms)", True, 120.0),
        ("rss<=8GiB", "rss", True, 8 * GIB),
        ("rss <= 512 MiB", "rss", True, 512 * 2.0**20),
        ("rss<=1e3kB", "rss", True, 1e6),
        ("rss<=.5TiB", "rss", True, 512 * GIB),
        ("energy<=2Wh", "energy", True, 7200.0),
        ("energy<=3", "energy", True, 3.0),
        ("cpu<=10min", "cpu", True, 600.0),
        ("wall>=1h", "wall", False, 3600.0),
        ("latency<=20ms", "latency", True, 0.02),
    ],
)
def test_limits_are_in_base_units(text: str, quantity: str, at_most: bool, limit: float):
    assert parse_requirement(text) == Requirement(
        text, quantity, at_most, pytest.approx(limit), as_printed=False
    )


@pytest.mark.parametrize(
    ("text", "quantity", "limit"),
    [
        ("accuracy >= 90 %", "accuracy", 90.0),
        ("images/s>=1e3", "images/s", 1000.0),
        ("val loss>=-2.5", "val loss", -2.5),
        ("p99>=20", "p99", 20.0),
        ("'(?:a<b) ([0-9]+)'>=3", "'(?:a<b) ([0-9]+)'", 3.0),
    ],
)
def test_limits_without_a_unit_are_as_printed(text: str, quantity: str, limit: float):
    assert parse_requirement(text) == Requirement(text, quantity, False, limit, as_printed=True)


def test_what_cannot_be_read_is_refused_in_a_line(golden: Golden):
    said = []
    for text in (
        "", "p99", "<=20ms", "p99<=fast", "p99<=1,5ms", "rss<8GiB", "accuracy=1", "rss<=8", "rss<=8G",
        "energy<=8ms", "p99<=20GiB", "accuracy>=0.9points", "p49<=20ms", "p99.99(step_ms)<=20", "p99<=0ms",
        "x<=1e999",
    ):  # fmt: skip
        with pytest.raises(ObjectiveError) as refused:
            parse_requirement(text)
        said.append(str(refused.value))
        assert f"--require {text!r}" in said[-1]
        assert "\n" not in said[-1]
        assert refused.value.exit_code == 2
    golden(said)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str):
    try:
        requirement = parse_requirement(text)
    except ObjectiveError:
        return
    assert requirement.quantity
    assert requirement.text == text.strip()


# What has to be measured for it


@pytest.mark.parametrize(
    ("wanted", "further", "read"),
    [
        (
            ("images/s", "accuracy>=0.9", "rss<=8GiB", "p99(step time)<=20ms", "loss<=1"),
            ["loss", "images/s", "rate:total"],
            ("images/s", "loss", "rate:total", "accuracy", "latency:step time"),
        ),
        (("wall", "wall<=10s"), [], ()),  # it is not read from output
        (("images/s", "p99<=20ms"), ["step_ms"], ("images/s", "step_ms")),  # the one latency
        (("latency", "p99<=20ms", "p90<=10ms"), [], ("latency",)),
        (("a_ms", "p99(b_ms)<=20ms"), ["b_ms"], ("a_ms", "b_ms")),
        (
            ("@hypertune latency (ms)", "@hypertune accuracy>=0.9", "p90<=1"),
            [],
            ("@hypertune",),  # announced values are read by their mark
        ),
        (("wall", "p90(total)<=3"), [], (f"{MetricKind.TIME.value}:total",)),
    ],
)
def test_required_metrics_are_measured_too(
    wanted: tuple[str, ...], further: list[str], read: tuple[str, ...]
):
    assert metrics_to_read(objective(*wanted), further) == read


def test_what_cannot_be_measured_is_refused(golden: Golden):
    golden.errors(
        lambda: metrics_to_read(objective("images/s", "p99<=20ms"), []),
        lambda: metrics_to_read(objective("a_ms", "p99<=20ms"), ["b_ms"]),
        lambda: metrics_to_read(objective("(?:x)/s"), []),
    )


# What launches come to


def seen(
    *texts: str, secondary: Secondary = NOTHING_ELSE, **by_metric: list[float]
) -> tuple[list[float | None], tuple[str, ...]]:
    requirements = [parse_requirement(text) for text in texts]
    found, notes = check(requirements, summaries(**by_metric), secondary)
    assert [text for text, _ in found] == list(texts)
    return [value for _, value in found], notes


def test_percentiles_are_compared_in_seconds():
    values = [float(n) for n in range(101)]
    found, notes = seen("p99<=20ms", "p90<=20ms", "p50<=20ms", "p99<=20", step_ms=values)
    assert found == [pytest.approx(0.099), pytest.approx(0.09), pytest.approx(0.05), 99.0]
    assert notes == ()
    assert not parse_requirement("p99<=20ms").holds(found[0])
    assert parse_requirement("p99<=100ms").holds(found[0])


def test_99th_percentile_of_few_values_is_refused(golden: Golden):
    found, notes = seen("p99<=20ms", "p90<=20ms", step_ms=[1.0] * 99)
    assert found == [None, pytest.approx(0.001)]
    golden(notes)
    _, notes = seen("p99.9<=20ms", "p50<=20ms", step_ms=[1.0])
    assert notes[0].endswith("p99.9 takes 1,000 values and there are 1: run longer")
    assert notes[1].endswith("p50 takes 2 values and there are 1: run longer")
    assert not parse_requirement("p99<=20ms").holds(found[0])


def test_any_percentile_from_the_median_on_is_of_all_values():
    found, _ = seen("p95<=20ms", "p99.9<=20ms", step_ms=[float(n) for n in range(1001)])
    assert found == pytest.approx([0.95, 0.999])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("accuracy>=0.5", pytest.approx(0.9)), ("loss<=1", pytest.approx(0.9)), ("last(accuracy)>=0.5", 0.7), ("max(accuracy)<=1", 1.1),
        ("min(accuracy)>=0.5", 0.0), ("mean(accuracy)>=0.5", pytest.approx(0.94)), ("last(ms)<=1", 0.7),
    ],
)  # fmt: skip
def test_statistics_of_values(text: str, value: float):
    values = [0.0, *[1.0] * 17, 1.1, 0.7]  # the mean of the last two is 0.9
    found, notes = seen(text, accuracy=values, loss=values, ms=values)
    assert (found, notes) == ([value], ())


def test_the_worst_instance_counts():
    series = [Series(n, "loss", (0.0, 1.0), (9.0, 1.0 + n)) for n in range(3)]
    found = {"loss": summarise("loss", series)}
    for text, value in [("loss<=1", 3.0), ("loss>=1", 1.0), ("last(loss)<=2", 3.0)]:
        values, _ = check([parse_requirement(text)], found, NOTHING_ELSE)
        assert values == ((text, value),)
    assert found["loss"].value == 2.0


def test_unit_that_nobody_told_is_not_guessed(golden: Golden):
    found, notes = seen("p50<=20ms", "p50<=20", latency=[5.0] * 20)
    assert found == [None, 5.0]
    golden(notes[0])


def test_resources_and_metrics_are_compared_as_they_are(golden: Golden):
    secondary = Secondary(wall_s=2.0, cpu_s=3.0, peak_rss_bytes=4 << 30, energy_j=5.0)
    found, notes = seen("wall<=1s", "cpu<=1s", "rss<=1GiB", "energy<=1J", secondary=secondary)
    assert (found, notes) == ([2.0, 3.0, float(4 << 30), 5.0], ())
    found, notes = seen("accuracy>=0.9", "images/s>=10", **{"accuracy": [0.95], "images/s": [9.0]})
    assert (found, notes) == ([0.95, 9.0], ())
    found, notes = seen("energy<=1J")
    assert found == [None]
    golden(notes)


def test_what_was_not_printed_does_not_hold(golden: Golden):
    found, notes = seen("accuracy>=0.9", "p99<=1ms", "p90(b_ms)<=1ms", loss=[1.0])
    assert found == [None, None, None]
    golden([note.partition(": ")[2] for note in notes])
