# SPDX-License-Identifier: Apache-2.0
"""Whole outputs, recorded beside the test: what `test_plan.py` expects is read in `test_plan.golden`.

A test calls its fixture `golden` with what a command printed. ``XLAUNCH_UPDATE_GOLDEN=1 pytest -m "long or not
long" FILE`` records the outputs of all tests of a file; read the difference before it is committed.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_HEAD = "==> "


def check_golden(path: Path, text: str) -> None:
    """Compare a text with a file, or write the file where goldens are updated."""
    if os.environ.get("XLAUNCH_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class Golden:
    """Compares outputs with those that are recorded under a test's name, one after the other."""

    def __init__(self, path: Path, test: str, names: dict[str, str]) -> None:
        self._path, self._test, self._names, self._calls = path, test, names, 0

    def __call__(self, *outputs: Any, hide: str = "") -> None:
        """Ended commands, texts, bytes or lists of lines, one below the other.

        `hide` is a regular expression of what differs from run to run; it is recorded as three dots.
        """
        text = "".join([f"{_text_of(output)}\n" for output in outputs])
        for value, name in self._names.items():
            text = text.replace(value, name)
        if hide:
            text = re.sub(hide, "...", text)
        self._calls += 1
        key = self._test if self._calls == 1 else f"{self._test} #{self._calls}"
        if os.environ.get("XLAUNCH_UPDATE_GOLDEN"):
            self._record(key, text)
        assert text == _read(self._path).get(key, "")

    def errors(self, *calls: Callable[[], object], hide: str = "") -> None:
        """Compare the class and message of what each call raises; equal ones in a row are counted."""
        raised = []
        for call in calls:
            try:
                call()
                raised.append("no error")
            except Exception as error:  # noqa: BLE001 - whatever it raises is compared
                raised.append(f"{type(error).__name__}: {error}")
        counted = [(error, len(list(equal))) for error, equal in itertools.groupby(raised)]
        lines = [f"{error} ({count} times)" if count > 1 else error for error, count in counted]
        self(lines, hide=hide)

    def _record(self, key: str, text: str) -> None:
        recorded = _read(self._path)
        if self._calls == 1:
            recorded = {k: v for k, v in recorded.items() if k.partition(" #")[0] != key}
        recorded[key] = text
        parts = [f"{_HEAD}{name}\n{recorded[name]}" for name in sorted(recorded, key=_order)]
        self._path.write_text("\n".join(parts))


def _read(path: Path) -> dict[str, str]:
    """The recorded outputs of a file, by test and number of the call."""
    if not path.exists():
        return {}
    parts = re.split(rf"(?:\A|\n){_HEAD}(.*)\n", path.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _order(key: str) -> tuple[str, int]:
    test, _, call = key.partition(" #")
    return test, int(call or 1)


def _text_of(output: Any) -> str:
    if isinstance(output, bytes):
        output = output.decode(errors="backslashreplace")
    elif hasattr(output, "err"):
        parts = [f"exit code {output.code}", _text_of(output.out), _text_of(output.err)]
        output = "\n".join([part for part in parts if part])
    elif isinstance(output, list | tuple | Iterator):
        output = "\n".join(map(str, output))
    return "\n".join([line.rstrip() for line in str(output).splitlines()])
