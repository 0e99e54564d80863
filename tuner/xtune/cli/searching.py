# SPDX-License-Identifier: Apache-2.0
"""Runs a prepared search, shows it and prints its verdict."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import click

from xlaunch.console import terminal_width
from xlaunch.errors import UsageError
from xlaunch.options.presets import check_preset_path, write_preset
from xlaunch.text import folded
from xtune.cli import EXIT_INTERRUPTED, say
from xtune.errors import StorageError
from xtune.preparation import SearchTask, silent
from xtune.search.events import EndReason, Observer
from xtune.searches import SearchSession, conclude, search
from xtune.show.result_text import result_lines
from xtune.show.results import SearchResult
from xtune.show.screens import RESUMED, WAITING, PlainScreen
from xtune.show.words import aim, describe_space
from xtune.space.parameters import BARE

COMMAND_LINE = re.compile(r"(run it|to try it|preset): |: xtune re(port|sume)\b")
"""What precedes the commands of a verdict."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a search: the first with the verdict so far, the second at once."""


class OutputOptions(NamedTuple):
    """How a search is shown, and where its results go."""

    save_preset: str | None
    as_json: bool
    verbose: bool
    quiet: bool
    force: bool = False
    """`save_preset` may be any file that the program does not use."""


class StartObserver(Observer):
    """Says why a search does not begin yet."""

    def waiting(self, holder: str) -> None:
        """Another search uses this host."""
        say(WAITING.format(holder=holder))

    def resumed(self) -> None:
        """A launch was ended by Ctrl-Z."""
        say(RESUMED)


REPEAT_S = 1.0
"""A signal so soon after the first is the same wish, as where a service manager and a shell both send one."""


class Signals:
    """Raises KeyboardInterrupt for the first signal of `ENDING` during a search, and for repeated ones later on."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that was received."""
        self._received_s = 0.0
        self._searching = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored, as under nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def search_ended(self) -> None:
        """From now on the first signal is too late: the verdict is about to be printed."""
        self._searching = False

    def check(self) -> None:
        """Raise KeyboardInterrupt after a signal: Python can lose an exception raised in a callback."""
        if self.number is not None:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._received_s = number, time.monotonic()
            interrupts = self._searching
        else:
            interrupts = time.monotonic() - self._received_s > REPEAT_S
        if interrupts:
            raise KeyboardInterrupt


def _announce(task: SearchTask, *, verbose: bool) -> None:
    """Print the objective and the space; with the reasons for what is left out if `verbose`."""
    say(f"objective: {aim(task.objective)}")
    for line in describe_space(task.space, task.made.left_out, verbose=verbose):
        _line(line)
    for note in task.made.notes:
        _line(f"note: {note}")


def run_search(session: SearchSession, output: OutputOptions) -> int:
    """Search and print the verdict; return the exit code."""
    if not output.quiet:
        _announce(session.task, verbose=output.verbose)
    with Signals() as signals:
        with _screen(session.task, output) as screen:
            tell = silent if output.quiet else say
            outcome = search(session, screen, say=tell, check=signals.check)
            signals.search_ended()
        result = conclude(session, outcome, say)
        try:
            path, why = write_best(result, output.save_preset, force=output.force)
        except UsageError:
            print_result(result, as_json=output.as_json)
            raise
        print_result(result._replace(preset=path), as_json=output.as_json)
        if why and not output.quiet:
            say(f"note: {why}")
    if outcome.end_reason is EndReason.STORAGE:
        say(f"error: {outcome.trouble}")
        return StorageError.exit_code
    if outcome.end_reason is EndReason.INTERRUPTED:
        return EXIT_INTERRUPTED if signals.number is None else 128 + signals.number
    return 0


def preset_path(path: str | None, *, force: bool) -> str | None:
    """The absolute path of --save-preset. Raises `UsageError` unless a preset can be written there."""
    if path is None:
        return None
    check_preset_path(path, force=force)
    return os.path.abspath(path)


FREE_NAMES = ("best.toml", *(f"best-{number}.toml" for number in range(2, 1000)))


def write_best(
    result: SearchResult, wanted: str | None, *, force: bool = False
) -> tuple[str | None, str]:
    """Write the winner's preset; return its path, or None and the reason.

    wanted
        The user's file; None: the first free of best.toml, best-2.toml, ..., unless the preset
        would set nothing.
    force
        The user's file may be another than an earlier preset, but none that the program uses.

    Raises `UsageError` if the user's file cannot be written.
    """
    best = result.verdict.best
    if best == BARE:
        return None, "" if wanted is None else f"{wanted} is not written: the bare command is kept"
    path = wanted or next(name for name in FREE_NAMES if not os.path.lexists(name))
    text = result.resolver.preset(best, use=path)
    if wanted is None and not any(line and line[0] != "#" for line in text.splitlines()):
        return None, ""  # only arguments of the program change
    try:
        write_preset(path, text, force=force, program=result.resolver.program.argv)
    except UsageError as error:
        if wanted is not None:
            raise
        return None, f"no preset is written: {error}"
    return path, ""


def print_result(result: SearchResult, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_plain()))
        return
    width = terminal_width(1)
    for line in result_lines(result):
        # A command stays whole, so that it can be copied.
        for piece in [line] if COMMAND_LINE.search(line) else folded(line, width):
            click.echo(piece)


@contextlib.contextmanager
def _screen(task: SearchTask, output: OutputOptions) -> Iterator[Observer]:
    """The observer that shows the search."""
    if output.quiet:
        yield Observer()
    elif sys.stderr.isatty() and not output.verbose and os.environ.get("TERM") != "dumb":
        from xtune.show.screens import LiveScreen

        with LiveScreen(task.space, task.objective) as screen:
            yield screen
    else:
        yield PlainScreen(task.space, task.objective, say, verbose=output.verbose)


def _line(text: str) -> None:
    """Write a line to standard error with its indentation."""
    width = terminal_width(2)
    with contextlib.suppress(OSError):
        for piece in folded(text, None if width is None else width - len("xtune: ")):
            click.echo(f"xtune: {piece}", err=True)
