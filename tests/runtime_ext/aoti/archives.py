# SPDX-License-Identifier: Apache-2.0
"""Changed copies of packages, and a part of one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

ROWS_OF_3 = """
    ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);
    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float32();
    ss << "input_handles[0]: dim value is too small at 0, " << "expected it to be >= 2, " << "but got: "
    ss << "input_handles[0]: unmatched dim value at 1, " << "expected: 3, " << "but got: "
    ss << "input_handles[0]: unmatched stride value at 0, " << "expected: 3, " << "but got: "
    ss << "input_handles[0]: unmatched stride value at 1, " << "expected: 1, " << "but got: "
"""
"""Excerpts of what torch 2.13 writes for an input of any number of rows of 3."""

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
