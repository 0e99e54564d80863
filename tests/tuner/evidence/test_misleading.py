# SPDX-License-Identifier: Apache-2.0
"""Finals between commands whose output misleads: read as a search reads it, and never a wrong verdict."""

from __future__ import annotations

import json
import math
import shlex
import sys
from typing import NamedTuple

import numpy as np
import pytest
from tests.tiers import quick_first
from tests.tuner.cli.commands import Desk
from tests.tuner.evidence.misleading import CASES, Case, Printed

from xlaunch.metrics.collector import Collector
from xlaunch.metrics.metric_lines import parse_metric
from xlaunch.report import InstanceReport, Report
from xtune.evidence.finals import Final, Finalist, FinalPlan
from xtune.evidence.noise import disturbance_of
from xtune.evidence.verdicts import Verdict, VerdictKind
from xtune.launches.launch import Launch, Objective, Outcome, Secondary
from xtune.launches.measurements import Reader
from xtune.launches.meters import MemoryWatch
from xtune.launches.requirements import parse_requirement
from xtune.launches.services import load_of
from xtune.launches.watching import EndedRun
from xtune.space.parameters import BARE, Configuration

TUNED = Configuration({"allocator": "tcmalloc"})
SEEDS = range(10)
MIN_RIGHT = 8
"""Of 10 seeds where the effect is 10 % or more."""
BLOCKS = 12
SPREAD = 0.02
"""Standard deviation between launches."""


def run_of(printed: Printed, speed: float, metrics: tuple[str, ...]) -> Report:
    """The report of a run that prints this, read by xlaunch's collector."""
    instances = range(len(printed.instances))
    collector = Collector([parse_metric(text) for text in metrics], instances)
    clocks = dict.fromkeys(instances, 0.0)
    for index, own in enumerate(printed.instances):
        for took_s, text in printed.pieces(speed * own):
            clocks[index] += took_s
            collector.feed(index, "out", f"{text}\n".encode(), clocks[index])
    ends = {index: at + 0.002 for index, at in clocks.items()}
    _, totals = collector.sum_up(ends, None)
    return Report(
        0, "it ended", max(ends.values()), len(instances), (), (), (), totals, collector.raw(),
        lines_seen=collector.lines_seen,
    )  # fmt: skip


def launched(
    case: Case, reader: Reader, number: int, chance: np.random.Generator, *, is_bare: bool
) -> Launch:
    printed, disturbed = case.bare if is_bare else case.tuned, case.machine(number, is_bare)
    speed = printed.speed * disturbed.speed * math.exp(SPREAD * chance.standard_normal())
    launch = Launch(
        BARE if is_bare else TUNED, "", Outcome.NOT_STARTED, None, float(number),
        secondary=Secondary(10.0 / speed, waited=disturbed.waited),
    )  # fmt: skip
    if not case.is_service:
        report = run_of(printed, speed, reader.metrics)
        return reader.measured(launch, EndedRun(report, MemoryWatch()))
    spent = InstanceReport(
        0, 1, (3,), (3,), (), 0, None, 5.0, 5.0 * printed.busy, printed.busy, 1 << 20, 0, 0, 0
    )  # fmt: skip
    ended = Report(0, "it ended", 5.0, 1, (spent,), (), ())
    load = load_of(
        ["\n".join([text for _, text in printed.pieces(speed)])], [ended], spent.cpus_asked
    )
    return reader.measured_load(launch, load, EndedRun(ended, MemoryWatch()))


class Played(NamedTuple):
    """A final of the two commands."""

    verdict: Verdict
    is_in_doubt: bool
    """The report says that other programs may have made the difference."""


def played(case: Case, seed: int) -> Played:
    objective = Objective(case.metric, case.goal, tuple(map(parse_requirement, case.require)))
    reader = Reader(objective, is_service=case.is_service)
    final = Final(FinalPlan(BARE, (Finalist(TUNED, 1),), BLOCKS, seed=seed), objective)
    chance, number = np.random.default_rng(seed), 0
    while (step := final.next()) is not None and step.block < BLOCKS:
        final.record(step, launched(case, reader, number, chance, is_bare=step.candidate == 0))
        number += 1
    pairs = zip(
        *[
            [one for one in final.launches if (one.configuration == BARE) == is_bare]
            for is_bare in (True, False)
        ],
        strict=False,
    )
    return Played(final.verdict(in_full=False), bool(disturbance_of(pairs)))


def is_wrong(case: Case, verdict: Verdict, is_in_doubt: bool) -> bool:
    """A gain where there is none, or another one; no gain where there is one of 10 % or more."""
    if verdict.kind is VerdictKind.GAIN:
        assert verdict.interval is not None
        is_true = verdict.interval.low <= case.gain <= verdict.interval.high
        return not is_in_doubt and (case.gain <= 1.0 or not is_true)
    return verdict.kind is VerdictKind.NO_GAIN and case.gain >= 1.1


def is_right(case: Case, verdict: Verdict) -> bool:
    if case.gain == 0.0:
        return verdict.kind is not VerdictKind.GAIN
    return verdict.kind is (VerdictKind.GAIN if case.gain > 1.0 else VerdictKind.NO_GAIN)


@pytest.mark.parametrize("seeds", quick_first([SEEDS[:1], SEEDS]), ids=len)
@pytest.mark.parametrize("name", CASES)
def test_misleading_output_leads_to_no_wrong_verdict(name: str, seeds: range) -> None:
    case = CASES[name]
    finals = [played(case, seed) for seed in seeds]
    assert [one for one in finals if is_wrong(case, *one)] == []
    if len(seeds) == len(SEEDS) and abs(case.gain - 1.0) >= 0.1:
        assert sum(is_right(case, one.verdict) for one in finals) >= MIN_RIGHT, finals


PLAYER = """\
import json, random, sys, time
if "service" in sys.argv:
    open("served", "w").write(sys.argv[-1])
    print("ready", flush=True)
    time.sleep(1000)
which = sys.argv[1] if sys.argv[1:] else open("served").read()
for took_s, text in random.choice(json.load(open("pieces.json"))[which]):
    time.sleep(took_s)
    print(text, flush=True)
"""
"""Prints what the first or the second command of a case says; of a service, its load generator does."""


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "seconds against microseconds",
        "a loss that becomes NaN",
        "dropped connections",
        "a slow start before a higher speed",
        "a clock that is set back",
    ],
)
def test_real_searches_are_not_misled(desk: Desk, name: str) -> None:
    case = CASES[name]
    chance = np.random.default_rng(0)
    speeds = np.exp(SPREAD * chance.standard_normal(20)).tolist()
    pieces = {
        number: [
            [(took_s / 10, text) for took_s, text in printed.pieces(printed.speed * speed)]
            for speed in speeds
        ]
        for number, printed in (("1", case.bare), ("2", case.tuned))
    }
    desk.write("player.py", PLAYER)
    desk.write("pieces.json", json.dumps(pieces))
    service = ("--ready", "ready", "--measure", shlex.join([sys.executable, "player.py"]))
    done = desk.xtune(
        "--metric", case.metric, "--only-params", "--param", "n=1,2", "--budget", "16", "--json", "-q",
        *[f"--require={text}" for text in case.require], *(service if case.is_service else ()),
        "player.py", *(["service"] if case.is_service else []), "{n}",
    )  # fmt: skip
    assert done.code == 0, done.err
    verdict, interval = done.found["verdict"], done.found["interval"]
    if case.gain > 1.0:
        assert verdict == "gain"
        assert interval[0] <= case.gain <= interval[1]
    else:
        assert verdict != "gain"
