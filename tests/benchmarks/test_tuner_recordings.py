# SPDX-License-Identifier: Apache-2.0
"""Recordings: nothing is lost on the way to a file and back, and answers are drawn fairly."""

from __future__ import annotations

import gzip
import io
import json
from functools import partial
from pathlib import Path

import pytest
from benchmarks.tuner.recorded import (
    Header,
    RecordedLaunch,
    RecordedMeasurer,
    RecordedPlan,
    Recording,
    decode_launch,
    read_recording,
    write_header,
    write_launch,
)
from benchmarks.tuner.synthetic import SHAPES, synthetic_recording
from tests.golden import Golden
from tests.tiers import quick_first

from xtune.launches.launch import (
    Goal,
    Launch,
    Limits,
    Objective,
    Outcome,
    Requirement,
    Secondary,
    Series,
    Steadiness,
)
from xtune.search.encoding import encode_launch
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import Space

SPACE = Space(
    [
        Parameter("allocator", ("auto", "glibc"), "auto", Target.OPTION),
        Parameter("batch", (1, 2, 4), 2, Target.PROGRAM, ordered=True),
    ],
    ["batch <= 2 if allocator == glibc"],
)
DEFAULT = SPACE.default
HEADER = Header(
    "tiny", SPACE, "a machine", ("a.py", "--x", "1 2"),
    Objective("items/s", Goal.MAXIMIZE, (Requirement("rss<=1MiB", "rss", True, 2.0**20),)),
    (("python", "3.11"),),
)  # fmt: skip
FULL = Launch(
    configuration=Configuration({"allocator": "glibc", "batch": 1}),
    plan_hash="aa",
    outcome=Outcome.CRASHED,
    value=1.25,
    began_s=3.5,
    steadiness=Steadiness.NOT_STEADY,
    requirements=(("rss<=1MiB", None), ("p99<=1s", 0.5)),
    metrics=(("loss", 0.0),),
    units=(("loss", "s"),),
    secondary=Secondary(1.0, 0.5, 7, 0, 1, 2.5),
    series=(Series(1, "items/s", (0.25, 0.5), (1.0, 1.5)), Series(0, "loss", (), ())),
    exit_code=-9,
    stderr_tail="Tschüss\nnow",
    shared_cpus=("three",),
    notes=("one", "two"),
)


def launch(plan: str, value: float | None, **fields: object) -> Launch:
    outcome = Outcome.CRASHED if value is None else Outcome.MEASURED
    plain = Launch(DEFAULT, plan, outcome, value, 0.0, secondary=Secondary(2.0))
    return plain._replace(
        requirements=(("rss<=1MiB", 5.0),),
        **fields,  # type: ignore[arg-type]
    )


def recording(values: dict[str, list[float | None]]) -> Recording:
    """Of plan `a`, the defaults, `b` and `bare`."""
    plans = [
        RecordedPlan("bare", (BARE,)),
        RecordedPlan("a", (DEFAULT, DEFAULT.with_value("batch", 4))),
        RecordedPlan("b", (DEFAULT.with_value("batch", 1),)),
        RecordedPlan(None, (DEFAULT.with_value("allocator", "glibc"),)),
    ]
    rows = [
        RecordedLaunch(number, launch(plan, value))
        for plan, found in values.items()
        for number, value in enumerate(found)
    ]
    return Recording(HEADER, plans, rows)


def written(recorded: Recording) -> str:
    stream = io.StringIO()
    write_header(stream, recorded.header, recorded.plans)
    for row in recorded.launches:
        write_launch(stream, recorded.header, row)
    return stream.getvalue()


def test_every_field_of_a_launch_survives() -> None:
    defaults = Launch._field_defaults
    assert not [name for name, value in defaults.items() if getattr(FULL, name) == value]
    assert decode_launch(json.loads(json.dumps(encode_launch(FULL)))) == FULL
    least = Launch(Configuration({}), "", Outcome.CUT, None, 0.0)
    assert decode_launch(json.loads(json.dumps(encode_launch(least)))) == least
    assert decode_launch(encode_launch(FULL, series=False)) == FULL._replace(series=())


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_recording_survives(tmp_path: Path, suffix: str) -> None:
    before = recording({"a": [1.0, 2.0], "b": [None], "bare": [3.0]})
    before = Recording(before.header, before.plans, [*before.launches, RecordedLaunch(1, FULL)])
    path = tmp_path / f"tiny{suffix}"
    data = written(before).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    after = read_recording(path)
    assert after.header == before.header
    assert after.plans == before.plans
    assert after.launches == before.launches


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "tiny.jsonl"
    text = written(recording({"a": [1.0, 2.0]}))
    path.write_text(text[:-5])
    assert [row.launch.value for row in read_recording(path).launches] == [1.0]


def test_another_file_is_refused_in_one_line(golden: Golden, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(5)]
    contents = (b"", b'{"format": "else"}\n', b"\xff\xfe\n", b'{"format": "xtune recording", "version": 9}\n', b"not JSON\n")  # fmt: skip
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    golden.errors(*[partial(read_recording, path) for path in paths])


def test_configurations_are_named_by_what_they_change() -> None:
    recorded = recording({"a": [1.0]})
    assert recorded.plan_hash(Configuration({"allocator": "auto", "batch": 2})) == "a"
    assert recorded.plan_hash(Configuration({"batch": 4})) == "a"
    assert recorded.plan_hash(Configuration({"allocator": "glibc"})) is None
    assert recorded.plan_hash(BARE) == "bare"
    with pytest.raises(KeyError):
        recorded.plan_hash(Configuration({"batch": 3}))


def test_shares_are_of_the_best_plan_that_always_worked() -> None:
    recorded = recording({"a": [4.0, 6.0], "b": [50.0, None], "bare": [9.0]})
    assert recorded.best == "a"
    assert recorded.share("a") == 1.0
    assert recorded.share("bare") == pytest.approx(1.8)
    assert recorded.share("b") == 0.0
    assert recorded.share(None) == 0.0
    times = recording({"a": [4.0], "b": [5.0]})
    header = HEADER._replace(objective=Objective("wall", Goal.MINIMIZE))
    times = Recording(header, times.plans, times.launches)
    assert times.best == "a"
    assert times.share("b") == pytest.approx(0.8)


def test_no_launch_is_drawn_again_before_all_were() -> None:
    values = [float(number) for number in range(7)]

    def draw(seed: int) -> tuple[RecordedMeasurer, list[float | None]]:
        measurer = RecordedMeasurer(recording({"a": values}), seed)
        return measurer, [measurer.measure(Configuration({})).value for _ in range(21)]

    measurer, drawn = draw(3)
    assert draw(3)[1] == drawn != draw(4)[1]
    thirds = [drawn[:7], drawn[7:14], drawn[14:]]
    assert all(sorted(third) == values for third in thirds)
    assert len({tuple(third) for third in thirds}) > 1
    assert measurer.now_s() == 42.0


def test_the_launch_is_of_the_configuration_that_was_asked_for() -> None:
    measurer = RecordedMeasurer(recording({"a": [1.0]}))
    asked = Configuration({"batch": 4})
    assert measurer.measure(asked).configuration == asked
    with pytest.raises(KeyError, match="could not be carried out"):
        measurer.measure(Configuration({"allocator": "glibc"}))


def test_what_is_cut_or_takes_too_long_has_no_value() -> None:
    measurer = RecordedMeasurer(recording({"a": [4.0]}))
    assert measurer.measure(Configuration({}), Limits(cut_at=3.9)).value == 4.0
    cut = measurer.measure(Configuration({}), Limits(cut_at=4.1))
    assert (cut.outcome, cut.value, cut.secondary.wall_s) == (Outcome.CUT, None, 2.0)
    late = measurer.measure(Configuration({}), Limits(limit_s=1.5))
    assert (late.outcome, late.value, late.secondary.wall_s) == (Outcome.TIMED_OUT, None, 1.5)
    assert measurer.now_s() == 5.5


def test_wall_time_is_cut_when_it_is_over() -> None:
    recorded = recording({"a": [2.0]})
    header = HEADER._replace(objective=Objective("wall", Goal.MINIMIZE))
    measurer = RecordedMeasurer(Recording(header, recorded.plans, recorded.launches))
    cut = measurer.measure(Configuration({}), Limits(cut_at=0.5))
    assert (cut.outcome, cut.secondary.wall_s) == (Outcome.CUT, 0.5)


@pytest.mark.parametrize("shape", quick_first(SHAPES, 2), ids=lambda shape: shape.name)
def test_made_up_spaces_follow_from_their_seed(shape: object, tmp_path: Path) -> None:
    one = synthetic_recording(shape, 1)  # type: ignore[arg-type]
    assert written(one) == written(synthetic_recording(shape, 1))  # type: ignore[arg-type]
    assert one.share(one.best) == 1.0
    assert one.header.space.size == sum(len(p.configurations) for p in one.plans) - 1
    path = tmp_path / "made-up.jsonl"
    path.write_text(written(one))
    assert read_recording(path).launches == one.launches
