# SPDX-License-Identifier: Apache-2.0
"""Stored studies and the command lines that began them."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from xtune.cli import say
from xtune.cli.options import parse_search
from xtune.errors import StudyError
from xtune.request import SearchRequest
from xtune.search.storage import Storage, open_storage
from xtune.search.study import Study, find_study, list_studies


class StoredStudy(NamedTuple):
    """A study and the request that began it."""

    study: Study
    asked: SearchRequest
    arguments: tuple[str, ...]
    directory: str
    """The working directory of its launches."""


def find_stored(storage: Storage, name: str | None) -> StoredStudy:
    """The study of that name, or the latest. Raises `StudyError` if there is none."""
    if name is not None:
        study = find_study(storage, name)
    else:
        studies, _ = list_studies(storage)
        if not studies:
            raise StudyError(f"there is no study in {storage.shown} yet; begin with xtune PROGRAM")
        study = studies[-1]
    options = study.notes.get("options")
    if options is None:
        raise StudyError(
            f"study {study.name!r} does not hold the command line that it was begun with; a function is"
            " searched on by calling xtune.tune again"
        )
    arguments = tuple(options["arguments"])
    return StoredStudy(study, parse_search(arguments), arguments, options["folder"])


def open_named(text: str | None) -> Storage:
    """The storage that --storage names, closed at the end of the command. Raises `StorageError`."""
    storage = open_storage(text, create=False)
    command = click.get_current_context(silent=True)
    if command is not None:
        command.call_on_close(storage.close)
    return storage


def enter(directory: str, *, quiet: bool = False) -> None:
    """Change to a study's directory. Raises `StudyError` if that is impossible."""
    try:
        is_elsewhere = not os.path.samefile(directory, os.curdir)
        os.chdir(directory)
    except OSError as error:
        raise StudyError(
            f"the study was begun in {directory}, which cannot be entered: {error.strerror};"
            " xtune export prints its launches"
        ) from None
    if is_elsewhere and not quiet:
        say(f"in {directory}, where the study was begun")
