# SPDX-License-Identifier: Apache-2.0
"""What a page says of searches that ended in every way; read back as HTML."""

from __future__ import annotations

import json

import pytest
from tests.golden import Golden
from tests.tiers import quick_first
from tests.tuner.search.scripted import RATE, SPACE
from tests.tuner.show.cases import CASES, case
from tests.tuner.show.pages import SECTIONS, findings, marks_of, read_page

from xlaunch.planning.drawing import draw_machine
from xlaunch.text import format_cpu_list
from xtune.evidence.ratios import ratio_interval
from xtune.evidence.verdicts import VerdictKind, undecided
from xtune.launches.launch import Launch, Objective, Outcome, Requirement, Secondary
from xtune.search.events import Resolution
from xtune.search.records import Provenance
from xtune.show.charts import Scale
from xtune.show.result_text import result_lines
from xtune.show.words import NOTHING
from xtune.space.parameters import BARE
from xtune.space.spaces import Space


@pytest.mark.parametrize("name", quick_first(CASES, 3))
def test_all_sections_charts_and_values_are_there(name: str) -> None:
    found, root = case(name)
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
    ids = [str(one.attributes["id"]) for one in root.all() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)

    assert len(marks_of(root.by_id("chart-history"))) == len(found.launches)
    values = [one for name in found.labels for one in found.values(name)]
    assert len(marks_of(root.by_id("distributions"))) == len(values)
    pairs = [log for row in found.verdict.finalists for log in row.log_ratios]
    assert len(marks_of(root.by_id("decision"))) == sum(log is not None for log in pairs)

    plain = found.to_plain()
    assert json.loads(root.by_id("verdict-json").text) == plain
    assert root.by_id("command").text == plain["command"]
    assert root.value("baseline-value") == plain["baseline"]["value"]
    assert root.value("launches") == plain["launches"] == len(found.records)
    if plain["gain"] is not None:
        assert root.value("gain") == plain["gain"]
    if plain["interval"] is not None:
        assert [root.value("low"), root.value("high")] == plain["interval"]
    history = root.by_id("history")
    assert len(history.rows()) == plain["launches"]
    values = [json.loads(str(one.attributes["value"])) for one in history.all("data")]
    assert values == [launch.value for launch in found.launches]


def test_a_gain_says_ratio_command_preset_and_plan(golden: Golden) -> None:
    found, root = case("gain")
    assert found.verdict.kind is VerdictKind.GAIN
    estimate, interval = found.verdict.gain, found.verdict.interval
    word, shown = root.by_id("headline").words.rstrip("\N{MULTIPLICATION SIGN}").split()
    assert word == "Gain:"
    assert float(shown) == pytest.approx(estimate, abs=0.05 * (interval.high - interval.low))
    golden(root.by_id("preset").text)
    assert root.by_id("command").text.startswith("xlaunch ")
    finalists = root.by_id("decision").rows()
    assert len(finalists) == len(found.verdict.finalists)
    wins = [row for row in finalists if row[-1] == "wins"]
    (winner,) = wins
    assert "batch=8" in winner[1]
    people = found.labels
    assert [row[0] for row in root.by_id("distributions").rows()] == list(people.values())
    assert next(iter(people)) == BARE
    left_out = [row for row in root.by_id("importance").rows() if " instead of " in row[1]]
    assert [row[0] for row in left_out] == [one.name for one in found.ablations]
    assert set(found.space.changes(found.verdict.best)) == {row[0] for row in left_out}
    assert ["batch", "4 instead of 8"] in [row[:2] for row in left_out]


def test_the_winner_is_drawn_on_the_machine() -> None:
    found = findings(60, space=Space([SPACE.parameter("batch"), SPACE.parameter("smt")]))
    assert dict(found.verdict.best) == {"batch": 8, "smt": False}
    root = read_page(found)
    plan = found.resolver.resolve(found.verdict.best).plan
    assert root.by_id("plan-drawing").text == str(draw_machine(found.resolver.machine, plan))
    (instance,) = plan.instances
    row = root.by_id("plan").rows()[0]
    assert row[:4] == [
        "0", format_cpu_list(instance.cpus), str(instance.ncores), str(instance.threads),
    ]  # fmt: skip
    variables = [row[0] for row in root.by_id("plan").rows()[1:]]
    assert "OMP_NUM_THREADS" in variables


def test_noise_and_the_smallest_gain_are_said_where_known(golden: Golden) -> None:
    found = case("gain").found
    for resolution in (Resolution(0.0314, 20, 0.0681, 0.0542, 0.0921), None):
        said = read_page(found._replace(resolution=resolution)).by_id("verdict").words
        golden(said.partition(" Command to use")[0])


def test_configurations_are_listed_by_their_medians() -> None:
    found, root = case("gain")
    section = root.by_id("configurations")
    launched = {one.configuration for one in found.launches if one.value is not None} - {BARE}
    rows = section.rows()
    assert [row[0] for row in rows] == [str(rank) for rank in range(1, len(launched) + 1)]
    medians = [json.loads(str(one.attributes["value"])) for one in section.all("data")]
    assert medians == sorted(map(found.median, launched), reverse=True)
    heads = [one.words for one in next(section.all("tr")).all("th")]
    settings = heads[1:-3]
    assert {*settings} <= {one.name for one in SPACE.parameters}
    assert rows[0][heads.index("batch")] == "8"
    bars = [str(one.attributes["style"]) for one in section.all("i")]
    assert len(bars) == len(launched)
    assert len({bar.partition("width")[0] for bar in bars}) == 1, "all begin at 0"


def test_scales_have_round_ticks_and_keep_order() -> None:
    for values, ticks in (
        ([97.0, 161.0], ["100", "120", "140", "160"]),
        ([0.5, 800.0], ["0.5", "2", "10", "50", "200", "1,000"]),
        ([3.0], ["2.9", "2.95", "3", "3.05", "3.1"]),
        ([], ["0", "0.5", "1"]),
    ):
        scale = Scale(values)
        assert [text for _, text in scale.ticks] == ticks
        places = [place for place, _ in scale.ticks]
        assert places == sorted(places)
        assert all(0 <= place <= 100 for place in (*places, *map(scale.at, values)))
    for extreme in ([5e-324, 1e308], [-1e308, 1e308], [1.0, 1.0 + 1e-15], [float("inf"), 1.0]):
        assert all(0 <= place <= 100 for place, _ in Scale(extreme).ticks)


def test_one_pair_has_no_interval(golden: Golden) -> None:
    found = case("gain").found
    finalists = tuple(
        row._replace(
            log_ratios=row.log_ratios[:1],
            interval=ratio_interval([log for log in row.log_ratios if log][:1]),
        )
        for row in found.verdict.finalists
    )
    verdict = undecided(BARE, "1 pair is too few")._replace(
        finalists=finalists,
        leader=finalists[0].configuration,
        interval=finalists[0].interval,
    )
    root = read_page(found._replace(verdict=verdict))
    golden(root.by_id("verdict").words)
    for row in root.by_id("decision").rows():
        assert [row[3], row[5]] == [NOTHING, "1"]
    said = root.words
    assert "\N{INFINITY}" not in said
    assert "0.00\N{MULTIPLICATION SIGN} to" not in said
    spans = [one for one in root.by_id("decision").all("i") if one.attributes["class"] == "span"]
    assert all("width:0.0%" in str(one.attributes["style"]) for one in spans)


def test_no_gain_keeps_the_bare_command(golden: Golden) -> None:
    found, root = case("no gain")
    assert found.verdict.kind is VerdictKind.NO_GAIN
    golden(root.by_id("headline").words)
    assert not [one for one in root.all() if one.attributes.get("id") == "preset"]
    assert root.by_id("command").text == found.to_plain()["baseline"]["command"]
    assert "The best finalist:" in root.by_id("plan").words


def test_inconclusive_says_what_is_promising_and_how_to_go_on(golden: Golden) -> None:
    found, root = case("inconclusive")
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert found.verdict.interval.estimate > 1.0
    assert root.by_id("promising").text.startswith("xlaunch ")
    golden(root.by_id("verdict").words, *result_lines(found))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("behind", VerdictKind.NO_GAIN), ("behind, no final", VerdictKind.INCONCLUSIVE)],
)
def test_what_is_behind_the_bare_command_is_not_recommended(name: str, kind: VerdictKind) -> None:
    found, root = case(name)
    assert found.verdict.kind is kind
    assert not [line for line in result_lines(found) if "not proven" in line or "to try it" in line]
    behind = [
        line for line in result_lines(found) if "nothing is ahead of the bare command" in line
    ]
    assert len(behind) == (kind is VerdictKind.INCONCLUSIVE)
    assert not [one for one in root.all() if one.attributes.get("id") == "promising"]


def test_one_launch_makes_a_page_that_claims_nothing(golden: Golden) -> None:
    found, root = case("one launch")
    assert found.to_plain()["interval"] is None
    assert "no final" in root.by_id("warnings").words.lower()
    golden(root.by_id("decision").words, root.by_id("configurations").words)
    assert len(list(root.all("figure"))) == 1


def test_failures_come_with_the_end_of_standard_error(golden: Golden) -> None:
    found, root = case("some fail")
    rows = found.failures
    assert [one.launches[0].outcome for one in rows] == [Outcome.CRASHED]
    section = root.by_id("failures")
    golden(section.words)
    assert [one.text for one in section.all("pre")] == ["it cannot"]
    assert len(list(section.all("li"))) == len({one.configuration for one in rows[0].launches})
    assert all("allocator=tcmalloc" in one.words for one in section.all("li"))
    crossed = [kinds for kinds, _ in marks_of(root.by_id("chart-history")) if "failed" in kinds]
    failures = [
        one for one in found.launches if one.value is None and one.outcome is not Outcome.CUT
    ]
    assert len(crossed) == len(failures) > 0


def test_two_goals_have_a_front() -> None:
    _, root = case("two goals")
    section = root.by_id("front")
    assert "items/s" in section.words
    assert "accuracy" in section.words
    assert section.rows()
    assert len(marks_of(root.by_id("chart-front"))) > len(section.rows())


@pytest.mark.parametrize(
    ("name", "unit", "said"), [("times", " ms", "less is better"), ("wall", " s", "wall time (s)")]
)
def test_times_say_their_unit_and_better_is_above_one(name: str, unit: str, said: str) -> None:
    found, root = case(name)
    assert root.by_id("baseline-value").words.endswith(unit)
    assert said in root.by_id("history").words
    assert found.verdict.gain > 1.0
    best = [one for one in found.best_so_far if one is not None]
    assert best == sorted(best, reverse=True)
    data = root.by_id("configurations").all("data")
    medians = [float(str(one.attributes["value"])) for one in data]
    assert medians == sorted(medians)


def test_raw_samples_are_drawn_where_there_are_many() -> None:
    found, root = case("samples")
    section = root.by_id("samples")
    medians = [float(str(one.attributes["value"])) for one in section.all("data")]
    for row, median in zip(section.rows(), medians, strict=True):
        assert median == pytest.approx(1.003 * found.launches[int(row[1]) - 1].value)
    assert not [one for one in case("gain").root.all() if one.attributes.get("id") == "samples"]


def test_what_breaks_a_requirement_is_said_to() -> None:
    bound = Requirement("rss<=1MiB", "rss", at_most=True, limit=1 << 20)

    def change(launch: Launch) -> Launch:
        peak = 1 << 21 if launch.configuration.get("allocator") == "tcmalloc" else 1 << 19
        secondary = Secondary(launch.secondary.wall_s, peak_rss_bytes=peak)
        return launch._replace(requirements=(("rss<=1MiB", float(peak)),), secondary=secondary)

    objective = Objective(RATE.metric, RATE.goal, (bound,))
    found = findings(60, objective=objective, change=change)
    root = read_page(found)
    endings = [(row[2], row[-1]) for row in root.by_id("history").rows()]
    broke = [configuration for configuration, how in endings if how == "breaks a requirement"]
    assert broke
    assert all("allocator=tcmalloc" in configuration for configuration in broke)
    assert "with rss<=1MiB" in root.words
    for value, launch in zip(found.best_so_far, found.launches, strict=True):
        assert value is None or objective.is_feasible(launch) or value != launch.value


def test_space_and_machine_are_told_in_full() -> None:
    found, root = case("gain")
    rows = {row[0]: row for row in root.by_id("space").rows()}
    for parameter in SPACE.parameters:
        assert rows[parameter.name][1].split() == [str(value) for value in parameter.values]
    assert root.by_id("machine-drawing").text == str(draw_machine(found.resolver.machine))
    versions = root.by_id("versions").words
    assert "xtune" in versions
    assert "Python" in versions
    assert "the versions of the launches were not kept" in versions


def test_versions_are_those_of_the_launches(golden: Golden) -> None:
    before = Provenance("", {"program": {"torch": "1.0.1"}, "system": {}, "tuner": {}})
    after = Provenance("", {"program": {"torch": "1.0.2"}, "system": {}, "tuner": {}})
    found = case("gain").found
    records = [
        one._replace(made=before if at in (1, 2, 3, 9) else after)
        for at, one in enumerate(found.records, start=1)
    ]
    root = read_page(found._replace(records=tuple(records)))
    golden(root.by_id("versions").words, root.by_id("warnings").words)
