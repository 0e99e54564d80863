# SPDX-License-Identifier: Apache-2.0
"""What a page says, of searches that ended in every way; read back as HTML."""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.tuner.page.pages import SECTIONS, Element, charts_of, findings, read_page
from tests.tuner.search.scripted import RATE, SMALL, SPACE, gain

from xtune.evidence.fronts import SecondGoal
from xtune.evidence.verdicts import Kind
from xtune.measurement.launches import Launch, Outcome, Secondary, Series
from xtune.measurement.objectives import WALL, Goal, Objective, Requirement
from xtune.page.findings import Findings, best_so_far, contestants, failures
from xtune.search.provenance import Made, Provenance
from xtune.space.parameters import BARE, Configuration

Needs = Callable[[object, str], None]


def crash_under_tcmalloc(configuration: Configuration) -> Outcome:
    fails = configuration.get("allocator") == "tcmalloc"
    return Outcome.CRASHED if fails else Outcome.MEASURED


def with_saved(launch: Launch) -> Launch:
    """A second metric: large batches are worse by it, whatever else is set."""
    batch = launch.configuration.get("batch", 4)
    return launch._replace(metrics=(("accuracy", 0.9 - 0.01 * math.log(float(batch))),))


def with_samples(launch: Launch) -> Launch:
    if launch.value is None:
        return launch
    values = tuple([launch.value * (1.0 + 0.001 * (n % 7)) for n in range(400)])
    times = tuple([0.01 * n for n in range(400)])
    return launch._replace(series=(Series(0, RATE.metric, times, values),))


def erratic() -> Callable[[Configuration], float]:
    """Speeds that change from launch to launch: 8 % ahead of the bare command on average."""
    launched: Counter[Configuration] = Counter()

    def speed(configuration: Configuration) -> float:
        if configuration == BARE:
            return 0.0
        launched[configuration] += 1
        return 0.25 if launched[configuration] % 2 else -0.1

    return speed


CASES: dict[str, Callable[[], Findings]] = {
    "gain": lambda: findings(60),
    "no gain": lambda: findings(60, speed=lambda _: 0.0, noise=0.0005),
    "inconclusive": lambda: findings(40, speed=erratic()),
    "no final": lambda: findings(12),
    "one launch": lambda: findings(1),
    "small space": lambda: findings(60, space=SMALL),
    "some fail": lambda: findings(60, outcomes=crash_under_tcmalloc),
    "times": lambda: findings(40, objective=Objective("latency_ms", Goal.MINIMIZE)),
    "wall": lambda: findings(40, objective=Objective(WALL, Goal.MINIMIZE)),
    "two goals": lambda: findings(
        60, change=with_saved, second=SecondGoal("accuracy", Goal.MAXIMIZE)
    ),
    "two goals, one launch": lambda: findings(
        1, change=with_saved, second=SecondGoal("accuracy", Goal.MAXIMIZE)
    ),
    "samples": lambda: findings(60, change=with_samples),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[str, Findings, Element]:
    found = CASES[request.param]()
    return request.param, found, read_page(found)


Case = tuple[str, Findings, Element]


def test_every_section_is_there_with_a_title_and_something_to_say(case: Case) -> None:
    _, found, root = case
    sections = [one.attributes["id"] for one in root.all("section")]
    second = ["front"] if found.second is not None else []
    assert sorted(map(str, sections)) == sorted([*SECTIONS, *second])
    (nav,) = root.all("nav")
    links = [one.attributes["href"] for one in nav.all("a")]
    assert links == [f"#{name}" for name in sections]
    for section in root.all("section"):
        (title,) = section.all("h2")
        assert title.words
        assert len(section.words) > len(title.words) + 10
    ids = [one.attributes["id"] for one in root.all() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)


def test_values_are_those_of_json(case: Case) -> None:
    _, found, root = case
    plain = found.plain
    assert json.loads(root.by_id("verdict-json").text) == plain
    assert root.by_id("command").text == plain["command"]
    assert root.value("baseline-value") == plain["baseline"]["value"]
    assert root.value("launches") == plain["launches"] == len(found.records)
    if plain["gain"] is not None:
        assert root.value("gain") == plain["gain"]
    if plain["interval"] is not None:
        assert [root.value("low"), root.value("high")] == plain["interval"]
    rows = root.by_id("history").rows()
    assert len(rows) == plain["launches"]
    values = [json.loads(str(one.attributes["value"])) for one in root.by_id("history").all("data")]
    assert values == [launch.value for launch in found.launches]


def test_what_is_drawn_is_what_plotly_knows(case: Case, needs: Needs) -> None:
    needs(importlib.util.find_spec("plotly"), "plotly")
    from plotly.graph_objects import Figure

    _, _, root = case
    places = {
        str(one.attributes["id"]).removeprefix("chart-")
        for one in root.all("div")
        if str(one.attributes.get("id")).startswith("chart-")
    }
    charts = charts_of(root)
    assert charts.keys() == places
    assert {"history", "distributions"} <= places
    colours = _variables(root)
    for chart in charts.values():
        assert chart["data"]
        for trace in chart["data"]:
            runs = trace.pop("hoverruns", None)
            if runs is not None:
                assert runs["length"] * len(runs["texts"]) == len(trace["x"])
        named = _resolved(chart, colours)
        Figure(data=named["data"], layout=named["layout"])  # raises for what it does not know


def _variables(root: Element) -> set[str]:
    (style,) = root.all("style")
    lines = [line.strip() for line in style.text.splitlines()]
    return {line[2:].partition(":")[0] for line in lines if line.startswith("--")}


def _resolved(value: Any, colours: set[str], key: str = "") -> Any:
    """As the page's script does it: each name of a colour has to be one of the style's."""
    if isinstance(value, dict):
        return {name: _resolved(one, colours, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_resolved(one, colours, key) for one in value]
    if isinstance(value, str) and value.startswith("@") and key.endswith("color"):
        assert value[1:] in colours
        return "#123456"
    return value


def test_a_gain_says_ratio_command_preset_and_plan() -> None:
    found = CASES["gain"]()
    assert found.verdict.kind is Kind.GAIN
    root = read_page(found)
    estimate, interval = found.verdict.gain, found.verdict.interval
    assert estimate is not None
    assert interval is not None
    word, shown = root.by_id("headline").words.rstrip("\N{MULTIPLICATION SIGN}").split()
    assert word == "Gain:"
    assert float(shown) == pytest.approx(estimate, abs=0.05 * (interval.high - interval.low))
    assert 'allocator = "tcmalloc"' in root.by_id("preset").text
    assert root.by_id("command").text.startswith("xlaunch ")
    standings = root.by_id("decision").rows()
    assert len(standings) == len(found.verdict.standings)
    wins = [row for row in standings if row[-1] == "wins"]
    (winner,) = wins
    assert "batch=8" in winner[1]
    people = contestants(found)
    assert [row[0] for row in root.by_id("distributions").rows()] == [one.name for one in people]
    assert people[0].configuration == BARE
    left_out = [row for row in root.by_id("importance").rows() if " instead of " in row[1]]
    assert [row[0] for row in left_out] == [one.name for one in found.ablations]
    assert set(found.space.changes(found.verdict.best)) == {row[0] for row in left_out}
    assert ["batch", "4 instead of 8"] in [row[:2] for row in left_out]


def test_no_gain_keeps_the_default() -> None:
    found = CASES["no gain"]()
    assert found.verdict.kind is Kind.NO_GAIN
    root = read_page(found)
    assert root.by_id("headline").words == "No gain: keep the default"
    assert not [one for one in root.all() if one.attributes.get("id") == "preset"]
    assert root.by_id("command").text == found.plain["baseline"]["command"]
    assert "Where the best finalist would run" in root.by_id("plan").words


def test_inconclusive_says_what_is_promising_and_how_to_go_on() -> None:
    found = CASES["inconclusive"]()
    assert found.verdict.kind is Kind.INCONCLUSIVE
    assert found.verdict.more is not None
    assert found.verdict.interval is not None
    assert found.verdict.interval.estimate > 1.0
    root = read_page(found)
    assert root.by_id("headline").words == "Inconclusive: nothing is shown yet"
    assert root.by_id("promising").text.startswith("xlaunch ")
    assert (
        "would settle it, four times in five; xtune resume goes on" in root.by_id("verdict").words
    )


@pytest.mark.parametrize("launches", [12, 40])
def test_what_is_behind_the_bare_command_is_not_recommended(launches: int) -> None:
    found = findings(launches, speed=lambda one: 0.0 if one == BARE else gain(one) - 1.5)
    assert found.verdict.kind in (Kind.INCONCLUSIVE, Kind.NO_GAIN)
    assert not [line for line in found.words if "promising: " in line or "to try it" in line]
    behind = [line for line in found.words if "nothing launched so far is ahead of" in line]
    assert len(behind) == (found.verdict.kind is Kind.INCONCLUSIVE)
    root = read_page(found)
    assert not [one for one in root.all() if one.attributes.get("id") == "promising"]


def test_one_launch_makes_a_page_that_claims_nothing() -> None:
    found = CASES["one launch"]()
    root = read_page(found)
    assert found.plain["interval"] is None
    assert "no final" in root.by_id("warnings").words.lower()
    assert "There was no paired final" in root.by_id("decision").words
    assert "Fewer than two configurations" in root.by_id("configurations").words
    assert charts_of(root).keys() == {"history", "distributions"}


def test_failures_come_with_the_end_of_standard_error() -> None:
    found = CASES["some fail"]()
    rows = failures(found)
    assert [one.outcome for one in rows] == [Outcome.CRASHED]
    section = read_page(found).by_id("failures")
    assert f"crashed, {len(rows[0].numbers)} times" in section.words
    assert "exit code 1" in section.words
    assert [one.text for one in section.all("pre")] == ["it cannot"]
    for configuration in rows[0].configurations:
        assert "allocator=tcmalloc" in section.words
        assert configuration["allocator"] == "tcmalloc"
    history = charts_of(read_page(found))["history"]
    crossed = [trace for trace in history["data"] if trace.get("yaxis") == "y2"]
    assert sum(len(trace["x"]) for trace in crossed) == sum(
        launch.value is None for launch in found.launches
    )


def test_two_goals_have_a_front() -> None:
    found = CASES["two goals"]()
    root = read_page(found)
    section = root.by_id("front")
    assert "items/s" in section.words
    assert "accuracy" in section.words
    assert section.rows()
    assert "front" in charts_of(root)


def test_times_say_their_unit_and_better_is_above_one() -> None:
    found = CASES["times"]()
    root = read_page(found)
    median = found.median(BARE)
    assert median is not None
    assert root.by_id("baseline-value").words.endswith(" ms")
    assert "less is better" in root.by_id("history").words
    assert found.verdict.gain is not None
    assert found.verdict.gain > 1.0
    best = [one for one in best_so_far(found) if one is not None]
    assert best == sorted(best, reverse=True)


def test_wall_time_is_in_seconds() -> None:
    root = read_page(CASES["wall"]())
    assert root.by_id("baseline-value").words.endswith(" s")
    assert "wall time (s)" in root.by_id("history").words


def test_raw_samples_are_drawn_where_there_are_many() -> None:
    root = read_page(CASES["samples"]())
    chart = charts_of(root)["samples"]
    assert all(trace["type"] == "box" for trace in chart["data"])
    assert all(len(trace["y"]) <= 150 for trace in chart["data"])
    assert "samples" not in charts_of(read_page(CASES["gain"]()))


def test_what_breaks_a_requirement_is_said_to() -> None:
    bound = Requirement("rss<=1MiB", "rss", at_most=True, limit=1 << 20)

    def change(launch: Launch) -> Launch:
        peak = 1 << 21 if launch.configuration.get("allocator") == "tcmalloc" else 1 << 19
        secondary = Secondary(launch.secondary.wall_s, peak_rss_bytes=peak)
        return launch._replace(requirements=(("rss<=1MiB", float(peak)),), secondary=secondary)

    objective = Objective(RATE.metric, RATE.goal, (bound,))
    found = findings(60, objective=objective, change=change)
    root = read_page(found)
    ended = [(row[2], row[-1]) for row in root.by_id("history").rows()]
    broke = [configuration for configuration, how in ended if how == "breaks what is required"]
    assert broke
    assert all("allocator=tcmalloc" in configuration for configuration in broke)
    assert "with rss<=1MiB" in root.words
    for value, launch in zip(best_so_far(found), found.launches, strict=True):
        assert value is None or objective.is_feasible(launch) or value != launch.value


def test_space_and_machine_are_told_in_full() -> None:
    found = CASES["gain"]()
    root = read_page(found)
    rows = {row[0]: row for row in root.by_id("space").rows()}
    for parameter in SPACE.parameters:
        assert rows[parameter.name][1].split() == [str(value) for value in parameter.values]
    cores = [one for one in root.by_id("machine").all("span") if "core" in _classes(one)]
    assert len(cores) == len(found.machine.topology.cores)
    versions = root.by_id("versions").words
    assert "xtune" in versions
    assert "Python" in versions
    assert "those of the launches were not kept" in versions


def test_versions_are_those_of_the_launches() -> None:
    before = Provenance("", {"program": {"torch": "1.0.1"}, "system": {}, "tuner": {}})
    after = Provenance("", {"program": {"torch": "1.0.2"}, "system": {}, "tuner": {}})
    made = (Made(before, (1, 2, 3, 9)), Made(after, (4, 10)))
    root = read_page(CASES["gain"]()._replace(made=made))
    versions = root.by_id("versions").words
    assert "torch1.0.2" in versions
    assert "1.0.1" not in versions
    assert "As they were when the latest launches were made" in versions
    warned = root.by_id("warnings").words
    assert "4 of the launches (1 to 3, 9) were made with torch 1.0.1 (now 1.0.2)" in warned


def _classes(one: Element) -> list[str]:
    return (one.attributes.get("class") or "").split()
