# SPDX-License-Identifier: Apache-2.0
"""Conditions on a space: comparisons in a subset of Python's syntax.

    threads <= ncores                        both are numbers
    batch >= 8 if allocator == tcmalloc      with another allocator, any batch is allowed
    instances * batch <= 64 and not smt
    allocator in (glibc, jemalloc) or omp != 'intel+active'

A name is a parameter, or a value that a space derives from one (`ncores`, `instances`). Any other
word is text, and must be a value of the parameter that it is compared with. Anything in quotes is
text. Operators: ``or``, ``and``, ``not``, ``== != < <= > >=`` (also chained), ``in (..)``, ``not in``,
``+ - * / // %``, parentheses. Constants: ``true``, ``false``. ``A if B`` is true where B is false.
"""

from __future__ import annotations

import ast
import difflib
import enum
import itertools
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from xtune.errors import SpaceError
from xtune.space.parameters import Value

MAX_CHARACTERS = 500

KEYWORDS = ("if", "or", "and", "not", "in", "true", "false")
"""Words that cannot be names."""

Values = Mapping[str, Value]


class Condition(NamedTuple):
    """A condition that every configuration must meet. Compared by its text."""

    text: str
    """As the user wrote it."""
    names: frozenset[str]
    """The parameters and derived values in it."""
    evaluate: Callable[[Values], Value]

    def holds(self, values: Values) -> bool:
        """Whether `values`, which must contain all of `names`, meet it.

        Raises `SpaceError` if it divides by zero.
        """
        try:
            return bool(self.evaluate(values))
        except ZeroDivisionError:
            where = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise SpaceError(f"--when {self.text!r}: divides by 0 where {where}") from None


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
    return _Reader(text, names, frozenset(words)).condition()


class _Kind(enum.Enum):
    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"


class _Part(NamedTuple):
    """A parsed part of a condition."""

    node: ast.expr
    """With words as text, and lists as tuples."""
    kind: _Kind
    values: frozenset[Value] | None = None
    """All values of a text parameter."""
    literal: str | None = None
    """The literal text, without its quotes."""
    is_bare: bool = False
    """Written without quotes, so it may be a misspelt name."""


_QUOTED = r"'[^']*'|\"[^\"]*\""
_PLAIN = re.compile(r"-?[A-Za-z_]\w*|-?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_BARE = re.compile(r"[\w.:/+-]+", re.ASCII)
_MISTAKES = (
    (re.compile(r"(?<![=!<>])=(?!=)"), "= means nothing; write =="),
    (re.compile(r"&"), "& means nothing; write and"),
    (re.compile(r"\|"), "| means nothing; write or"),
    (re.compile(r"!(?!=)"), "! means nothing; write not, or !="),
)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


class _Reader:
    """Parses one condition and checks the kinds of its parts."""

    def __init__(
        self, text: str, names: Mapping[str, Sequence[Value]], words: frozenset[str]
    ) -> None:
        self._text = text
        self._names = names
        self._words = words
        self._used: set[str] = set()

    def condition(self) -> Condition:
        tree = self._parsed()
        if isinstance(tree, ast.IfExp):
            parts = [self._read(side, _Kind.TRUTH).node for side in (tree.test, tree.body)]
            node: ast.expr = ast.IfExp(parts[0], parts[1], ast.Constant(True))
        else:
            node = self._read(tree, _Kind.TRUTH).node
        if not self._used:
            raise self._error(f"names no parameter; there are {self._known()}")
        expression = ast.fix_missing_locations(ast.Expression(node))
        code = compile(expression, "--when", "eval")

        def evaluate(values: Values) -> Value:
            # Only nodes that `_read` made.
            found: Value = eval(code, {"__builtins__": {}}, values)  # noqa: S307
            return found

        return Condition(self._text, frozenset(self._used), evaluate)

    def _parsed(self) -> ast.expr:
        """Python's syntax tree, once values such as glibc-tuned are quoted and ``if`` has an ``else``."""
        outside = re.sub(_QUOTED, "", self._text)
        for mistake, message in _MISTAKES:
            if mistake.search(outside):
                raise self._error(message)
        texts = {str(value) for values in self._names.values() for value in values} | self._words
        bare = [text for text in texts if _BARE.fullmatch(text) and not _PLAIN.fullmatch(text)]
        choices = "|".join(re.escape(text) for text in sorted(bare, key=len, reverse=True))
        # Quoted text, or a whole value, or a word.
        token = re.compile(
            rf"{_QUOTED}|(?<![\w.])(?P<bare>{choices or '(?!)'})(?![\w.:/+-])|(?P<word>\b[A-Za-z_]\w*)|\s",
            re.ASCII,
        )
        text = token.sub(_in_python, self._text).strip()
        if re.search(r"\bif\b", re.sub(_QUOTED, "", text)):
            text += " else True"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 4in (..), and the like
                return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "nested too deep"
            raise self._error(f"cannot be read ({reason})") from None

    def _read(self, node: ast.expr, wanted: _Kind | None = None) -> _Part:
        part = self._part(node)
        if wanted is None or (part.kind is wanted and not part.is_bare):
            return part
        if part.is_bare:
            raise self._unknown(part)
        shown = ast.unparse(node)
        if wanted is _Kind.NUMBER:
            raise self._error(f"{shown}: a number is expected here, and this is {part.kind.value}")
        raise self._error(
            f"{shown}: this is {part.kind.value} by itself; compare it, as in threads<=ncores"
        )

    def _part(self, node: ast.expr) -> _Part:
        match node:
            case ast.BoolOp(op, sides):
                read = [self._read(side, _Kind.TRUTH).node for side in sides]
                return _Part(ast.BoolOp(op, read), _Kind.TRUTH)
            case ast.UnaryOp(ast.Not() as op, operand):
                return _Part(ast.UnaryOp(op, self._read(operand, _Kind.TRUTH).node), _Kind.TRUTH)
            case ast.UnaryOp(ast.USub() as op, operand):
                return _Part(ast.UnaryOp(op, self._read(operand, _Kind.NUMBER).node), _Kind.NUMBER)
            case ast.BinOp(left, op, right) if isinstance(op, _ARITHMETIC):
                sides = [self._read(side, _Kind.NUMBER).node for side in (left, right)]
                return _Part(ast.BinOp(sides[0], op, sides[1]), _Kind.NUMBER)
            case ast.Compare():
                return self._comparison(node)
            case ast.Constant(bool()):
                return _Part(node, _Kind.TRUTH)
            case ast.Constant(int() | float()):
                return _Part(node, _Kind.NUMBER)
            case ast.Constant(str() as literal):
                return _Part(node, _Kind.TEXT, literal=literal)
            case ast.Name(name) if name in self._names:
                self._used.add(name)
                values = self._names[name]
                kind = _kind_of(values)
                return _Part(node, kind, frozenset(values) if kind is _Kind.TEXT else None)
            case ast.Name(name):
                return _Part(ast.Constant(name), _Kind.TEXT, literal=name, is_bare=True)
        raise self._error(f"{ast.unparse(node)}: is not allowed in a condition")

    def _comparison(self, node: ast.Compare) -> _Part:
        sides = [node.left, *node.comparators]
        made = [self._read(node.left)]
        for operator, (_, right) in zip(node.ops, itertools.pairwise(sides), strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                items = right.elts if isinstance(right, ast.Tuple | ast.List) else [right]
                read = [self._read(item) for item in items]
                for item in read:
                    self._check(made[-1], ast.Eq(), item)
                made.append(_Part(ast.Tuple([item.node for item in read], ast.Load()), _Kind.TRUTH))
            else:
                made.append(self._read(right))
                self._check(made[-2], operator, made[-1])
        compared = ast.Compare(made[0].node, node.ops, [part.node for part in made[1:]])
        return _Part(compared, _Kind.TRUTH)

    def _check(self, left: _Part, operator: ast.cmpop, right: _Part) -> None:
        """Refuse to compare two kinds, to order text, and text that is no value of the parameter."""
        for part, other in ((left, right), (right, left)):
            if part.is_bare and other.values is None:
                raise self._unknown(part)
        if isinstance(operator, ast.Is | ast.IsNot):
            raise self._error("'is' is not allowed in a condition; write == or !=")
        if left.kind is not right.kind:
            quote = "; text is written in quotes" if _Kind.TEXT in (left.kind, right.kind) else ""
            raise self._error(f"{left.kind.value} is compared with {right.kind.value}{quote}")
        if left.kind is not _Kind.NUMBER and not isinstance(operator, ast.Eq | ast.NotEq):
            raise self._error(f"{left.kind.value} has no order; write == or !=")
        for part, other in ((left, right), (right, left)):
            if part.literal is None or other.values is None:
                continue
            if part.literal in other.values or part.literal in self._words:
                continue
            known = sorted(map(str, other.values))
            near = difflib.get_close_matches(part.literal, [*known, *sorted(self._words)], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it is {' or '.join(known)}"
            raise self._error(f"the parameter is never {part.literal!r}{hint}")

    def _unknown(self, part: _Part) -> SpaceError:
        near = difflib.get_close_matches(part.literal or "", self._names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {self._known()}"
        return self._error(f"nothing here has the name {part.literal!r}; {hint}")

    def _known(self) -> str:
        return ", ".join(self._names) or "none"

    def _error(self, message: str) -> SpaceError:
        return SpaceError(f"--when {self._text!r}: {message}")


def _in_python(found: re.Match[str]) -> str:
    """A token in Python's syntax: values in quotes, ``true`` capitalized."""
    if found["bare"] is not None:
        return repr(found["bare"])
    if found["word"] in ("true", "false"):
        return found["word"].capitalize()
    return found[0] if found[0].strip() else " "


def _kind_of(values: Sequence[Value]) -> _Kind:
    if all(isinstance(value, bool) for value in values):
        return _Kind.TRUTH
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _Kind.NUMBER
    return _Kind.TEXT
