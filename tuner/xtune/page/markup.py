# SPDX-License-Identifier: Apache-2.0
"""HTML that is escaped by construction: text becomes markup only through here.

Commands, values and standard error are the user's, and may hold anything. `Markup` is what is HTML
already; every other text is escaped where it is put into an element. What UTF-8 cannot hold (bytes of
a file's name) and what HTML forbids (control characters) are shown as escapes.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any, TypeAlias

VOID = frozenset({"br", "meta"})
SHAPES = frozenset({"circle", "line", "path", "rect"})
"""Elements that hold nothing; those of SVG have to be closed."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | int | None"
"""None is left out; all but markup is escaped."""


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. **Ex.:** ``element("td", "a < b", klass="n")``: ``<td class="n">a &lt; b</td>``

    An attribute's underscores are hyphens, ``klass`` is ``class``; True is there without a value,
    None and False are not there.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = "class" if key == "klass" else key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{escape(_plain(value))}"')
    if name in SHAPES:
        return Markup(f"<{' '.join(words)}/>")
    end = "" if name in VOID else f"</{name}>"
    return Markup(f"<{' '.join(words)}>{join(*children)}{end}")


def join(*children: Child, between: str = "") -> Markup:
    """Children side by side, without those that are None."""
    parts = [
        child if isinstance(child, Markup) else escape(str(child))
        for child in children
        if child is not None
    ]
    return Markup(escape(between).join(parts))


def escape(text: str) -> Markup:
    """Text as HTML, inside an element or a quoted attribute."""
    return Markup(html.escape(printable(text)))


def printable(text: str) -> str:
    """Text without what HTML or UTF-8 cannot hold, which is shown as escapes."""
    return _FORBIDDEN.sub(lambda found: repr(found[0])[1:-1], text)


def script_json(value: Any) -> Markup:
    """JSON for inside a ``<script>``: nothing in it ends the script or begins a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _plain(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
