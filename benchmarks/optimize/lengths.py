# SPDX-License-Identifier: Apache-2.0
"""Compare forms of a cross-encoder on inputs of many lengths, at the second start of a program.

    python -m benchmarks.optimize.lengths
    python -m benchmarks.optimize.lengths --lengths 40 --rounds 7 --json lengths.json

A BERT of MiniLM's size with one score (random weights) reads eight pairs of texts at a time, in batches of so many lengths. The
forms are torch's under autocast to bfloat16, torch's with weights in bfloat16, and `xruntime.optimize(dtype=torch.bfloat16)`.
A process of its own, the first start, compiles. The times are of whole passes over all lengths in a second process, in which
the forms alternate. Its first pass is shown apart: in it `optimize` compares its outputs with the modules'. The
goal is 1.25 times the better of the other two.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness.measurement import (
    Case,
    goal_line,
    machine_line,
    measure_rounds,
    option_parser,
    print_table,
    quartiles,
    ratio,
    write_raw,
)

PAIRS = 8
GOAL = 1.25
OPTIMIZE, AUTOCAST, WEIGHTS = "optimize", "autocast", "bfloat16 weights"


def forms_of(lengths: int) -> tuple[dict[str, Callable[[], None]], Callable[[], str]]:
    """Return a whole pass of each form, and what says which code serves ours."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from xruntime.optimization import explain, optimize

    torch.manual_seed(0)
    config: Any = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    config.num_labels = 1
    make: Any = BertForSequenceClassification
    model = make(config).eval()
    batches = [
        {
            "input_ids": torch.randint(1000, config.vocab_size, (PAIRS, length)),
            "attention_mask": torch.ones(PAIRS, length, dtype=torch.int64),
        }
        for length in range(16, 16 + 8 * lengths, 8)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast: Any = optimize(model, sample_input=batches[0], dtype=torch.bfloat16, wait=True)
    low = make(config).eval()
    low.load_state_dict(model.state_dict())
    low.to(torch.bfloat16)

    def passes(form: Any, *, autocast: bool = False) -> Callable[[], None]:
        @torch.inference_mode()
        def one_pass() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                for batch in batches:
                    form(**batch)

        return one_pass

    def served_by() -> str:
        graph = next(step for step in explain(fast).steps if step.name == "graph")
        return f"optimize's code: {graph.outcome.value}: {graph.reason}"

    return {
        AUTOCAST: passes(model, autocast=True),
        WEIGHTS: passes(low),
        OPTIMIZE: passes(fast),
    }, served_by


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> int:
    parser = option_parser(__doc__, rounds=7)
    parser.add_argument("--lengths", type=int, default=40, help="default 40")
    parser.add_argument("--first", action="store_true", help="only compile, as the first start")
    options = parser.parse_args()
    if options.first:
        forms_of(options.lengths)[0][OPTIMIZE]()
        return 0
    print(machine_line(), flush=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.optimize.lengths",
        "--first",
        "--lengths",
        str(options.lengths),
    ]
    began = time.perf_counter()
    subprocess.run(command, check=True)
    print(f"first start: {time.perf_counter() - began:.0f} s", flush=True)
    forms, served_by = forms_of(options.lengths)
    first_passes_s = {name: timed(one_pass) for name, one_pass in forms.items()}
    cases = [Case(name, partial(timed, one_pass)) for name, one_pass in forms.items()]
    results = {result.name: result for result in measure_rounds(cases, options.rounds)}
    rows = []
    for name, result in results.items():
        times_ours = ratio(result, results[OPTIMIZE])
        rows.append(
            [
                name,
                f"{first_passes_s[name]:.2f}",
                f"{quartiles(result.seconds).median:.3f}",
                f"{times_ours.median:.2f} [{times_ours.low:.2f}, {times_ours.high:.2f}]",
            ]
        )
    print(served_by())
    print_table(["form", "first pass s", "pass s", "its time over optimize's [quartiles]"], rows)
    better = min((AUTOCAST, WEIGHTS), key=lambda name: quartiles(results[name].seconds).median)
    share = ratio(results[OPTIMIZE], results[better]).median
    print(goal_line(f"optimize, beside {better}", share, 1 / GOAL, "of its time"))
    write_raw(
        options.json,
        "optimize-lengths",
        {name: list(result.seconds) for name, result in results.items()},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
