# SPDX-License-Identifier: Apache-2.0
"""Compare models that `xruntime.optimize` returns with stock torch, eager and compiled, in one run.

    python -m benchmarks.optimize --json optimize.json
    python -m benchmarks.optimize --work resnet50 --dtype bfloat16 --mode realtime --json optimize.json
    python -m benchmarks.optimize --work timm:convnext_tiny --dtype bfloat16 --mode offline
    python -m benchmarks.optimize --work minilm --mode realtime --form eager --form optimize --launches 2

Modes: `offline` is one process on all cores with large batches; `realtime` is as many processes of 4
cores (fewer where the machine has fewer) as fit, batch 1, whose rates are added. xlaunch starts every form
alike, so the ratios are the models'. A cell is a work, a dtype and a mode: its forms are alive together
and work in turns (turns.py). The preparation includes compiling, with a compile cache that may be warm, and one call.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.measurement import machine_line, number_cell, print_table, write_raw
from benchmarks.harness.programs import LAUNCHER
from benchmarks.harness.turns import (
    DIRECTORY,
    Contender,
    ContenderResults,
    measure_rows,
    rate_cell,
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
    contenders = {}
    for form in forms:
        script = [*SCRIPT, DIRECTORY, str(notes), work, "--form", form, "--dtype", dtype]
        command = [*LAUNCHER, *([] if mode == "offline" else layout), *script]
        contenders[form] = Contender([*command, "--batch", str(items)], items, processes)
    return contenders


def notes_of(directory: Path) -> dict[str, dict[str, Any]]:
    """Return each form's median seconds of preparation, and its explanation."""
    notes_of_form: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        note = json.loads(path.read_text())
        notes_of_form.setdefault(note["form"], []).append(note)
    return {
        form: {
            "prepare_s": statistics.median(note["prepare_s"] for note in notes),
            "text": notes[0]["text"],
        }
        for form, notes in notes_of_form.items()
    }


def row(
    name: str, form: str, measured: ContenderResults, base: ContenderResults, note: dict[str, Any]
) -> list[str]:
    """Format one form of a cell."""
    peak, _ = measured.memory_mib() or (None, None)
    p50, _ = measured.percentiles_ms()
    prepared = number_cell(note.get("prepare_s"))
    return [
        name,
        form,
        rate_cell(measured, base),
        number_cell(p50, 2),
        prepared,
        number_cell(peak, 0),
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
    cells = {
        " ".join(parts): parts
        for parts in itertools.product(
            options.work or WORKS, options.dtype or DTYPES, options.mode or MODES
        )
    }
    print(machine_line())
    with tempfile.TemporaryDirectory() as directory:
        notes = {name: Path(directory, str(at)) for at, name in enumerate(cells)}
        for path in notes.values():
            path.mkdir()
        rows = (
            (name, contenders(*parts, forms, options.batch, notes[name]))
            for name, parts in cells.items()
        )
        measured = measure_rows(rows, options, "optimize")
        prepared = {name: notes_of(notes[name]) for name in measured}
    print_table(
        [
            *("work, dtype, mode", "form", f"items/s (times {BASE} [95 %])", "median step, ms"),
            *("preparation, s", "peak memory, MiB"),
        ],
        [
            row(name, form, one, forms_of_cell[BASE], prepared[name].get(form, {}))
            for name, forms_of_cell in measured.items()
            for form, one in forms_of_cell.items()
        ],
    )
    plain = {name: {form: one.plain() for form, one in it.items()} for name, it in measured.items()}
    write_raw(options.json, "optimize", {"raw": plain, "notes": prepared})
    return 0


if __name__ == "__main__":
    sys.exit(main())
