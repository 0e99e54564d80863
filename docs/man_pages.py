# SPDX-License-Identifier: Apache-2.0
"""Write a manual page for every command of xlaunch and xtune, from what ``--help`` shows.

    python docs/man_pages.py DIRECTORY

Installing does this: `man xlaunch` and `man xlaunch-cache-prune` work where the environment's bin
directory is on PATH. It needs click, and no other package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

SPECIAL = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "~": r"\(ti", "^": r"\(ha"}
)
BOLD = re.compile(r"(?<![^ ])\\-[^ ,]+|^\w.*")
"""Options among values, and the names of commands."""


class ManPage(click.HelpFormatter):
    """Takes what click's formatter is given, and writes it for ``man`` instead."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f".SH SYNOPSIS\n.B {roff(prog)}\n{roff(args)}\n.SH DESCRIPTION\n")

    def write_paragraph(self) -> None:
        """Nothing: each paragraph below begins with a macro."""

    def write_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            first, _, rest = paragraph.partition("\n")
            if first == "\b":
                self.write(f".PP\n.EX\n{roff(rest)}\n.EE\n")
            else:
                self.write(f".PP\n{roff(paragraph)}\n")

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        for term, meaning in rows:
            shown = BOLD.sub(r"\\fB\g<0>\\fR", roff(term))
            self.write(f".TP\n{shown}\n{roff(meaning)}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write(f".SH {roff(name.upper())}\n")
        yield


def roff(text: str) -> str:
    """What roff prints as `text`."""
    return re.sub(r"(?m)^\.", r"\\&.", text.translate(SPECIAL))


def command_tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all that are below it, each with the words that a user types for it."""
    yield name, command
    below = dict(getattr(command, "commands", {}))
    below |= {
        word: import_module(it).command for word, it in getattr(command, "modules", {}).items()
    }
    for word, it in sorted(below.items()):
        yield from command_tree(f"{name} {word}", it)


def manual_page(name: str, command: click.Command, version: str) -> str:
    """The source of the page of a command. `version`: **Ex.:** ``"xlaunch 0.1.0"``."""
    title = name.replace(" ", "-")
    page = ManPage(width=200)
    page.write(f'.TH {roff(title.upper())} 1 "" "{version}"\n.nh\n.ad l\n.SH NAME\n')
    page.write(f"{roff(title)} \\- {roff(command.get_short_help_str(limit=200))}\n")
    context = click.Context(command, info_name=name, **command.context_settings)
    command.format_help(context, page)
    return page.getvalue()


def pages() -> Iterator[tuple[str, str]]:
    """The file name of each page, and its source."""
    from xlaunch import __version__
    from xlaunch.cli import launch
    from xtune.cli import tune

    for program, command in (("xlaunch", launch.command), ("xtune", tune.command)):
        for name, it in command_tree(program, command):
            yield f"{name.replace(' ', '-')}.1", manual_page(name, it, f"xlaunch {__version__}")


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root / "launcher"), str(root / "tuner")]
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for file_name, source in pages():
        (target / file_name).write_text(source)
