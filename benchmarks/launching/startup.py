# SPDX-License-Identifier: Apache-2.0
"""Time a script that does nothing under each launcher, from the command to its end.

    python -m benchmarks.launching.startup
    python -m benchmarks.launching.startup --rounds 30 --ipex-venv ~/venvs/ipex --json startup.json

The peers are bare python, `python -m torch.backends.xeon.run_cpu` if torch is installed, and
ipexrun if a virtual environment with it is given. Goals: xlaunch takes at most 7 times as long as
bare python, and at most a thirtieth of run_cpu.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.measurement import (
    Case,
    goal_line,
    machine_line,
    measure_rounds,
    option_parser,
    print_table,
    ratio,
    time_cell,
    write_json,
)
from benchmarks.harness.programs import run_checked, variables_without, xlaunch_command

MAX_TIMES_PYTHON = 7
MIN_TIMES_FASTER_THAN_RUN_CPU = 30

BARE = "python"
XLAUNCH = "xlaunch"
SUPERVISED = "xlaunch --supervise"
RUN_CPU = "torch.backends.xeon.run_cpu"
IPEXRUN = "ipexrun"


def run_once(command: Sequence[str | Path]) -> float:
    """Run a command and return its seconds; a failure ends the benchmark."""
    start = time.perf_counter()
    # As installed: Python keeps the code of modules that it has compiled.
    run_checked(command, variables_without("PYTHONDONTWRITEBYTECODE"))
    return time.perf_counter() - start


def commands(script: str, ipex_venv: Path | None) -> dict[str, list[str]]:
    """Return each case's command; a peer that is not installed is left out with a notice."""
    commands = {
        BARE: [sys.executable, script],
        XLAUNCH: [*xlaunch_command(), script],
        SUPERVISED: [*xlaunch_command(), "--quiet", "--supervise", script],
    }
    if importlib.util.find_spec("torch"):
        commands[RUN_CPU] = [sys.executable, "-m", RUN_CPU, script]
    else:
        print(f"{RUN_CPU} is left out: torch is not installed", file=sys.stderr)
    if ipex_venv:
        commands[IPEXRUN] = [str(ipex_venv / "bin" / "ipexrun"), script]
    return commands


def main() -> None:
    parser = option_parser(__doc__, rounds=20)
    parser.add_argument("--ipex-venv", type=Path, metavar="DIR", help="also measure its ipexrun")
    arguments = parser.parse_args()
    if arguments.ipex_venv and not (arguments.ipex_venv / "bin" / "ipexrun").is_file():
        parser.error(f"--ipex-venv {arguments.ipex_venv}: it has no bin/ipexrun")

    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "nothing.py")
        script.touch()
        cases = [
            Case(name, lambda command=command: run_once(command))
            for name, command in commands(str(script), arguments.ipex_venv).items()
        ]
        results = {r.name: r for r in measure_rounds(cases, arguments.rounds)}

    print(f"{machine_line()}; {arguments.rounds} interleaved rounds; median (quartiles)\n")
    rows = []
    for result in results.values():
        times = ratio(result, results[BARE])
        shown = f"{times.median:.1f} ({times.low:.1f} to {times.high:.1f})"
        rows.append((f"`{result.name}`", time_cell(result.seconds, digits=0), shown))
    print_table(("a script that does nothing, under", "whole process", "times bare python"), rows)

    goals = [
        goal_line(
            "xlaunch beside bare python",
            ratio(results[XLAUNCH], results[BARE]).median,
            MAX_TIMES_PYTHON,
            "times",
        )
    ]
    if RUN_CPU in results:
        goals.append(
            goal_line(
                "xlaunch beside run_cpu",
                ratio(results[XLAUNCH], results[RUN_CPU]).median,
                1 / MIN_TIMES_FASTER_THAN_RUN_CPU,
                "of its time",
            )
        )
    print("", *goals, sep="\n")
    write_json(arguments.json, "startup", list(results.values()), goals)


if __name__ == "__main__":
    main()
