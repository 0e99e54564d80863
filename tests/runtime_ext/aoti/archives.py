# SPDX-License-Identifier: Apache-2.0
"""Changed copies of packages."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

Change = Callable[[str, bytes], bytes | None]


def rewritten(path: Path, target: Path, change: Change) -> Path:
    """A copy of a package in which `change(name, content)` replaced entries, or dropped them (None)."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            content = change(name, source.read(name))
            if content is not None:
                copy.writestr(name, content)
    return target


def described(**changes: str | None) -> Change:
    """Changes the description of the machine that a package is for; None drops an entry."""

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("_metadata.json"):
            return content
        entries = json.loads(content) | changes
        return json.dumps(
            {key: value for key, value in entries.items() if value is not None}
        ).encode()

    return change
