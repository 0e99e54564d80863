# SPDX-License-Identifier: Apache-2.0
"""Programs that benchmarks start: how they are launched, their variables, and the end of all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import find_libraries

ROOT = Path(__file__).resolve().parents[2]
"""The checkout. Programs import `benchmarks` from it."""

LAUNCHER = [sys.executable, "-m", "xlaunch", "-q"]


def xlaunch_command() -> list[str]:
    """Return the console script of this interpreter, or the module if there is no script."""
    script = Path(sys.executable).parent / "xlaunch"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "xlaunch"]


def variables_without(*prefixes: str) -> dict[str, str]:
    """Return this process's variables but for those with such names, and those of an outer launcher."""
    left_out = ("XLAUNCH_", *prefixes)
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def environment() -> dict[str, str]:
    """Return the variables of a program: without an outer launcher's, and with the checkout on the path."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return variables_without() | {"PYTHONPATH": os.pathsep.join(paths)}


def installed_library(name: str) -> str | None:
    """Return the path of an installed library that this Python can load."""
    libraries = find_libraries((name,), sys.prefix, os.environ, loads=read_program(sys.executable))
    return next((library.path for library in libraries if library.refusal is None), None)


def run_checked(
    command: Sequence[str | Path], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a failure ends the benchmark."""
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return done


def start_group(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a program in the checkout, with `environment()`, in a process group of its own."""
    defaults = {"cwd": ROOT, "env": environment(), "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, start_new_session=True, **{**defaults, **options})


def signal_group(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[str], patience_s: float = 0.0) -> None:
    """End a process group, by force after `patience_s`."""
    if patience_s:
        signal_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    signal_group(process, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`start_group` for the time of the block."""
    process = start_group(command, **options)
    try:
        yield process
    finally:
        end_group(process)
