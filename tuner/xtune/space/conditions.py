# SPDX-License-Identifier: Apache-2.0
"""Conditions on a space: comparisons in a subset of Python's syntax.

    threads <= ncores                        both are numbers
    batch >= 8 if allocator == tcmalloc      with another allocator, any batch is allowed
    instances * batch <= 64 and not smt
    allocator in (glibc, jemalloc) or omp != 'intel+active'

A name is a parameter, or a value that a space derives from one (`ncores`, `instances`). Any other
word, and anything in quotes, is text, and must be a value of some parameter. Operators: ``or``, ``and``, ``not``, ``== != < <= > >=`` (also chained), ``in (..)``, ``not in``,
``+ - * / // %``, parentheses. Constants: ``true``, ``false``. ``A if B`` is true where B is false.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from xlaunch.text import did_you_mean
from xtune.errors import SpaceError
from xtune.space.parameters import Value

MAX_CHARACTERS = 500

KEYWORDS = ("if", "or", "and", "not", "in", "true", "false")
"""Words that cannot be names."""

Values = Mapping[str, Value]


class Condition(NamedTuple):
    """A condition that every configuration must meet."""

    text: str
    """As the user wrote it."""
    names: frozenset[str]
    """The parameters and derived values in it."""
    code: CodeType
    words: Mapping[str, Value]
    """The meaning of its other words."""

    def holds(self, values: Values) -> bool:
        """Whether `values`, which must contain all of `names`, meet it.

        Raises `SpaceError` if it divides by zero, or is not true or false.
        """
        try:
            # Only nodes that `_is_allowed` knows.
            holds = eval(self.code, {"__builtins__": {}}, {**self.words, **values})  # noqa: S307
        except ZeroDivisionError:
            where = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise _error(self.text, f"divides by 0 where {where}") from None
        except TypeError:
            raise _error(self.text, "computes with text, or compares it with a number") from None
        if not isinstance(holds, bool):
            raise _error(self.text, "is not true or false; compare it, as in threads<=ncores")
        return holds


def parse_condition(
    text: str, names: Mapping[str, Sequence[Value]], words: Collection[str] = ()
) -> Condition:
    """Parse a condition.

    names
        Parameters and derived values, each with all its possible values.
    words
        Text that is allowed although no parameter here has it as a value, such as an allocator of
        other machines.

    Raises `SpaceError` with one line.
    """
    if not text.strip():
        raise SpaceError("--when: the condition is empty; write for example 'threads<=ncores'")
    if len(text) > MAX_CHARACTERS:
        raise SpaceError(
            f"--when: a condition of {len(text)} characters; at most {MAX_CHARACTERS}, and "
            "several --when all have to hold"
        )
    texts = {value for values in names.values() for value in values if isinstance(value, str)}
    texts |= set(words)
    tree = _parse(text, texts)
    used: set[str] = set()
    meanings: dict[str, Value] = {"true": True, "false": False}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not _is_allowed(node):
            raise _error(text, f"{ast.unparse(node)}: is not allowed in a condition")
        if isinstance(node, ast.Name) and node.id in names:
            used.add(node.id)
        elif isinstance(node, ast.Name) and node.id not in meanings:
            _require_known(text, node.id, texts, names)
            meanings[node.id] = node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            _require_known(text, node.value, texts, names)
        elif isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(isinstance(op, _ORDER) for op in node.ops) and any(
                isinstance(side, ast.Name)
                and any(isinstance(v, str) for v in names.get(side.id, ()))
                for side in sides
            ):
                raise _error(text, "text has no order; write == or !=")
            for at, op in enumerate(node.ops):  # in one word is in a list of it
                if isinstance(op, ast.In | ast.NotIn) and not isinstance(sides[at + 1], _LISTS):
                    node.comparators[at] = ast.Tuple([sides[at + 1]], ast.Load())
    if not used:
        raise _error(text, f"names no parameter; there are {', '.join(names) or 'none'}")
    code = compile(ast.fix_missing_locations(ast.Expression(tree)), "--when", "eval")
    return Condition(text, frozenset(used), code, meanings)


OPERATORS = "== != < <= > >= in, and or not, + - * / // %"

_QUOTED = r"'[^']*'|\"[^\"]*\""
_PLAIN = re.compile(r"-?[A-Za-z_]\w*|-?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_BARE = re.compile(r"[\w.:/+-]+", re.ASCII)
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_LISTS = (ast.Tuple, ast.List)


def _is_allowed(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(_, op):
            return isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod)
        case ast.UnaryOp(op):
            return isinstance(op, ast.Not | ast.USub)
        case ast.Compare(_, ops):
            return not any(isinstance(op, ast.Is | ast.IsNot) for op in ops)
        case ast.Constant(value):
            return isinstance(value, bool | int | float | str)
    return isinstance(node, ast.BoolOp | ast.Name | ast.IfExp | ast.Tuple | ast.List)


def _parse(text: str, texts: Collection[str]) -> ast.expr:
    """Python's syntax tree, once values such as glibc-tuned are quoted and ``if`` has an ``else``."""
    bare = [word for word in texts if _BARE.fullmatch(word) and not _PLAIN.fullmatch(word)]
    choices = "|".join(re.escape(word) for word in sorted(bare, key=len, reverse=True))
    token = re.compile(
        rf"{_QUOTED}|(?<![\w.])(?P<bare>{choices or '(?!)'})(?![\w.:/+-])|\s", re.ASCII
    )

    def in_python(match: re.Match[str]) -> str:
        return repr(match["bare"]) if match["bare"] is not None else match[0].strip() or " "

    written = token.sub(in_python, text).strip()
    if re.search(r"\bif\b", re.sub(_QUOTED, "", written)):
        written += " else True"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 4in (..), and the like
            return ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deep"
        raise _error(text, f"cannot be read ({reason}); write {OPERATORS}") from None


def _require_known(
    text: str, word: str, texts: Collection[str], names: Mapping[str, Sequence[Value]]
) -> None:
    """Raise `SpaceError` for a word that is no name and no value."""
    if word in texts:
        return
    hint = did_you_mean(word, [*names, *sorted(texts)], count=1)
    hint = hint or f"; there are {', '.join(names)}"
    raise _error(text, f"nothing here has the name or the value {word!r}{hint}")


def _error(text: str, message: str) -> SpaceError:
    return SpaceError(f"--when {text!r}: {message}")
