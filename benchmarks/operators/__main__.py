# SPDX-License-Identifier: Apache-2.0
"""Compare the operators of xruntime.nn with torch's modules, eager and compiled, and with IPEX's.

    python -m benchmarks.operators
    python -m benchmarks.operators --operator embedding --json ops.json
    python -m benchmarks.operators --tables 4 --rows 20_000 --no-compile    # for little memory and time
    python -m benchmarks.operators --ipex-python ~/venvs/ipex/bin/python

All cases of a comparison are measured in every round, so that a machine that is slow for a while is
slow for all. The cases of each operator are in a module of its name, with their goals.
"""

from __future__ import annotations

import sys

from benchmarks.harness.comparison import report, torch_line
from benchmarks.harness.measurement import (
    Result,
    machine_line,
    measure_rounds,
    option_parser,
    until_stopped,
    write_json,
)
from benchmarks.harness.other_python import add_ipex_option
from benchmarks.operators import embedding, interaction, vision

OPERATORS = {"embedding": embedding, "interaction": interaction, "vision": vision}
"""Modules with `comparisons(options)`, which yields comparisons."""


def main() -> int:
    parser = option_parser(__doc__, rounds=9)
    parser.add_argument("--operator", choices=OPERATORS, action="append", help="default: all")
    add_ipex_option(parser)
    parser.add_argument("--no-compile", action="store_true", help="leave out compiled peers")
    embedding.add_options(parser)
    vision.add_options(parser)
    options = parser.parse_args()
    print(f"{machine_line()}; {torch_line()}")
    all_results: list[Result] = []
    goals: list[str] = []
    with until_stopped():
        for name in options.operator or OPERATORS:
            for comparison in OPERATORS[name].comparisons(options):
                results = measure_rounds(comparison.cases, options.rounds)
                goals += report(comparison, results)
                all_results += [r._replace(name=f"{comparison.title}: {r.name}") for r in results]
    print("", *goals, sep="\n")
    write_json(options.json, "ops", all_results, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
