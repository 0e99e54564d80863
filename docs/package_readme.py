# SPDX-License-Identifier: Apache-2.0
"""README as a package index shows it: relative links become links to the repository.

scikit-build-core calls it for the field `readme`; see pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")


def absolute(text: str, repository: str, version: str) -> str:
    """The text with absolute links: to files of the tag of a version, and pictures as raw files."""

    def link(found: re.Match[str]) -> str:
        path = found[1]
        kind = "raw" if path.endswith((".svg", ".png")) else "blob"
        return f"{repository}/{kind}/v{version}/{path}"

    return LINK.sub(link, text)


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None) -> dict[str, str]:
    """The value of the field `readme`. Raises ValueError for any other, and for settings."""
    if field != "readme" or settings:
        raise ValueError(f"{field}: only readme is written here, and it has no settings")
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "README.md").read_text(encoding="utf-8")
    text = absolute(text, project["urls"]["Repository"], project["version"])
    return {"content-type": "text/markdown", "text": text}
