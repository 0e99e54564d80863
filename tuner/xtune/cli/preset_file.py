# SPDX-License-Identifier: Apache-2.0
"""The preset with a winner's settings."""

from __future__ import annotations

import os

from xlaunch.errors import UsageError
from xtune.show.results import Result
from xtune.space.parameters import BARE

SUFFIX = ".toml"
DEFAULT_STEM = "best"
MAX_NAMES = 1000


def write_preset(result: Result, wanted: str | None) -> tuple[str | None, str]:
    """Write the winner's preset; return its path, or None and the reason.

    wanted
        The user's file; None: the first free of best.toml, best-2.toml, ..., unless the preset
        would set nothing.

    Raises `UsageError` if the user's file cannot be written.
    """
    from xlaunch.files import write_output

    best = result.verdict.best
    if best == BARE:
        return None, "" if wanted is None else f"{wanted} is not written: the bare command is kept"
    path = wanted or _free_name()
    text = result.resolver.preset(best, use=path)
    if wanted is None and not any(line and line[0] != "#" for line in text.splitlines()):
        return None, ""  # only arguments of the program change
    try:
        write_output(path, text, option="--save-preset")
    except UsageError as error:
        if wanted is not None:
            raise
        return None, f"no preset is written: {error}"
    return path, ""


def _free_name() -> str:
    names = [DEFAULT_STEM, *(f"{DEFAULT_STEM}-{number}" for number in range(2, MAX_NAMES))]
    return next(f"{name}{SUFFIX}" for name in names if not os.path.lexists(f"{name}{SUFFIX}"))
