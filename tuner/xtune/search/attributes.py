# SPDX-License-Identifier: Apache-2.0
"""Storage of long values in Optuna's attributes, whose length databases limit."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from xtune.search.encoding import Plain

PREFIX = "xtune:"
"""Prefix of the attributes that xtune reads. Others are for people."""

PIECE = 32_000
"""Maximum characters of one attribute: MySQL's TEXT holds 65,535 bytes."""


def pack(plain: Plain) -> str:
    """Compress plain values to text."""
    data = json.dumps(plain, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(data)).decode()


def unpack(text: str) -> Plain:
    """The inverse of `pack`."""
    plain: Plain = json.loads(zlib.decompress(base64.b64decode(text)))
    return plain


def write_pieces(write: Callable[[str, Any], None], name: str, text: str) -> None:
    """Write a text of any length as attributes of bounded length, the first one last."""
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)] or [""]
    for number in range(len(pieces) - 1, 0, -1):
        write(f"{PREFIX}{name}#{number}", pieces[number])
    write(f"{PREFIX}{name}#0", f"{len(pieces)} {pieces[0]}")


def read_pieces(attributes: Mapping[str, Any], name: str) -> str | None:
    """Read what `write_pieces` wrote; None if it is missing or incomplete."""
    first = attributes.get(f"{PREFIX}{name}#0")
    if not isinstance(first, str):
        return None
    count, _, text = first.partition(" ")
    rest = [attributes.get(f"{PREFIX}{name}#{number}", "") for number in range(1, int(count))]
    return "".join([text, *rest])
