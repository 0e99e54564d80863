#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare models that `xruntime.optimize` returns with stock torch, eager and compiled, in one run.

    python -m benchmarks.optimize --json optimize.json
    python -m benchmarks.optimize --work resnet50 --dtype bfloat16 --mode realtime --json optimize.json
    python -m benchmarks.optimize --work timm:convnext_tiny --dtype bfloat16 --mode offline
    python -m benchmarks.optimize --work minilm --mode realtime --form eager --form optimize --launches 2

Modes: `offline` is one process on all cores with large batches; `realtime` is as many processes of 4
cores (fewer where the machine has fewer) as fit, batch 1, whose rates are added. xlaunch starts every form
alike, so the ratios are the models'. A cell is a work, a dtype and a mode: its forms are alive together
and work in turns (turns.py). Cells that the JSON file has already, measured with the same settings, are
not measured again. The preparation includes compiling, with a compile cache that may be warm, and one call.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.measurement import machine_line, print_table, until_stopped, write_raw
from benchmarks.harness.turns import (
    DIRECTORY,
    LAUNCHER,
    Contender,
    ContenderResults,
    rate_cell,
    take_turns,
    turn_parser,
)
from benchmarks.optimize.works import DTYPES, FORMS, WORKS, work_name

SCRIPT = ("-m", "benchmarks.optimize.works")
MODES = ("offline", "realtime")
REALTIME_CORES = 4
BASE = "eager"
DLRM_FACTOR = 32


def contenders(
    work: str, dtype: str, mode: str, forms: list[str], batch: int, notes: Path
) -> dict[str, Contender]:
    """Return the forms of a cell, all launched the same way."""
    cpus = len(os.sched_getaffinity(0))
    cores = min(REALTIME_CORES, cpus)
    processes = 1 if mode == "offline" else cpus // cores
    layout = ["--instances", str(processes), "--ncores", str(cores), "--no-tag"]
    offline = batch * DLRM_FACTOR if work.startswith("dlrm") else batch
    items = offline if mode == "offline" else 1
    found = {}
    for form in forms:
        script = [*SCRIPT, DIRECTORY, str(notes), work, "--form", form, "--dtype", dtype]
        command = [*LAUNCHER, *([] if mode == "offline" else layout), *script]
        found[form] = Contender([*command, "--batch", str(items)], items, processes)
    return found


def notes_of(directory: Path) -> dict[str, dict[str, Any]]:
    """Return each form's median seconds of preparation, and its explanation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        note = json.loads(path.read_text())
        found.setdefault(note["form"], []).append(note)
    return {
        form: {
            "prepare_s": statistics.median(note["prepare_s"] for note in notes),
            "text": notes[0]["text"],
        }
        for form, notes in found.items()
    }


def row(
    name: str, form: str, measured: ContenderResults, base: ContenderResults, note: dict[str, Any]
) -> list[str]:
    """Format one form of a cell."""
    memory = measured.memory_mib()
    p50, _ = measured.percentiles_ms()
    return [
        name,
        form,
        rate_cell(measured, base),
        "-" if p50 is None else f"{p50:.2f}",
        "-" if not note else f"{note['prepare_s']:.1f}",
        "-" if memory is None else f"{memory[0]:.0f}",
    ]


def main() -> int:
    parser = turn_parser(__doc__, seconds=1.0)
    parser.add_argument(
        "--work",
        action="append",
        type=work_name,
        metavar="WORK",
        help=f"{', '.join(WORKS)} (default: all of these), or LIBRARY:MODEL",
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: both")
    parser.add_argument("--mode", action="append", choices=MODES, help="default: both")
    parser.add_argument("--form", action="append", choices=FORMS, help="default: all")
    parser.add_argument(
        "--batch",
        type=int,
        default=64,
        help=f"of offline; default 64; DLRM takes {DLRM_FACTOR} times it",
    )
    options = parser.parse_args()
    forms = options.form or list(FORMS)
    if BASE not in forms:
        parser.error(f"--form {BASE} is what the others are compared with: add it")
    settings = {
        "machine": machine_line(),
        "forms": forms,
        "batch": options.batch,
        "launches": options.launches,
        "turns": options.turns,
        "seconds": options.seconds,
    }
    cells = read_cells(options.json)
    print(machine_line())
    with until_stopped():
        for name, (work, dtype, mode) in asked_cells(options):
            if cells.get(name, {}).get("settings") == settings:
                print(f"{name}: already in {options.json}", file=sys.stderr)
                continue
            with tempfile.TemporaryDirectory() as notes:
                cases = contenders(work, dtype, mode, forms, options.batch, Path(notes))
                turns = take_turns(
                    cases,
                    launches=options.launches,
                    turns=options.turns,
                    seconds=options.seconds,
                    title=name,
                )
                *_, measured = turns
                prepared = notes_of(Path(notes))
            base = measured[BASE]
            cells[name] = {
                "settings": settings,
                "notes": prepared,
                "raw": {form: one.plain() for form, one in measured.items()},
                "rows": [
                    row(name, form, one, base, prepared.get(form, {}))
                    for form, one in measured.items()
                ],
            }
            # Only whole cells are kept, so that a cell that was stopped is measured again.
            write_raw(options.json, "optimize", {"cells": cells})
    print_table(
        [
            *("work, dtype, mode", "form", f"items/s (times {BASE} [95 %])", "median step, ms"),
            *("preparation, s", "peak memory, MiB"),
        ],
        [line for name, _ in asked_cells(options) for line in cells.get(name, {}).get("rows", [])],
    )
    return 0


def asked_cells(options: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name and the parts of each cell."""
    for parts in itertools.product(
        options.work or WORKS, options.dtype or DTYPES, options.mode or MODES
    ):
        yield " ".join(parts), parts


def read_cells(path: Path | None) -> dict[str, Any]:
    """Return the cells of an earlier run."""
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())["cells"]
    return found


if __name__ == "__main__":
    sys.exit(main())
