# SPDX-License-Identifier: Apache-2.0
"""Compare python and xlaunch in a control group with a CPU quota, as a container on a large machine has.

    python -m benchmarks.launching.limits
    python -m benchmarks.launching.limits --quotas 2 4 --rounds 5 --json limits.json

examples/serve.py is put under load by wrk or hey, which run outside the group, and examples/infer.py embeds
sentences; both in turns under python and xlaunch. Libraries that count the machine's CPUs start a thread for each,
which use up the quota in a part of a period of 100 ms; then all wait: "throttled" is the share of such periods.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.comparison import times_faster
from benchmarks.harness.measurement import (
    Result,
    at_least_2,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.programs import running, xlaunch_command
from benchmarks.harness.quota import QuotaGroup, make_group
from xtune.launches.generators import requests_of, summaries_of

SIDES = ("python", "xlaunch")
CONNECTIONS = 16
READY_S = 120.0
OUTPUT = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
INFER = re.compile(r"([0-9.]+) sentences/s")


class Measurement(NamedTuple):
    """One run of a program under a quota."""

    rate: float
    """Requests or sentences a second."""
    throttled: float
    """Share of the periods in which its group had used up the quota."""
    p50_s: float | None = None
    p99_s: float | None = None


def generator(port: int, seconds: float) -> list[str]:
    """Return the command of the load generator that is installed."""
    url = f"http://127.0.0.1:{port}/?text=rain"
    if shutil.which("wrk"):
        return ["wrk", "--latency", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", url]
    if shutil.which("hey"):
        return ["hey", "-z", f"{seconds:g}s", "-c", str(CONNECTIONS), url]
    raise SystemExit("a load generator is needed: wrk or hey (Debian has both)")


def command(side: str, group: QuotaGroup, program: Sequence[str]) -> list[str]:
    words = [sys.executable, *program]
    return group.inside([*xlaunch_command(), "--quiet", *words] if side == "xlaunch" else words)


def serve(side: str, group: QuotaGroup, seconds: float) -> Measurement:
    """Put the service under load once it answers, after a second of load that does not count."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = ["examples/serve.py", "--port", str(port), "--batch", str(CONNECTIONS)]
    with running(command(side, group, program), **OUTPUT) as process:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=READY_S).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"examples/serve.py does not answer under {side}")
            time.sleep(0.05)
        subprocess.run(generator(port, 1.0), capture_output=True, check=True)
        before = group.periods()
        done = subprocess.run(generator(port, seconds), capture_output=True, text=True, check=True)
        throttled = group.periods().share_since(before)
    requests = requests_of([done.stdout])
    if requests is None or requests.failed + requests.rejected:
        raise SystemExit(f"requests failed under {side}: {requests}")
    summaries = summaries_of([done.stdout], ["requests/sec"])
    latency = summaries["latency"]
    return Measurement(summaries["requests/sec"].value, throttled, latency.value, latency.p99)


def infer(side: str, group: QuotaGroup, seconds: float) -> Measurement:
    """Embed sentences for so many seconds."""
    before = group.periods()
    program = ["examples/infer.py", "--seconds", f"{seconds:g}"]
    with running(command(side, group, program), **OUTPUT) as process:
        printed, _ = process.communicate()
    rate = INFER.search(printed)
    if rate is None:
        raise SystemExit(f"examples/infer.py failed under {side}: {printed[-500:]}")
    return Measurement(float(rate[1]), group.periods().share_since(before))


Measured = dict[tuple[float, str], dict[str, list[Measurement]]]
"""The runs by quota and work, then by side."""

WORKS = {"serve.py, requests/s": serve, "infer.py, sentences/s": infer}


def ratio(runs: dict[str, list[Measurement]]) -> str:
    """Return xlaunch's rate over python's, with its 95 % confidence interval."""
    python, xlaunch = (
        Result(side, tuple([1.0 / run.rate for run in runs[side]])) for side in SIDES
    )
    return str(times_faster(xlaunch, python))


def rows_of(quota: float, work: str, runs: dict[str, list[Measurement]]) -> Iterator[list[str]]:
    for side in SIDES:
        rate, throttled = (
            statistics.median([getattr(run, name) for run in runs[side]])
            for name in ("rate", "throttled")
        )
        times = []
        for name in ("p50_s", "p99_s"):
            values = [it for run in runs[side] if (it := getattr(run, name)) is not None]
            times.append(f"{1000 * statistics.median(values):.0f} ms" if values else "")
        label = f"{work}, quota {quota:g}" if side == SIDES[0] else ""
        gain = ratio(runs) if side != SIDES[0] else ""
        yield [label, side, f"{rate:.1f}", gain, *times, f"{throttled:.0%}"]


def main() -> None:
    cpus = len(os.sched_getaffinity(0))
    parser = option_parser(__doc__)
    parser.add_argument("--quotas", nargs="+", type=float, metavar="CPUS",
                        default=[2.0, 4.0] if cpus > 4 else [0.25 * cpus, 0.5 * cpus],
                        help="CPU quotas (default: 2 and 4, on at most 4 CPUs a quarter and half of them)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default 10)")
    parser.add_argument("--rounds", type=at_least_2, default=3, help="default 3")
    asked = parser.parse_args()
    measured: Measured = {}
    print(machine_line())
    with until_stopped():
        for quota in asked.quotas:
            group = make_group(quota)
            if group is None:
                raise SystemExit("no control group for CPU time can be made here: run it as root")
            try:
                for number in range(asked.rounds):
                    for work, measure in WORKS.items():
                        runs = measured.setdefault((quota, work), {side: [] for side in SIDES})
                        for side in SIDES if number % 2 else SIDES[::-1]:
                            runs[side].append(measure(side, group, asked.seconds))
                            print(
                                f"quota {quota:g}, {work}, {side}: {runs[side][-1]}",
                                file=sys.stderr,
                                flush=True,
                            )
                    write(asked.json, measured)
            finally:
                group.remove()
    print(f"\nin a control group, on {cpus} CPUs; {CONNECTIONS} connections; medians\n")
    header = ["program", "started by", "rate", "ratio [95 %]", "p50", "p99", "throttled"]
    whole = {
        key: runs
        for key, runs in measured.items()
        if len(runs[SIDES[0]]) == len(runs[SIDES[1]]) > 1
    }
    print_table(
        header, [row for (quota, work), runs in whole.items() for row in rows_of(quota, work, runs)]
    )
    write(asked.json, measured)


def write(path: Path | None, measured: Measured) -> None:
    """Write every raw value so far."""
    rows = [
        {
            "quota": quota,
            "work": work,
            "runs": {s: [it._asdict() for it in r] for s, r in runs.items()},
        }
        for (quota, work), runs in measured.items()
    ]
    write_raw(path, "limits", {"cpus": len(os.sched_getaffinity(0)), "measured": rows})


if __name__ == "__main__":
    main()
