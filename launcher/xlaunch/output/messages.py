# SPDX-License-Identifier: Apache-2.0
"""The launcher's own lines on standard error, between the output of instances."""

from __future__ import annotations

from collections.abc import Iterable

from xlaunch.output.logs import last_lines
from xlaunch.output.relay import Relay


class Messages:
    """Prints lines of the launcher, and keeps the warnings of a run for its report."""

    def __init__(self, relay: Relay, warnings: Iterable[str], *, quiet: bool) -> None:
        """`warnings`: those that were printed before the start. `quiet`: print no further ones."""
        self._relay = relay
        self.quiet = quiet
        self.warnings = list(warnings)

    def say(self, text: str) -> None:
        """Print a line on standard error, never inside another line."""
        self.say_block(f"xlaunch: {text}")

    def say_block(self, text: str) -> None:
        """Print lines on standard error that no other output separates."""
        self._relay.say(text)

    def warn(self, text: str | None) -> None:
        """Add a warning, if there is one, to the report, and print it, once."""
        if text is not None and text not in self.warnings:
            self.warnings.append(text)
            if not self.quiet:
                self.say(f"warning: {text}")

    def show_end_of(self, path: str) -> None:
        """Show the end of a log file."""
        lines = last_lines(path)
        what = f"xlaunch: the end of {path}:" if lines else f"xlaunch: {path} is empty"
        self.say_block("\n".join([what, *[f"  {line}" for line in lines]]))

    def report_lost_output(self) -> bool:
        """Print why output was lost; return whether some was."""
        self.warnings += self._relay.lost_logs  # printed when they were lost
        problem = self._relay.output_problem
        if problem is not None:
            text = f"standard output cannot be written: {problem}"
            self.warnings.append(text)
            self.say(f"error: {text}")
        return problem is not None or bool(self._relay.lost_logs)
