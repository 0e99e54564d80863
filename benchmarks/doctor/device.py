# SPDX-License-Identifier: Apache-2.0
"""Run `xlaunch doctor --device` on programs whose use of an NVIDIA GPU is known, and compare.

    python -m benchmarks.doctor.device                          all cases, on cuda:0
    python -m benchmarks.doctor.device --case starved --seconds 20 --json device.json

It takes a GPU, a torch built for it, and the package nvidia-ml-py. Each case is one program:
healthy, starved by its data, memory allocated and engines idle, on the CPU only, and healthy beside
another process on the same GPU. The verdict must be the expected one; the exit code is 1 if one is another.
Without `--case`, `--compare cpu,cuda` runs last.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.measurement import command_parser, machine_line, print_table

PROGRAM = """
import sys, time
import torch

case, seconds = sys.argv[1], float(sys.argv[2])
where = "cpu" if case in ("idle", "cpu", "compare-cpu") else "cuda"
if case == "idle":  # a model that was moved, and the copy that was not
    held = torch.zeros(1 << 28, device="cuda")
size = 1024 if where == "cpu" else 8192
a = torch.randn(size, size, device=where)
b = torch.randn(size, size, device=where)
end, steps, began = time.monotonic() + seconds, 0, time.monotonic()
while time.monotonic() < end:
    step = time.monotonic()
    for _ in range(4):
        a @ b
    if where == "cuda":
        torch.cuda.synchronize()
    if case == "starved":  # as decoding in the main process: three times as long as the work
        until = time.monotonic() + 3 * (time.monotonic() - step)
        while time.monotonic() < until:
            sum(range(1000))
    steps += 1
    if case.startswith("compare"):
        work = 4 * 2 * size ** 3 / 1e9
        print(f"{steps * work / (time.monotonic() - began):.1f} Gflop/s", flush=True)
"""


class DeviceCase(NamedTuple):
    """A program, and what is to be said of it."""

    name: str
    program: str
    """What PROGRAM is told."""
    verdict: str
    companion: bool = False
    """Another process uses the GPU at the same time."""


CASES = (
    DeviceCase("healthy", "healthy", "worked"),
    DeviceCase("starved", "starved", "waited"),
    DeviceCase("idle", "idle", "allocated but idle"),
    DeviceCase("cpu", "cpu", "unused"),
    DeviceCase("two", "healthy", "waited or worked", companion=True),
)


def main() -> int:
    """Run the cases and print a table."""
    parser = command_parser(__doc__)
    parser.add_argument("--case", choices=[case.name for case in CASES], action="append")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each program works")
    parser.add_argument("--json", type=Path, help="write the documents, samples included")
    options = parser.parse_args()
    wanted = [case for case in CASES if not options.case or case.name in options.case]
    print(machine_line())
    documents: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "program.py")
        program.write_text(PROGRAM)
        for case in wanted:
            with (
                companion(program, options.seconds) if case.companion else contextlib.nullcontext()
            ):
                document = doctor("--", str(program), case.program, str(options.seconds))
            documents[case.name] = document
            rows.append(row(case, document))
        if not options.case:
            words = ("--", "--metric", "Gflop/s", str(program), "compare-{device}", "5")
            documents["compare"] = doctor("--compare", "cpu,cuda", *words)
            print(json.dumps(documents["compare"]["comparison"], indent=1))
    print_table(["case", "expected", "verdict", "as expected", "text"], rows)
    if options.json:
        options.json.write_text(json.dumps(documents, indent=1) + "\n")
    return 0 if all(cells[3] == "yes" for cells in rows) else 1


def doctor(*words: str) -> dict[str, Any]:
    """The document of `xlaunch doctor --device --json`."""
    command = (sys.executable, "-m", "xlaunch", "doctor", "--device", "--json", *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def row(case: DeviceCase, document: dict[str, Any]) -> list[str]:
    """The case in the table. Its GPU is the one that it used most, or the first."""
    uses = document["devices"]
    if not uses:
        return [case.name, case.verdict, "no device", "no", document["verdict"]]
    use = max(uses, key=lambda one: one["window_s"])
    right = use["verdict"] in case.verdict.split(" or ")
    if case.companion and use["per_process"]:
        # Told apart: neither has the whole device.
        right = right and (use["others_busy"] or 0.0) > 0.1
    return [case.name, case.verdict, use["verdict"], "yes" if right else "no", use["text"]]


@contextlib.contextmanager
def companion(program: Path, seconds: float) -> Iterator[None]:
    """Another process that uses the GPU during the block."""
    words = (sys.executable, str(program), "healthy", str(3 * seconds + 60))
    with subprocess.Popen(words) as other:
        try:
            yield
        finally:
            other.terminate()


if __name__ == "__main__":
    sys.exit(main())
