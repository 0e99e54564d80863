# SPDX-License-Identifier: Apache-2.0
"""Compare streams in one process with processes of the same split and with one plain process.

    python -m benchmarks.streams --json streams.json
    python -m benchmarks.streams --work resnet50 --dtype bfloat16 --split 64x1 --form compiled
    python -m benchmarks.streams --work layers --dtype float32 --split 1x1 --split 2x1 --form eager

ResNet-50 and BERT-base (random weights), one item a request; `layers`, many small operators, shows the
cost of the GIL for eager modules. `dlrm` and `dlrm_torch` compare the operators of xruntime.nn with torch's
in compiled code; the former are called through Python, unless `python -m xruntime kernels --build` was run.
`16x4` is 16 streams of 4 cores, or 16 processes; `plain` is one python process, eager, on batches of 64. All
but `plain` run under xlaunch. Models are compiled in advance, in parallel; then several launches of all
cases of a model are alive and work in turns (turns.py). Goals for 64 CPUs: compiled streams of one core at
least 2 times the best processes, and 7 times (ResNet-50 bf16) and 3 times (BERT bf16) `plain`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import machine_line, number_cell, print_table
from benchmarks.harness.programs import LAUNCHER, ROOT, environment
from benchmarks.harness.turns import (
    DIRECTORY,
    WORKLOADS,
    Contender,
    ContenderResults,
    measure_rows,
    times,
    turn_parser,
)

PYTHON = sys.executable
FORMS = ("compiled", "package", "script", "eager")
PLAIN = "plain"
PROCESSES = "processes"
BATCH = 64

TIMES_PROCESSES = 2.0
TIMES_PLAIN = {"resnet50 bfloat16": 7.0, "bert bfloat16": 3.0}
"""Goals of compiled streams of one core."""


class Split(NamedTuple):
    """A number of streams or processes, and the cores of each. **Ex.:** ``16x4``."""

    count: int
    cores: int

    def __str__(self) -> str:
        return f"{self.count}x{self.cores}"


class Subject(NamedTuple):
    """A model and its precision. **Ex.:** ``resnet50 bfloat16``."""

    work: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.work} {self.dtype}"


def streams_command(
    subject: Subject, split: Split, form: str, packages: Path, directory: str
) -> list[str]:
    return [
        *(
            *LAUNCHER,
            "-m",
            "benchmarks.streams.serving",
            directory,
            subject.work,
            "--dtype",
            subject.dtype,
        ),
        *("--streams", str(split.count), "--threads", str(split.cores)),
        *("--form", form, "--packages", str(packages)),
    ]


def prepare(subjects: list[Subject], splits: list[Split], forms: list[str], packages: Path) -> None:
    """Compile all cases in parallel, since compiling is mostly single-threaded."""
    compiled = [form for form in forms if form in ("compiled", "package")]
    running = {
        (subject, split, form): subprocess.Popen(
            # Under the launcher, which sets the same cache directories as in the measurement.
            [*streams_command(subject, split, form, packages, "-"), "--prepare"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            text=True,
        )
        for subject, split, form in itertools.product(subjects, splits, compiled)
    }
    for (subject, split, form), process in running.items():
        errors = process.communicate()[1]
        if process.returncode:
            print(f"{subject} {split} {form} cannot be prepared: {errors[-500:]}", file=sys.stderr)


def contenders(
    subject: Subject, splits: list[Split], forms: list[str], packages: Path, *, batches: bool
) -> dict[str, Contender]:
    """Return all contenders of a subject, by name."""
    script = [*WORKLOADS, subject.work, "--dtype", subject.dtype]
    cases = {PLAIN: Contender([PYTHON, *script, "--batch", str(BATCH)], BATCH)}
    for split in splits:
        options = ["--instances", str(split.count), "--ncores", str(split.cores), "--no-tag"]
        command = [*LAUNCHER, *options, *script, "--batch", "1"]
        cases[f"{split} {PROCESSES}"] = Contender(command, processes=split.count)
        for form in forms:
            command = streams_command(subject, split, form, packages, DIRECTORY)
            cases[f"{split} {form}"] = Contender(command)
            if batches:
                together = Contender([*command, "--batches"], split.count)
                cases[f"{split} {form}, batches"] = together
    return cases


def parse_split(text: str) -> Split:
    count, _, cores = text.partition("x")
    return Split(int(count), int(cores))


def main() -> int:
    parser = turn_parser(__doc__, seconds=1.0)
    parser.add_argument(
        "--work", action="append", choices=["resnet50", "bert", "dlrm", "dlrm_torch", "layers"]
    )
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"])
    parser.add_argument("--split", action="append", type=parse_split, help="default 16x4, 64x1")
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument(
        "--batches",
        action="store_true",
        help="also measure batches of one item for each stream, which are split and joined",
    )
    options = parser.parse_args()
    dtypes, works = options.dtype or ["bfloat16", "float32"], options.work or ["resnet50", "bert"]
    subjects = [Subject(work, dtype) for dtype, work in itertools.product(dtypes, works)]
    splits, forms = options.split or [Split(64, 1), Split(16, 4)], options.form or list(FORMS)
    print(machine_line())
    with tempfile.TemporaryDirectory() as directory:
        packages = Path(directory)

        def rows() -> Iterator[tuple[str, dict[str, Contender]]]:
            prepare(subjects, splits, forms, packages)
            for subject in subjects:
                cases = contenders(subject, splits, forms, packages, batches=options.batches)
                yield str(subject), cases

        measured = measure_rows(rows(), options, "streams")
    for title, row in measured.items():
        print(f"\n{title}\n")
        plain, processes = row[PLAIN], _best_processes(row)
        header = ["what", "items/s", "times plain [95 %]", "times the best processes"]
        print_table(
            [*header, "p50 ms", "p99 ms", "peak MiB"],
            [_row(name, one, plain, processes) for name, one in row.items()],
        )
        for line in _goal_lines(title, row, splits):
            print(line)
    return 0


def _best_processes(row: Mapping[str, ContenderResults]) -> ContenderResults:
    """Return the fastest processes of all splits."""
    by_processes = [one for name, one in row.items() if name.endswith(f" {PROCESSES}")]
    return max(by_processes, key=lambda one: one.rate() or 0.0)


def _row(
    name: str, measured: ContenderResults, plain: ContenderResults, processes: ContenderResults
) -> list[str]:
    ratios = [None if measured is base else times(measured, base) for base in (plain, processes)]
    shown_ratios = ["-" if ratio is None else str(ratio) for ratio in ratios]
    peak, _ = measured.memory_mib() or (None, None)
    shown = [number_cell(number) for number in (*measured.percentiles_ms(), peak)]
    return [name, number_cell(measured.rate()), *shown_ratios, *shown]


def _goal_lines(
    title: str, row: Mapping[str, ContenderResults], splits: list[Split]
) -> Iterator[str]:
    """Judge the largest number of compiled streams of one core, if there is one."""
    split = max((split for split in splits if split.cores == 1), default=None)
    streams = None if split is None else row.get(f"{split} compiled")
    if streams is None:
        return
    bases = [("the best processes", _best_processes(row), TIMES_PROCESSES)]
    if title in TIMES_PLAIN:
        bases.append((PLAIN, row[PLAIN], TIMES_PLAIN[title]))
    for name, base, least in bases:
        ratio = times(streams, base)
        if ratio is not None:
            verdict = ratio.verdict(least)
            yield f"goal {verdict}: {title}: {split} compiled is {ratio} times {name}, at least {least:g}"


if __name__ == "__main__":
    sys.exit(main())
