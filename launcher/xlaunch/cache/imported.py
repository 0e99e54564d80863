# SPDX-License-Identifier: Apache-2.0
"""What was imported into a cache: the SHA-256 of its files, ``<key>.imported`` beside the directory.

A program may replace an imported file, as numba does when a function gets another signature. Such a
file has another time of modification, and its SHA-256 no longer says anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from xlaunch.cache.directories import CacheDirectory
from xlaunch.files import write_whole

IMPORTED = ".imported"
"""Suffix of the record."""


class ImportedFile(NamedTuple):
    """One file as it was put in place."""

    sha256: str
    modified_ns: int


def read_imported(directory: CacheDirectory) -> dict[str, ImportedFile]:
    """The imported files of a cache, by their paths from its directory.

    Empty if nothing was imported, or where the record is damaged.
    """
    try:
        with open(directory.path + IMPORTED, encoding="utf-8") as stream:
            files = json.load(stream)["files"]
        return {path: ImportedFile(it["sha256"], it["modified_ns"]) for path, it in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_imported(directory: CacheDirectory, files: Mapping[str, ImportedFile]) -> None:
    """Replace the record. Raises OSError."""
    content = {"schema_version": 1, "files": {path: it._asdict() for path, it in files.items()}}
    write_whole(directory.path + IMPORTED, json.dumps(content).encode(), mode=0o600)
