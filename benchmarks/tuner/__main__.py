# SPDX-License-Identifier: Apache-2.0
"""Strategies of xtune compared on recorded spaces, and how they were recorded.

    python -m benchmarks.tuner record digits.jsonl --rounds 5 -- --metric images/s examples/train.py
    gzip digits.jsonl
    python -m benchmarks.tuner replay digits.jsonl.gz --json replay.json
    python -m benchmarks.tuner replay --synthetic usual,noisy
    python -m benchmarks.tuner aa digits.jsonl.gz

`record` launches every plan of the space that `xtune ARGUMENTS` would search, several times, and
goes on where it was when it is started again. `replay` plays xtune's own search, random search,
grids, Optuna's TPE and GP and the order of IPEX's hypertune on the launches of each file, and prints
how much of the best plan each has found after so many launches. `aa` searches spaces
whose settings do nothing, with the noise that was recorded, and counts how often a gain is claimed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

# Many small matrices: threads of the linear algebra only get in each other's way. What is recorded
# would have one as well.
if sys.argv[1:2] != ["record"]:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

from benchmarks.harness.measurement import command_parser, machine_line, print_table, write_raw
from benchmarks.tuner import replay as replaying
from benchmarks.tuner.replay import SEARCH, SLOW, STRATEGIES, XTUNE, Curve, Source, Summary
from benchmarks.tuner.synthetic import SHAPES

BUDGETS = "5,10,15,20,30,40,60"
GOAL_SHARE = 0.97
GOAL_LAUNCHES = 0.12
"""At least this share of the best with at most this share of the launches of the whole space."""

MAX_CLAIMS = 0.05
"""Of A/A searches that may claim a gain."""

BETTER_BETWEEN = (10, 60)
"""Launches between which ours is to be ahead of every other."""


def main() -> int:
    options = parse_arguments()
    return options.command(options)


def parse_arguments() -> argparse.Namespace:
    parser = command_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    replay = commands.add_parser("replay", help="compare strategies")
    replay.set_defaults(command=run_replay)
    record = commands.add_parser("record", help="launch every plan of a space")
    record.set_defaults(command=run_record)
    record.add_argument("file", type=Path, metavar="FILE", help="made, or gone on with (.jsonl)")
    record.add_argument("--name", help="of the recording (default: the file's)")
    record.add_argument("--rounds", type=int, default=5, help="launches of each plan (default 5)")
    record.add_argument(
        "--control-every", type=int, default=20, metavar="N",
        help="the bare command after so many launches, too; 0: only once a round (default 20)",
    )  # fmt: skip
    record.add_argument("--seed", type=int, default=0, help="of the order (default 0)")
    record.add_argument("arguments", nargs="+", help="after --: as xtune has them")
    aa = commands.add_parser("aa", help="count claims where nothing differs")
    aa.set_defaults(command=run_aa)
    for one in (replay, aa):
        one.add_argument("files", nargs="*", metavar="FILE", help="recordings (.jsonl, .jsonl.gz)")
        one.add_argument("--seeds", type=int, default=200, help="runs (default 200)")
        one.add_argument("--json", type=Path, metavar="FILE", help="write every raw value to FILE")
        one.add_argument(
            "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once"
        )
        one.add_argument(
            "--synthetic",
            metavar="NAMES",
            help=f"made-up spaces besides: all, or some of {','.join(s.name for s in SHAPES)}",
        )
    replay.add_argument("--budgets", default=BUDGETS, help=f"launches (default {BUDGETS})")
    replay.add_argument(
        "--strategies", default=",".join(STRATEGIES), help="some of " + ",".join(STRATEGIES)
    )
    replay.add_argument(
        "--gp-seeds", type=int, default=200, help="runs of the slow one (default 200)"
    )
    aa.add_argument("--budget", type=int, default=40, help="launches a search (default 40)")
    options = parser.parse_args()
    if options.command is run_record:
        return options
    options.files = [*options.files, *synthetic(options)]
    if not options.files:
        parser.error("name a recording, or --synthetic")
    return options


def synthetic(options: argparse.Namespace) -> list[Source]:
    """One source a shape: its spaces take turns with the seeds."""
    if options.synthetic is None:
        return []
    known = [shape.name for shape in SHAPES]
    names = known if options.synthetic == "all" else options.synthetic.split(",")
    if wrong := set(names) - set(known):
        sys.exit(f"tuner: no made-up space is called {min(wrong)}; there are {known}")
    return list(names)


def run_record(options: argparse.Namespace) -> int:
    from benchmarks.tuner.recorder import Options, record, say
    from xlaunch.errors import XLaunchError

    name = options.name or options.file.name.partition(".")[0]
    how = Options(name, options.rounds, options.control_every, options.seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        record(options.file, options.arguments, how)
    except XLaunchError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    return 0


def run_replay(options: argparse.Namespace) -> int:
    budgets = sorted({int(one) for one in options.budgets.split(",")})
    names = [name for name in STRATEGIES if name in options.strategies.split(",")]
    print(machine_line())
    raw: dict[Source, dict[str, list[Curve]]] = {}
    goals: list[str] = []
    for source in options.files:
        began = time.perf_counter()
        raw[source] = {}
        for name in names:
            seeds = range(min(options.seeds, options.gp_seeds) if name == SLOW else options.seeds)
            raw[source][name] = replaying.replay(source, name, budgets, seeds, options.jobs)
        print(f"\n{replaying.describe(source)}; {time.perf_counter() - began:.0f} s")
        print_shares(raw[source], budgets)
        goals += print_comparison(source, raw[source], budgets)
        write_raw(options.json, "tuner replay", {"goals": goals, "budgets": budgets, "curves": raw})
    if len(raw) > 1:
        print("\nmean over all")
        merged = pooled(raw)
        print_shares(merged, budgets)
        print_comparison("all", merged, budgets)
    return 0


def pooled(raw: dict[Source, dict[str, list[Curve]]]) -> dict[str, list[Curve]]:
    """The strategies that every source has, all seeds of all sources."""
    names = [name for name in STRATEGIES if all(name in by_name for by_name in raw.values())]
    return {
        name: [
            curve._replace(seed=f"{source} {curve.seed}")
            for source, by_name in raw.items()
            for curve in by_name[name]
        ]
        for name in names
    }


def print_shares(by_name: dict[str, list[Curve]], budgets: list[int]) -> None:
    """A row a strategy, a column a budget."""
    header = ["% of the best after launches", *map(str, budgets)]
    rows = [
        [f"{name} ({len(curves)} runs)", *map(share, replaying.by_budget(curves))]
        for name, curves in by_name.items()
    ]
    print_table(header, rows)


def share(summary: Summary) -> str:
    return f"{100 * summary.mean:.1f} ±{100 * summary.reach:.1f}"


def print_comparison(
    source: Source, by_name: dict[str, list[Curve]], budgets: list[int]
) -> list[str]:
    """By how much ours is ahead of each other, and what that means for the goals."""
    lines = []
    for ours in (name for name in (XTUNE, SEARCH) if name in by_name):
        others = [name for name in by_name if name not in (XTUNE, SEARCH)]
        ahead = {name: replaying.ahead(by_name[ours], by_name[name]) for name in others}
        if ahead:
            print_table(
                [f"{ours} ahead of, points", *map(str, budgets)],
                [[name, *map(share, summaries)] for name, summaries in ahead.items()],
            )
        if source != "all":
            lines.append(reach_line(source, ours, by_name[ours], budgets))
        if ahead:
            lines += comparison_lines(f"{source}: {ours}", ahead, budgets)
    print("\n".join(lines))
    return lines


def comparison_lines(name: str, ahead: dict[str, list[Summary]], budgets: list[int]) -> list[str]:
    """Where it is surely behind, and where it is not surely ahead."""
    low, high = BETTER_BETWEEN
    behind, not_ahead = [], []
    for other, summaries in ahead.items():
        for budget, summary in zip(budgets, summaries, strict=True):
            if summary.mean + summary.reach < 0:
                behind.append(f"{other} at {budget}")
            if low <= budget <= high and summary.mean - summary.reach <= 0:
                not_ahead.append(f"{other} at {budget}")
    return [
        verdict_line(name, "never surely behind another", behind),
        verdict_line(name, f"surely ahead from {low} to {high}", not_ahead),
    ]


def reach_line(source: Source, name: str, curves: list[Curve], budgets: list[int]) -> str:
    """With how few launches the goal's share of the best was reached."""
    launches = replaying.exhaustive_launches(source)
    means = [summary.mean for summary in replaying.by_budget(curves)]
    enough = [b for b, mean in zip(budgets, means, strict=True) if mean >= GOAL_SHARE]
    wanted = f"{GOAL_SHARE:.0%} of the best with {GOAL_LAUNCHES:.0%} of {launches} launches"
    if not enough:
        return f"goal MISSED: {source}: {name}: {wanted}: {max(means):.1%} with {max(budgets)}"
    met = "met" if enough[0] <= GOAL_LAUNCHES * launches else "MISSED"
    return f"goal {met}: {source}: {name}: {wanted}: with {enough[0]} ({enough[0] / launches:.1%})"


def verdict_line(name: str, goal: str, against: list[str]) -> str:
    return f"goal {'MISSED' if against else 'met'}: {name}: {goal}: {', '.join(against) or 'yes'}"


def run_aa(options: argparse.Namespace) -> int:
    print(machine_line())
    rows, raw, goals = [], {}, []
    for source in options.files:
        verdicts = replaying.replay_aa(source, options.budget, range(options.seeds), options.jobs)
        raw[source] = verdicts
        claims = verdicts.count("gain")
        low, high = replaying.binomial_interval(claims, len(verdicts))
        counts = [str(verdicts.count(kind)) for kind in ("no-gain", "inconclusive", "gain")]
        rows.append([replaying.describe(source), *counts, f"{low:.1%} to {high:.1%}"])
        met = "met" if claims <= MAX_CLAIMS * len(verdicts) else "MISSED"
        goals.append(
            f"goal {met}: {source}: a gain claimed in {claims} of {len(verdicts)} searches"
            f" where nothing differs; at most {MAX_CLAIMS:.0%}"
        )
    print_table(["nothing differs", "no-gain", "inconclusive", "gain", "rate, 95 %"], rows)
    print("\n".join(goals))
    write_raw(options.json, "tuner aa", {"goals": goals, "budget": options.budget, "verdicts": raw})
    return 0


if __name__ == "__main__":
    sys.exit(main())
