# SPDX-License-Identifier: Apache-2.0
"""What is printed at the end of a search, for each way in which it may end."""

from __future__ import annotations

import math

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
MEDIAN = "  n=4: median 402 items/s (2 launches)"
FAILED = (
    launch(BARE, 100.0),
    launch(TWO, None),
    launch(FOUR, None, outcome=Outcome.OUT_OF_MEMORY),
    launch(TWO, None, stderr_tail="n is too large\nxlaunch: SIGTERM sent to 1 instance\n"),
    launch(TWO, None, outcome=Outcome.CUT),
)
DETAILS = "  4 launches, 8.0 s in all; details: xtune report rates"


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


TEXTS = [
    (
        concluded(GAIN),
        "gain: 3.98 times as good as the bare command",
        "  95 % confidence interval: 3.90 to 4.06 (6 pairs)",
        "  best: n=4",
        "  median: 402 items/s (2 launches); bare command: 101 items/s (2 launches)",
        MEDIAN,
        "  run it: xlaunch echo 4",
        DETAILS,
    ),
    (  # What is behind is neither promising nor to be gone on with.
        concluded(NO_GAIN),
        "no gain: keep the bare command",
        "  n=4 gains nothing",
        MEDIAN,
        "  run it: echo 1",
        DETAILS,
    ),
    (
        concluded(OPEN, resolution=NOISE),
        "inconclusive: neither a gain nor its absence is established",
        "  6 pairs are too few",
        "  most promising, but not proven: n=4; to try it: xlaunch echo 4",
        "  this budget detects gains above 4.7 to 10 % (noise: 3.1 % from launch to launch)",
        "  to continue: xtune resume rates",
        MEDIAN,
        "  run it: echo 1",
        DETAILS,
    ),
    (
        concluded(
            EARLY,
            FAILED,
            end_reason=EndReason.INTERRUPTED,
            earlier="an earlier search found a gain",
        ),
        "inconclusive: neither a gain nor its absence is established",
        "  interrupted before the final",
        "  to continue: xtune resume rates",
        "  an earlier search found a gain",
        "  failed launches: 2 crashed, 1 out of memory (xtune export has their standard error)",
        "  the last failure: crashed: n is too large",
        "  run it: echo 1",
        "  5 launches, 10 s in all; details: xtune report rates",
    ),
]


@pytest.mark.parametrize("case", TEXTS, ids=["gain", "no gain", "inconclusive", "failures"])
def test_the_whole_text(case: tuple[SearchResult, *tuple[str, ...]]) -> None:
    found, *lines = case
    assert list(result_lines(found)) == lines


def test_the_highest_loads_are_those_of_the_winner_and_the_bare_command(golden: Golden) -> None:
    made = [
        launch(one, 100.0, metrics=(("load c", load),))
        for one, load in ((BARE, 8.0), (FOUR, 30.0), (BARE, 9.0), (FOUR, 32.0), (BARE, 10.0))
    ]
    gain = Verdict(VerdictKind.GAIN, FOUR, FOUR, interval(1.5, 1.2, 1.8), "")
    said = "  highest load c within the requirements: 31; bare command: 9"
    assert said in result_lines(concluded(gain, made))
    alone = result_lines(concluded(undecided(BARE, "x"), made))
    golden(alone)


def test_a_better_median_that_the_final_did_not_compare_is_named(golden: Golden) -> None:
    lucky = (*LAUNCHES, launch(TWO, 500.0))
    golden(result_lines(concluded(GAIN, lucky)))
    assert not any("not compared" in line for line in result_lines(concluded(GAIN)))


def test_the_best_finalist_is_named_where_another_is_preferred() -> None:
    rows = [
        FinalistResults(one, 1, (1.0,), interval=interval(4.0, 3.9, 4.1), is_gain=True)
        for one in (TWO, FOUR)
    ]
    told = list(result_lines(concluded(GAIN._replace(finalists=tuple(rows)))))
    assert any(line.startswith("  preferred to n=2, which is not clearly better") for line in told)


def test_a_preset_and_a_storage_are_part_of_the_commands(golden: Golden) -> None:
    found = concluded(GAIN, preset="best.toml", storage="my studies.db")
    assert list(result_lines(found))[-3:] == [
        "  run it: xlaunch --preset best.toml echo 4",
        "  preset: best.toml",
        "  4 launches, 8.0 s in all; details: xtune report --storage 'my studies.db' rates",
    ]
    golden(resume_command(found))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            MoreBudget(blocks=6, launches=12, seconds=130.0),
            "  about 12 launches more (2 min 10 s) in its final should settle it (90 % power):"
            " xtune resume --budget '12 launches' rates",
        ),
        (
            MoreBudget(blocks=1, launches=1, seconds=3.0),
            "  about 1 launch more (3.0 s) in its final should settle it (90 % power):"
            " xtune resume --budget '2 launches' rates",
        ),
        (
            MoreBudget(blocks=447, launches=894, seconds=3600.0),
            "  a difference this small takes about 894 launches more: raise --min-effect or make"
            " each launch longer; to continue all the same: xtune resume rates",
        ),
    ],
)
def test_inconclusive_with_what_should_settle_it(more: MoreBudget, said: str) -> None:
    assert said in result_lines(concluded(OPEN._replace(more=more)))


@pytest.mark.parametrize(
    ("value", "ratio", "said"),
    [
        (
            *(400.0, 4.0),
            "most promising, but not proven: n=4: 400 items/s, 4.00 times the bare command;"
            " to try it: xlaunch echo 4",
        ),
        (*(400.0, None), "the best so far is n=4: 400 items/s; the noise is not known yet"),
        (
            *(103.0, 1.03),
            "nothing is ahead of the bare command by more than the noise; the best is n=4:"
            " 103 items/s, 1.030 times the bare command",
        ),
        (
            *(99.0, 0.99),
            "nothing is ahead of the bare command so far; the best is n=4: 99 items/s, 0.990 times"
            " the bare command",
        ),
    ],
)
def test_without_a_final_the_favourite_is_named(
    value: float, ratio: float | None, said: str
) -> None:
    favourite = Favourite(FOUR, value, ratio)
    lines = list(result_lines(concluded(EARLY, favourite=favourite, resolution=NOISE)))
    assert lines[1:3] == ["  interrupted before the final", f"  {said}"]
    assert (
        len([line for line in result_lines(concluded(EARLY)) if "n=4" in line]) == 1
    )  # its median


def test_a_leader_within_the_noise_is_not_promising(golden: Golden) -> None:
    near = OPEN._replace(interval=interval(1.03, 0.98, 1.08)._replace(error=0.02))
    said = "  nothing is ahead of the bare command by more than the noise; the best is n=4"
    assert said in result_lines(concluded(near))
    unknown = concluded(EARLY, favourite=Favourite(FOUR, 400.0, 4.0))
    golden(result_lines(unknown))


@pytest.mark.parametrize(
    ("seen", "gain", "said"),
    [
        (
            interval(1.2, 0.0, math.inf)._replace(error=math.inf, pairs=1),
            "1.20",
            "1 pair: too few for a confidence interval",
        ),
        # Bounds keep the digits that tell them from 1.
        (
            interval(1.0436, 1.0004, 1.0886),
            "1.0436",
            "95 % confidence interval: 1.0004 to 1.0886 (6 pairs)",
        ),
    ],
)
def test_the_interval_of_a_gain(seen: RatioInterval, gain: str, said: str) -> None:
    assert list(result_lines(concluded(GAIN._replace(interval=seen))))[:2] == [
        f"gain: {gain} times as good as the bare command",
        f"  {said}",
    ]


def test_broken_requirements_are_counted_and_marked(golden: Golden) -> None:
    bound = parse_requirement("rss<=1MiB")
    launches = tuple(
        one._replace(requirements=((bound.text, float(size)),))
        for one, size in zip(LAUNCHES, (1, 1 << 21, 1, 1 << 22), strict=True)
    )
    objective = RATE._replace(requirements=(bound,))
    lines = list(result_lines(concluded(NO_GAIN, launches, objective)))
    golden(lines)


def test_warnings_come_with_the_result() -> None:
    busy = "CPU 0 is busy with other work (80%): make (PID 42)"
    launches = (*LAUNCHES[:3], LAUNCHES[3]._replace(shared_cpus=(busy,)))
    told = f"1 launch of 4 (4) shared its CPUs with other work; the last: {busy}"
    assert list(result_lines(concluded(NO_GAIN, launches)))[-3] == f"  warning: {told}"


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
