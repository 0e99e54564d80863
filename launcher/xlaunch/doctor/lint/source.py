# SPDX-License-Identifier: Apache-2.0
"""The files that are checked: found in directories, read, and parsed; findings in them."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xlaunch.errors import UsageError
from xlaunch.files import open_input
from xlaunch.machine.tree import read_file

MAX_FILE_BYTES = 1 << 20
"""Longer files are skipped: they are tables of data, or generated."""

MAX_NOTEBOOK_BYTES = 16 << 20
"""Notebooks hold the images that they printed."""

LEFT_OUT = frozenset(("__pycache__", "build", "dist", "node_modules", "site-packages", "venv"))
"""Directories that hold copies, or the code of others."""

_SILENCED = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*))?", re.IGNORECASE)

_MAGIC = re.compile(r"\s*(%%?[A-Za-z]|[!?]|[\w.]+\?{1,2}\s*$|\w[\w, ]*=\s*[!%])")
"""A line of IPython. **Ex.:** ``%pip install torch``, ``!ls``, ``files = !ls``, ``model?``."""


class ScriptFinding(NamedTuple):
    """One place in a file, and what is wrong there. Lines and columns count from 1."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    message: str
    """One line: what is wrong and what to do."""


class Files(NamedTuple):
    """What to check."""

    paths: tuple[str, ...]
    """Sorted within each directory; each file once."""
    skipped: dict[str, int]
    """Reasons for which files were left out, with their counts."""


class SkippedError(Exception):
    """A file that is not checked; its text is the reason, which summaries count."""


class Source(NamedTuple):
    """The text of a file and its syntax tree."""

    path: str
    lines: list[str]
    tree: ast.Module
    cells: Sequence[tuple[int, int]] = ()
    """Notebooks: the cell of each line, counted from 1, and the line in that cell."""

    def finding(self, node: ast.expr | ast.stmt, code: str, message: str) -> ScriptFinding:
        return ScriptFinding(
            self.path,
            node.lineno,
            self._column(node.lineno, node.col_offset),
            node.end_lineno or node.lineno,
            self._column(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
            code,
            message,
        )

    def is_silenced(self, finding: ScriptFinding) -> bool:
        """Whether a comment ``# noqa`` or ``# noqa: CODE`` stands on a line of the finding."""
        for number in {finding.line, finding.end_line}:
            for match in _SILENCED.finditer(self.lines[number - 1]):
                codes = re.split(r"[,\s]+", (match["codes"] or "").upper())
                if codes == [""] or finding.code in codes:
                    return True
        return False

    def ends_cell(self, line: int) -> bool:
        """Whether a line is the last one of a notebook's cell, but for comments and empty lines."""
        later_lines = [
            self.lines[at]
            for at, (cell, _) in enumerate(self.cells)
            if cell == self.cells[line - 1][0] and at >= line
        ]
        return bool(self.cells) and not any(re.match(r"\s*[^\s#]", line) for line in later_lines)

    def placed(self, finding: ScriptFinding) -> ScriptFinding:
        """A finding as it is shown: in a notebook, at its cell (``train.ipynb:cell 3``) and the line there."""
        if not self.cells:
            return finding
        cell, line = self.cells[finding.line - 1]
        end_line = line + finding.end_line - finding.line
        return finding._replace(path=f"{finding.path}:cell {cell}", line=line, end_line=end_line)

    def _column(self, line: int, offset: int) -> int:
        """The column in characters; `ast` counts bytes of UTF-8."""
        text = self.lines[line - 1]
        return (offset if text.isascii() else len(text.encode()[:offset].decode())) + 1


def read_source(path: str) -> Source:
    """Read and parse a file.

    Raises `SyntaxError`, with the line and offset if known, for what is not Python, and
    `SkippedError` for what is not text, is too long, or cannot be read.
    """
    is_notebook = path.endswith(".ipynb")
    limit = MAX_NOTEBOOK_BYTES if is_notebook else MAX_FILE_BYTES
    try:
        with open_input(path) as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise SkippedError(f"cannot be read ({error.strerror})") from None
    if len(data) > limit:
        raise SkippedError(f"larger than {limit >> 20} MiB")
    cells: list[tuple[int, int]] = []
    if is_notebook:
        data, cells = _code_of_notebook(data)
    if b"\0" in data:
        raise SkippedError("not text")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes: not our subject
            tree = ast.parse(data)
    except (RecursionError, MemoryError):
        raise SkippedError("nested too deeply") from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None
    except SyntaxError as error:
        if cells and error.lineno:
            cell, error.lineno = cells[min(error.lineno, len(cells)) - 1]
            error.filename = f"{path}:cell {cell}"
        raise
    return Source(path, _lines(data), tree, cells)


def _code_of_notebook(data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The code of a notebook as one script, and the cell and line of each of its lines.

    Lines of IPython (``%pip``, ``!ls``, ``name?``) become ``pass``, and so do cells of another
    language (``%%bash``). Raises `SkippedError` for what is not a notebook of Python.
    """
    try:
        notebook = json.loads(data)
        if notebook["metadata"].get("kernelspec", {}).get("language", "python") != "python":
            raise SkippedError("a notebook of another language")
        sources = [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]
        texts = [(kind, text if isinstance(text, str) else "".join(text)) for kind, text in sources]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SkippedError("not a notebook that can be read") from None
    lines: list[str] = []
    cells: list[tuple[int, int]] = []
    for number, (kind, text) in enumerate(texts, start=1):
        if kind != "code" or re.match(r"\s*%%(?!time|capture)", text):
            continue
        continued, indent = False, ""
        for line_number, line in enumerate(text.splitlines(), start=1):
            continued_before = continued
            is_magic = continued or _MAGIC.match(line) is not None
            continued = is_magic and line.rstrip().endswith("\\")
            if not continued_before:
                indent = line[: len(line) - len(line.lstrip())]
            lines.append(indent + "pass" if is_magic else line)
            cells.append((number, line_number))
    return "\n".join(lines).encode(errors="replace"), cells


def syntax_finding(path: str, error: SyntaxError) -> ScriptFinding:
    """A file that does not parse, as a finding XL000 at the place that Python names."""
    line, column = max(error.lineno or 1, 1), max(error.offset or 1, 1)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    reason = " ".join((error.msg or "invalid syntax").split())
    message = f"not Python {version}: {reason}; nothing else in this file was checked"
    place = error.filename if error.filename and ":cell " in error.filename else path
    return ScriptFinding(place, line, column, line, column, "XL000", message)


def find_files(words: Sequence[str]) -> Files:
    """The Python files that `words` name: files as they are, directories walked.

    Directories are walked without following links; hidden ones, virtual environments, caches and
    build directories are left out. Raises `UsageError` for a path that does not exist or is
    neither a file nor a directory, and for a directory without Python files.
    """
    paths: dict[str, str] = {}
    skipped: dict[str, int] = {}
    for word in words:
        if os.path.isdir(word):
            script_paths = list(_walk(word, skipped))
            if not script_paths:
                raise UsageError(f"the directory {word!r} holds no Python files")
        elif os.path.isfile(word):
            script_paths = [word]
        else:
            missing = "does not exist" if not os.path.lexists(word) else "is not a file"
            raise UsageError(f"{word!r} {missing}; name files or directories of Python code")
        for path in script_paths:
            paths.setdefault(os.path.realpath(path), path)
    return Files(tuple(paths.values()), skipped)


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _walk(top: str, skipped: dict[str, int]) -> Iterator[str]:
    for directory, names, files in os.walk(top):
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in LEFT_OUT
            and not os.path.lexists(os.path.join(directory, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            path = os.path.join(directory, name)
            if not os.path.isfile(path) or not _is_python(path, name):
                continue
            real, root = os.path.realpath(path), os.path.realpath(top)
            if os.path.islink(path) and os.path.commonpath([real, root]) != root:
                skipped["a link out"] = skipped.get("a link out", 0) + 1
            else:
                yield path


def _is_python(path: str, name: str) -> bool:
    """Whether the name ends in .py or .ipynb, or a first line ``#!`` names python."""
    if "." in name:
        return name.endswith((".py", ".ipynb")) and not name.startswith(".")
    first = (read_file(path, max_bytes=128) or b"").partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _lines(data: bytes) -> list[str]:
    """The lines as Python counts them, in UTF-8 as `ast` has them, whatever the encoding is."""
    import io
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
