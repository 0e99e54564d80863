# SPDX-License-Identifier: Apache-2.0
"""The command `xtune`: in this version it says what it is, and that it cannot search yet."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import xtune

EXIT_USAGE = 2

HELP = f"""\
Usage: xtune [--version] [--help]

Will find the best way to run a workload on this machine. Searching is not part of version
{xtune.__version__}: choose a layout with `xlaunch --instances N --ncores K PROGRAM` and look at it
first with `xlaunch --dry-run`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer `--version` and `--help`; anything else is refused in one line, exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"xtune {xtune.__version__}")
        return 0
    if given in (["--help"], ["-h"]):
        print(HELP, end="")
        return 0
    print(
        f"xtune: searching is not part of version {xtune.__version__};"
        " run the workload with xlaunch (see xlaunch --help)",
        file=sys.stderr,
    )
    return EXIT_USAGE
