# SPDX-License-Identifier: Apache-2.0
"""Cases that a process of another Python measures, such as one with IPEX (Intel's extension for PyTorch)."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness.measurement import Case
from benchmarks.harness.other_python_side import MIN_MEASURED_S
from benchmarks.harness.programs import ROOT

PRINT_VERSIONS = """
from importlib.metadata import version
print("IPEX", version("intel_extension_for_pytorch"), "on torch", version("torch"))
"""


def add_ipex_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ipex-python",
        type=python_with_ipex,
        metavar="PATH",
        help="a Python with IPEX 2.8, to compare with",
    )


def ipex_cases(
    options: argparse.Namespace, names: Sequence[str], module: str, *words: str
) -> list[Case]:
    """The cases of a module of benchmarks in the Python of --ipex-python; none without it."""
    if options.ipex_python is None:
        return []
    command = [options.ipex_python, "-m", f"benchmarks.{module}", str(MIN_MEASURED_S), *words]
    return cases_of(names, command)


def python_with_ipex(text: str) -> Path:
    """Return the path of a Python, and print its versions of IPEX and torch."""
    path = Path(text)
    try:
        run = subprocess.run(
            [path, "-c", PRINT_VERSIONS], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise argparse.ArgumentTypeError(f"{text}: not a Python with IPEX: {last}")
    print(run.stdout.strip())
    return path


def cases_of(names: Sequence[str], command: Sequence[str | Path]) -> list[Case]:
    """Start a process that calls other_python_side.measure_by_name; make a case of each of its names.

    It has as many threads as this process. It waits between the cases, and ends with the last of them:
    its input is closed then.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # IPEX replaces kernels of torch, with a warning
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # IPEX would start compilers that work beside the cases
    }
    process = _Process(command, environment)
    return [Case(name, partial(process.seconds_of, name)) for name in names]


class _Process:
    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        weakref.finalize(self, _end, self._process)

    def seconds_of(self, name: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} ended with exit code {self._process.wait()}")
        return float(line)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        process.communicate()
