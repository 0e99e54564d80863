# SPDX-License-Identifier: Apache-2.0
"""What a page warns of: drift, hosts that differ, search and final that disagree, noise, an early end."""

from __future__ import annotations

from collections.abc import Callable

from tests.golden import Golden
from tests.tuner.show.cases import case
from tests.tuner.show.pages import findings, read_page

from xtune.launches.launch import Launch, Steadiness
from xtune.search.events import EndReason
from xtune.search.records import Stage
from xtune.show.results import SearchResult
from xtune.show.warnings import warnings_of
from xtune.space.parameters import BARE


def abouts(found: SearchResult) -> list[str]:
    return [one.about for one in warnings_of(found)]


def counting(change: Callable[[int, float], float]) -> Callable[[Launch], Launch]:
    """Changes each value by how many launches there were before."""
    made = [0]

    def changed(launch: Launch) -> Launch:
        made[0] += 1
        if launch.value is None:
            return launch
        return launch._replace(value=change(made[0], launch.value))

    return changed


def test_a_calm_study_warns_of_nothing(golden: Golden) -> None:
    found = findings(50, noise=0.003)
    assert abouts(found) == []
    golden(read_page(found).by_id("warnings").words)


def test_a_search_that_was_luckier_than_the_final(golden: Golden) -> None:
    found = findings(60, noise=0.002)
    winner = found.verdict.best
    assert winner != BARE
    records = tuple(
        [
            record._replace(launch=record.launch._replace(value=1.5 * record.launch.value))
            if record.step.stage is not Stage.FINAL
            and record.step.configuration == winner
            and record.launch is not None
            and record.launch.value is not None
            else record
            for record in found.records
        ]
    )
    lucky = found._replace(records=records)
    (told,) = [one.text for one in warnings_of(lucky) if "before the final" in one.text]
    golden(told)
    assert not [one for one in warnings_of(found) if "before the final" in one.text]


def test_launches_that_never_settle() -> None:
    found = findings(40, change=lambda launch: launch._replace(steadiness=Steadiness.NOT_STEADY))
    told = [one.text for one in warnings_of(found) if one.about == "steadiness"]
    assert told[0].startswith("the bare command: no steady state in ")


def test_noise_is_told_with_its_remedy() -> None:
    found = findings(40, speed=lambda _: 0.0, noise=0.2)
    assert any("stop other programs" in one.text for one in warnings_of(found))


def test_a_search_that_ended_early() -> None:
    found = case("no final").found
    assert abouts(found) == ["no final"]
    assert "ending" in abouts(found._replace(end_reason=EndReason.INTERRUPTED))
    assert "ending" in abouts(found._replace(end_reason=EndReason.STORAGE))


def test_values_of_which_there_is_no_ratio_are_no_trouble() -> None:
    found = findings(40, change=counting(lambda at, value: 0.0 if at in (3, 6) else value))
    assert [launch.value for launch in found.launches].count(0.0) == 2
    root = read_page(found)
    assert len(root.by_id("history").rows()) == len(found.records)
