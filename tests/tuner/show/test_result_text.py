# SPDX-License-Identifier: Apache-2.0
"""What is printed at the end of a search, for each way in which it may end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from tests.captures import read_capture
from tests.golden import Golden
from tests.tuner.show.made_up import FOUR, RATE, SPACE, TWO, launch, recorded

from xlaunch.planning import Request
from xtune.evidence.ratios import RatioInterval
from xtune.evidence.verdicts import FinalistResults, MoreBudget, Verdict, VerdictKind, undecided
from xtune.launches.launch import Goal, Launch, Objective, Outcome
from xtune.launches.requirements import parse_requirement
from xtune.search.events import EndReason, Favourite, Resolution
from xtune.search.study import Subject
from xtune.show.result_text import result_lines, resume_command
from xtune.show.results import SearchResult
from xtune.space.identities import MachineIdentity, ProgramIdentity
from xtune.space.parameters import BARE, Configuration
from xtune.space.resolution import Resolver

PROGRAM = ("echo", "{n}")
PATH = {"PATH": "/usr/bin:/bin"}
RESOLVER = Resolver(SPACE, Request.of(*PROGRAM), PATH, read_capture("1-cpu"))

LAUNCHES = (launch(BARE, 100.0), launch(FOUR, 400.0), launch(BARE, 102.0), launch(FOUR, 404.0))


def interval(estimate: float, low: float, high: float) -> RatioInterval:
    return RatioInterval(estimate, low, high, mean=estimate, error=0.01, level=0.025, pairs=6)


GAIN = Verdict(VerdictKind.GAIN, FOUR, FOUR, interval(3.98, 3.9, 4.06), "it is ahead")
NO_GAIN = Verdict(VerdictKind.NO_GAIN, BARE, FOUR, interval(0.99, 0.98, 1.0), "n=4 gains nothing")
OPEN = Verdict(
    VerdictKind.INCONCLUSIVE, BARE, FOUR, interval(1.03, 0.98, 1.08), "6 pairs are too few"
)
EARLY = undecided(BARE, "interrupted before the final")
NOISE = Resolution(spread=0.031, degrees=9, gain=0.0642, low=0.0471, high=0.1042)
FAILED = (
    launch(BARE, 100.0),
    launch(TWO, None),
    launch(FOUR, None, outcome=Outcome.OUT_OF_MEMORY),
    launch(TWO, None, stderr_tail="n is too large\nxlaunch: SIGTERM sent to 1 instance\n"),
    launch(TWO, None, outcome=Outcome.CUT),
)


def concluded(
    verdict: Verdict,
    launches: tuple[Launch, ...] = LAUNCHES,
    objective: Objective = RATE,
    **more: object,
) -> SearchResult:
    program = ProgramIdentity("c0ffee", "/bin/echo", "abc", PROGRAM)
    subject = Subject(MachineIdentity((("cores", "1"),)), program, SPACE, objective)
    found = SearchResult("rates", subject, RESOLVER, verdict, None, recorded(launches))
    return found._replace(**more)  # type: ignore[arg-type]


WHOLE = (
    concluded(GAIN),
    concluded(NO_GAIN),
    concluded(OPEN, resolution=NOISE),
    concluded(
        EARLY, FAILED, end_reason=EndReason.INTERRUPTED, earlier="an earlier search found a gain"
    ),
)


def variants() -> Iterator[tuple[str, SearchResult]]:
    one_pair = interval(1.2, 0.0, math.inf)._replace(error=math.inf, pairs=1)
    yield "a gain in one pair", concluded(GAIN._replace(interval=one_pair))
    near = interval(1.0436, 1.0004, 1.0886)
    yield "bounds keep the digits that tell them from 1", concluded(GAIN._replace(interval=near))
    stored = concluded(GAIN, preset="best.toml", storage="my studies.db")
    yield "a preset and a storage", stored
    lucky = concluded(GAIN, (*LAUNCHES, launch(TWO, 500.0)))
    yield "a better median that the final did not compare", lucky
    rows = [
        FinalistResults(one, 1, (1.0,), interval=interval(4.0, 3.9, 4.1), is_gain=True)
        for one in (TWO, FOUR)
    ]
    preferred = concluded(GAIN._replace(finalists=tuple(rows)))
    yield "the best finalist where another is preferred", preferred
    loads = [
        launch(one, 100.0, metrics=(("load c", load),))
        for one, load in ((BARE, 8.0), (FOUR, 30.0), (BARE, 9.0), (FOUR, 32.0), (BARE, 10.0))
    ]
    highest = Verdict(VerdictKind.GAIN, FOUR, FOUR, interval(1.5, 1.2, 1.8), "")
    yield "the highest loads of the winner and the bare command", concluded(highest, loads)
    yield "the highest load of the bare command", concluded(undecided(BARE, "x"), loads)
    bound = parse_requirement("rss<=1MiB")
    broken = tuple(
        one._replace(requirements=((bound.text, float(size)),))
        for one, size in zip(LAUNCHES, (1, 1 << 21, 1, 1 << 22), strict=True)
    )
    objective = RATE._replace(requirements=(bound,))
    yield "broken requirements", concluded(NO_GAIN, broken, objective)
    busy = "CPU 0 is busy with other work (80%): make (PID 42)"
    warned = (*LAUNCHES[:3], LAUNCHES[3]._replace(shared_cpus=(busy,)))
    yield "a warning", concluded(NO_GAIN, warned)
    for launches, seconds in ((12, 130.0), (1, 3.0), (894, 3600.0)):
        more = MoreBudget(blocks=(launches + 1) // 2, launches=launches, seconds=seconds)
        yield f"{launches} launches more", concluded(OPEN._replace(more=more))
    within = OPEN._replace(interval=interval(1.03, 0.98, 1.08)._replace(error=0.02))
    yield "a leader within the noise", concluded(within)
    for value, ratio in ((400.0, 4.0), (400.0, None), (103.0, 1.03), (99.0, 0.99)):
        favourite = Favourite(FOUR, value, ratio)
        found = concluded(EARLY, favourite=favourite, resolution=NOISE)
        yield f"no final, and a favourite with {value} and {ratio}", found
    unknown = concluded(EARLY, favourite=Favourite(FOUR, 400.0, 4.0))
    yield "no final, and noise that is not known", unknown


def test_the_whole_text(golden: Golden) -> None:
    whole = ["\n".join(result_lines(found)) for found in WHOLE]
    golden("\n\n".join(whole))
    usual = {line for text in whole for line in text.splitlines()}
    texts: list[str] = []
    for name, found in variants():
        texts += [f"{name}:", *[line for line in result_lines(found) if line not in usual]]
    golden(texts)


def test_a_storage_is_part_of_the_command_that_goes_on(golden: Golden) -> None:
    golden(resume_command(concluded(GAIN, preset="best.toml", storage="my studies.db")))


SECOND = Objective("latency", Goal.MINIMIZE)


@pytest.mark.parametrize(
    "latencies",
    [
        {BARE: (), TWO: ()},
        {BARE: (20.0,), TWO: (30.0,)},
        {BARE: (20.0,), TWO: (9.0, 8.0)},
    ],
)
def test_without_a_front_the_reason_is_given(
    golden: Golden, latencies: dict[Configuration, tuple[float, ...]]
) -> None:
    bound = parse_requirement("latency<=10")
    launches = tuple(
        launch(one, 100.0, metrics=(("latency", value),), requirements=((bound.text, value),))
        for one, values in latencies.items()
        for value in values
    )
    objective = RATE._replace(requirements=(bound,))
    found = concluded(EARLY, launches, objective, second=SECOND)
    golden(result_lines(found))


def test_as_json() -> None:
    assert concluded(GAIN, resolution=NOISE).to_plain() == {
        "verdict": "gain",
        "gain": 3.98,
        "interval": [3.9, 4.06],
        "compared_by": "ratio",
        "best": {"n": 4},
        "baseline": {
            "command": "echo 1",
            "settings": {"n": 1},
            "metric": "items/s",
            "value": 101.0,
            "launches": 2,
        },
        "launches": 4,
        "noise": 0.031,
        "smallest_gain": 0.0642,
        "command": "xlaunch echo 4",
    }
    few = OPEN._replace(interval=interval(1.03, 0.0, math.inf))  # JSON has no infinity
    assert concluded(few).to_plain()["interval"] == [0.0, None]
    nothing = concluded(EARLY, launches=()).to_plain()
    assert (nothing["interval"], nothing["baseline"]["value"], nothing["launches"]) == (
        *(None, None),
        0,
    )
