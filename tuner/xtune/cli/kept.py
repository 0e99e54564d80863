# SPDX-License-Identifier: Apache-2.0
"""Studies that were kept, found again with the command line that made them."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from xtune.cli import say
from xtune.cli.options import CONTEXT, Asked, asked_from
from xtune.errors import StudyError
from xtune.search.storage import JOURNAL, Storage, open_storage
from xtune.search.study import Study, find_study, list_studies


class Kept(NamedTuple):
    """A study, and what it was asked for."""

    study: Study
    asked: Asked
    arguments: tuple[str, ...]
    folder: str
    """In which the program's words mean what they meant."""


def find_kept(storage: Storage, name: str | None) -> Kept:
    """The study of that name, or the youngest. Raises `StudyError` where there is none."""
    if name is not None:
        study = find_study(storage, name)
    else:
        studies = list_studies(storage)
        if not studies:
            raise StudyError(f"there is no study in {storage.shown} yet; begin with xtune PROGRAM")
        study = studies[-1]
    kept = study.notes.get("options")
    if kept is None:
        raise StudyError(f"study {study.name!r} does not say what it was begun with")
    arguments = tuple(kept["arguments"])
    return Kept(study, _asked(arguments), arguments, kept["folder"])


def open_named(text: str | None) -> Storage:
    """The storage that --storage names, wherever this process goes later. Raises `StorageError`."""
    if text is not None and "://" not in text and not text.startswith(JOURNAL):
        text = os.path.abspath(text)
    return open_storage(text)


def enter(folder: str, *, quiet: bool = False) -> None:
    """Go to the folder that a study was begun in. Raises `StudyError` where it is gone."""
    try:
        if not quiet and os.path.realpath(folder) != os.getcwd():
            say(f"in {folder}, where the study was begun")
        os.chdir(folder)
    except OSError as error:
        raise StudyError(
            f"the study was begun in {folder}, which cannot be entered: {error.strerror}"
        ) from None


def _asked(arguments: tuple[str, ...]) -> Asked:
    from xtune.cli.tune import tune

    context = click.Context(tune, obj=arguments, **CONTEXT)  # type: ignore[arg-type]
    tune.parse_args(context, list(arguments))
    options = dict(context.params)
    return asked_from(options)
