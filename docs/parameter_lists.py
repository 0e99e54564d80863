# SPDX-License-Identifier: Apache-2.0
"""Docstrings as the site shows them: parameters, each a name above an indented text, as lists, and
examples as sessions of Python.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

PARAMETER = re.compile(r"^([\w*]+(?:, [\w*]+)*)\n((?: {4}.*(?:\n|\Z))+)", re.MULTILINE)


EXAMPLE = re.compile(r"^(?:(?:>>>|\.\.\.) .*(?:\n|\Z))+", re.MULTILINE)


class ParameterLists(Extension):
    """Rewrites each docstring that is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = PARAMETER.sub(_item, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda it: f"```pycon\n{it[0].rstrip()}\n```\n", text)


def _item(found: re.Match[str]) -> str:
    return f"- **{found[1]}**: {' '.join(found[2].split())}\n"
