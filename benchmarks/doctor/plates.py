# SPDX-License-Identifier: Apache-2.0
"""Compare how fast the two readers of licence plates of examples/ train: before and after the repairs.

    python -m benchmarks.doctor.plates
    python -m benchmarks.doctor.plates --seconds 20 --rounds 6 --json plates.json

Each launch trains for some seconds, on the CPU, in turns; the last rate that it prints counts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.harness.comparison import Comparison, report
from benchmarks.harness.measurement import (
    Case,
    machine_line,
    measure_rounds,
    option_parser,
    write_raw,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RATE = re.compile(r", ([\d.]+) images/s$", re.MULTILINE)


def seconds_of_one_image(script: str, *words: str) -> float:
    """Train, and return the seconds of one image at the last rate that was printed."""
    command = [sys.executable, str(EXAMPLES / script), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return 1 / float(RATE.findall(done.stdout)[-1])


def main() -> None:
    parser = option_parser(__doc__, rounds=4)
    parser.add_argument("--seconds", type=int, default=10, help="of each launch; default 10")
    asked = parser.parse_args()
    print(machine_line())
    length = ("--seconds", str(asked.seconds))
    cases = [
        Case(
            "plates_before.py",
            partial(seconds_of_one_image, "plates_before.py", "--cuda", "", *length),
        ),
        Case("plates.py", partial(seconds_of_one_image, "plates.py", "--device", "cpu", *length)),
    ]
    results = measure_rounds(cases, asked.rounds)
    report(Comparison("one image of the training", "plates.py", cases), results)
    write_raw(
        asked.json, "plates", {"seconds": {result.name: result.seconds for result in results}}
    )


if __name__ == "__main__":
    main()
