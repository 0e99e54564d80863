# SPDX-License-Identifier: Apache-2.0
"""Time the first result of programs that compile: cold, again, after export and import, and damaged.

    python -m benchmarks.optimize.warmstart
    python -m benchmarks.optimize.warmstart --works resnet50 minilm --json warmstart.json

Each start is a launch of its own by xlaunch. `first`: with empty caches. `second`: the same again.
`imported`: from another directory into which the caches were exported and imported. `half`: with every
second file of them deleted. `plain`: python without xlaunch and with an empty cache, the peer. A bundle
whose architecture was changed must be refused. The counted runs of the C++ compiler are those that
compile; backend seconds are those of torch's counters, where it compiles. Works whose packages are not
installed are left out, `cuda` where there is no NVIDIA driver. Works for streams are compiled by
`compile_for_streams`, in a child process, so the backend seconds of a first start are not theirs.

`generate` loads a language model of 0.5 billion parameters to its first token, eager by python
alone; those with bits pack its weights, or read them from the cache. Imports come before, and those of
xruntime are printed beside; `optimize` is part of the first result.

Goals: second and imported starts spend at most a tenth of the first one's backend seconds, except with
freezing, where torch does not use one of its caches; and they run no C++ compiler. The median second
start with few bits has its first token within 1.2 times the median of `generate` in the same run.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import (
    goal_line,
    machine_line,
    option_parser,
    print_table,
    write_raw,
)
from benchmarks.harness.programs import run_checked, variables_without
from benchmarks.optimize.warmstart_works import DIRECTORY

WORKS = Path(__file__).with_name("warmstart_works.py")
PACKAGES = {
    "resnet50": "sklearn",
    "minilm": "transformers",
    "resnet50-streams": "sklearn",
    "minilm-streams": "transformers",
    "resnet50-freezing": "sklearn",
    "minilm-freezing": "transformers",
    "generate": "transformers",
    "generate-8-bits": "transformers",
    "generate-4-bits": "transformers",
    "numba": "numba",
    "jax": "jax",
}
MAX_SHARE_OF_FIRST = 0.1
MAX_TIMES_EAGER = 1.2

COMPILER = """\
#!/bin/sh
# Counts the runs that compile, not those that only preprocess or tell their version.
case " $* " in
    *" -E "* | *" --version "* | *" -v "* | *" -dump"*) ;;
    *) echo "$*" >>"$COMPILER_LOG" ;;
esac
exec {compiler} "$@"
"""


class Start(NamedTuple):
    """One start of a work."""

    work: str
    phase: str
    first_result_s: float
    backend_s: float | None
    compiler_runs: int
    imports_s: float | None = None
    """Of xruntime, before the time of the first result; None: not measured."""

    optimize_s: float | None = None
    """The call of `optimize`, within that time; None: not measured."""


class Bench:
    """A directory for the caches and files of one run of the benchmark."""

    def __init__(self, directory: Path, extra: list[str]) -> None:
        self.directory = directory
        self._extra = extra
        self._log = directory / "compiler.log"
        tools = directory / "tools"
        tools.mkdir()
        self._environment = {
            **variables_without("TORCHINDUCTOR_"),
            "COMPILER_LOG": str(self._log),
            DIRECTORY: str(directory),
        }
        for variable, name in (("CC", "gcc"), ("CXX", "g++")):
            real = shutil.which(name)
            if real is not None:
                (tools / name).write_text(COMPILER.format(compiler=real))
                (tools / name).chmod(0o755)
                self._environment[variable] = str(tools / name)

    def xlaunch(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "xlaunch", *map(str, words)]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )

    def start(self, work: str, phase: str, cache: Path | None) -> Start:
        """Launch a work with the caches in `cache`; None: by python alone, with a new directory."""
        self._log.unlink(missing_ok=True)
        report = self.directory / "report.json"
        report.unlink(missing_ok=True)
        command = [sys.executable, str(WORKS), work]
        variables = self._environment
        if cache is None:
            names = ("HOME", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "XRUNTIME_CACHE_DIR")
            variables = variables | dict.fromkeys(names, str(self.directory / "plain"))
        else:
            options = ["--cache-dir", cache, "--quiet", "--report", report, *self._extra]
            options += ["--cache", "all"] if work == "jax" else []
            command = [sys.executable, "-m", "xlaunch", *map(str, options), *command]
        done = run_checked(command, variables)
        times = json.loads(done.stdout.splitlines()[-1])
        counters = json.loads(report.read_text())["compilation"] if report.exists() else None
        runs = len(self._log.read_text().splitlines()) if self._log.exists() else 0
        seconds, backend_s = times["first_result_s"], counters and counters["backend_compile_s"]
        parts = times.get("imports_s"), times.get("optimize_s")
        return Start(work, phase, seconds, backend_s, runs, *parts)

    def ship(self, cache: Path, other: Path) -> None:
        """Export the caches, check that a bundle for other hardware is refused, and import them."""
        bundle = self.directory / "bundle.tar"
        for words, place in ((("export", bundle), cache), (("import", bundle), other)):
            done = self.xlaunch("cache", *words, "--cache-dir", place)
            if done.returncode:
                raise SystemExit(f"xlaunch cache {words[0]}: {done.stderr}")
        foreign = self.directory / "foreign.tar"
        rewrite_manifest(bundle, foreign)
        done = self.xlaunch("cache", "import", foreign, "--cache-dir", other)
        if done.returncode != 2 or "architecture" not in done.stderr:
            raise SystemExit(f"a bundle for other hardware was not refused: {done.stderr}")


def rewrite_manifest(bundle: Path, foreign: Path) -> None:
    """Copy a bundle as if it had been made on another architecture."""
    with (
        tarfile.open(bundle) as source,
        tarfile.open(foreign, "w", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in source:
            stream = source.extractfile(member)
            data = stream.read() if stream is not None else b""
            if member.name == "manifest.json":
                data = data.replace(b'"architecture": "', b'"architecture": "not_')
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))


def delete_half(cache: Path) -> None:
    """Delete every second file of the caches, in the order of their names."""
    files = sorted(path for path in cache.glob("*/*/**/*") if path.is_file())
    for path in files[::2]:
        path.unlink()


def is_here(work: str) -> bool:
    """Whether what a work needs is installed."""
    if work == "cuda":
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
        return True
    return importlib.util.find_spec(PACKAGES[work]) is not None


def measure(bench: Bench, work: str, repeats: int) -> Iterator[Start]:
    """Every start of one work; second ones, and those of `generate`, so many times."""
    cache, other, damaged = (bench.directory / f"{work}-{name}" for name in ("a", "b", "c"))
    is_eager = work == "generate"  # nothing is kept
    for _ in range(repeats if is_eager else not work.endswith("-freezing")):
        yield bench.start(work, "plain", None)
        shutil.rmtree(bench.directory / "plain", ignore_errors=True)
    if is_eager:
        return
    for phase in ("first", *["second"] * repeats):
        yield bench.start(work, phase, cache)
    shutil.copytree(cache, damaged, symlinks=True)
    delete_half(damaged)
    bench.ship(cache, other)
    yield bench.start(work, "imported", other)
    yield bench.start(work, "half", damaged)
    for directory in (cache, other, damaged):
        shutil.rmtree(directory)


def goals_of(starts: list[Start]) -> list[str]:
    """Whether the goals are met, a line each."""
    by_phase = {start.phase: start for start in starts}
    if "first" not in by_phase:
        return []
    first, lines = by_phase["first"], []
    for phase in ("second", "imported"):
        start = by_phase[phase]
        name = f"{start.work}, {phase}"
        if first.backend_s and start.backend_s is not None and "freezing" not in start.work:
            share = start.backend_s / first.backend_s
            lines.append(
                goal_line(f"{name}: backend time", share, MAX_SHARE_OF_FIRST, "of the first")
            )
        lines.append(goal_line(f"{name}: C++ compiler", start.compiler_runs, 0, "runs"))
    return lines


def eager_goal(work: str, starts: list[Start]) -> list[str]:
    """Whether the second starts of a language model come near eager ones."""

    def median(work: str, phase: str) -> float | None:
        times = [it.first_result_s for it in starts if (it.work, it.phase) == (work, phase)]
        return statistics.median(times) if times else None

    eager_s, second_s = median("generate", "plain"), median(work, "second")
    if not work.startswith("generate-") or eager_s is None or second_s is None:
        return []
    name = f"{work}, second: first token"
    return [goal_line(name, second_s / eager_s, MAX_TIMES_EAGER, "times eager's")]


def main() -> None:
    parser = option_parser(__doc__)
    names = [*PACKAGES, "cuda"]
    parser.add_argument("--works", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument(
        "--repeats", type=int, default=1, help="second starts, and those of generate"
    )
    parser.add_argument("--ncores", type=int, help="cores of each launch; default: all")
    asked = parser.parse_args()
    works = [work for work in asked.works if is_here(work)]
    for work in sorted(set(asked.works) - set(works)):
        print(f"{work} is left out: what it needs is not installed", file=sys.stderr)
    print(machine_line())
    starts: list[Start] = []
    goals: list[str] = []
    extra = [] if asked.ncores is None else ["--ncores", str(asked.ncores)]
    with tempfile.TemporaryDirectory(prefix="warmstart-") as directory:
        bench = Bench(Path(directory), extra)
        for work in works:
            for start in measure(bench, work, asked.repeats):
                print(f"{work}, {start.phase}: {start.first_result_s:.2f} s", file=sys.stderr)
                starts.append(start)
                values = {"starts": [start._asdict() for start in starts], "goals": goals}
                write_raw(asked.json, "warmstart", values)
            goals += goals_of([it for it in starts if it.work == work]) + eager_goal(work, starts)
            write_raw(asked.json, "warmstart", values)
    rows = [
        (
            f"{it.work}, {it.phase}",
            f"{it.first_result_s:.2f}",
            *(
                "-" if s is None else f"{s:.2f}"
                for s in (it.imports_s, it.optimize_s, it.backend_s)
            ),
            str(it.compiler_runs),
        )
        for it in starts
    ]
    print_table(
        ("start", "first result s", "imports s", "optimize s", "backend s", "C++ compilations"),
        rows,
    )
    print("\n".join(goals))


if __name__ == "__main__":
    main()
