# SPDX-License-Identifier: Apache-2.0
"""Options that exclude each other: one table for the command line, presets and the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.errors import UsageError
from xlaunch.planning.request import MAX


class Contradiction(NamedTuple):
    """Two options, by their names in Python, that cannot both be set."""

    one: str
    other: str
    reason: str = ""
    value: object = None
    """The value of both that is a contradiction; None: any two values are."""

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Whether `values`, by option, set both."""
        pair = values.get(self.one), values.get(self.other)
        if self.value is not None:
            return pair == (self.value, self.value)
        return all(value is not None and value is not False for value in pair)

    def __str__(self) -> str:
        one, other = (f"--{name.replace('_', '-')}" for name in (self.one, self.other))
        if self.value is not None:
            one, other = f"{one} max", f"{other} max"
        reason = f": {self.reason}" if self.reason else ""
        return f"{one} contradicts {other}{reason}; drop one"


CONTRADICTIONS = (
    Contradiction("mode", "instances", "a mode fixes the layout"),
    Contradiction("mode", "ncores", "a mode fixes the layout"),
    Contradiction("mode", "gpus_per_instance", "a mode fixes the layout"),
    Contradiction("instances", "ncores", "only one of them can be max", value=MAX),
    Contradiction("module", "no_python", "a module needs Python"),
    Contradiction("cache_dir", "no_cache"),
    Contradiction("cache", "no_cache"),
    Contradiction("pty", "log_dir", "a log file is not a terminal"),
    Contradiction("sysroot", "synthetic", "each names a machine"),
    Contradiction("quiet", "verbose"),
    Contradiction("quiet", "explain"),
)


def find_contradiction(values: Mapping[str, Any], option: str = "") -> Contradiction | None:
    """The first contradiction among `values`; with `option`, only one that it takes part in."""
    for rule in CONTRADICTIONS:
        if option in ("", rule.one, rule.other) and rule.applies(values):
            return rule
    return None


def refuse_contradictions(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` if two of the options contradict each other."""
    found = find_contradiction(values)
    if found is not None:
        raise UsageError(str(found))
