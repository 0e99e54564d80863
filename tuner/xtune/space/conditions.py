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


NUMBER, TEXT, TRUTH = "a number", "text", "true or false"
"""The kinds of values."""

OPERATORS = "== != < <= > >= in, and or not, + - * / // %"

_QUOTED = r"'[^']*'|\"[^\"]*\""
_PLAIN = re.compile(r"-?[A-Za-z_]\w*|-?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_BARE = re.compile(r"[\w.:/+-]+", re.ASCII)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


class _Reader:
    """Parses one condition and checks the kinds of its parts; whatever it does not know is refused."""

    def __init__(
        self, text: str, names: Mapping[str, Sequence[Value]], words: frozenset[str]
    ) -> None:
        self._text = text
        self._names = names
        self._words = words
        self._used: set[str] = set()
        self._known: dict[str, Value] = {"true": True, "false": False}
        """Words that are no names, with their values."""

    def condition(self) -> Condition:
        tree = self._parsed()
        for side in (tree.test, tree.body) if isinstance(tree, ast.IfExp) else (tree,):
            self._require(side, TRUTH)
        if not self._used:
            raise self._error(f"names no parameter; there are {', '.join(self._names) or 'none'}")
        code = compile(ast.fix_missing_locations(ast.Expression(tree)), "--when", "eval")

        def evaluate(values: Values) -> Value:
            # Only nodes that `_kind` knows.
            found: Value = eval(code, {"__builtins__": {}}, {**self._known, **values})  # noqa: S307
            return found

        return Condition(self._text, frozenset(self._used), evaluate)

    def _parsed(self) -> ast.expr:
        """Python's syntax tree, once values such as glibc-tuned are quoted and ``if`` has an ``else``."""
        texts = {str(value) for values in self._names.values() for value in values} | self._words
        bare = [text for text in texts if _BARE.fullmatch(text) and not _PLAIN.fullmatch(text)]
        choices = "|".join(re.escape(text) for text in sorted(bare, key=len, reverse=True))
        token = re.compile(
            rf"{_QUOTED}|(?<![\w.])(?P<bare>{choices or '(?!)'})(?![\w.:/+-])|\s", re.ASCII
        )

        def in_python(found: re.Match[str]) -> str:
            return repr(found["bare"]) if found["bare"] is not None else found[0].strip() or " "

        text = token.sub(in_python, self._text).strip()
        if re.search(r"\bif\b", re.sub(_QUOTED, "", text)):
            text += " else True"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 4in (..), and the like
                return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "nested too deep"
            raise self._error(f"cannot be read ({reason}); write {OPERATORS}") from None

    def _require(self, node: ast.expr, wanted: str) -> None:
        kind = self._kind(node)
        if self._is_unknown(node):
            raise self._unknown(node)
        if kind != wanted:
            expected = "compare it, as in threads<=ncores" if wanted is TRUTH else f"not {wanted}"
            raise self._error(f"{ast.unparse(node)}: this is {kind} by itself; {expected}")

    def _kind(self, node: ast.expr) -> str:
        """The kind of a part; its own parts are checked."""
        match node:
            case ast.BoolOp(_, sides):
                for side in sides:
                    self._require(side, TRUTH)
                return TRUTH
            case ast.UnaryOp(ast.Not(), operand):
                self._require(operand, TRUTH)
                return TRUTH
            case ast.UnaryOp(ast.USub(), operand):
                self._require(operand, NUMBER)
                return NUMBER
            case ast.BinOp(left, op, right) if isinstance(op, _ARITHMETIC):
                self._require(left, NUMBER)
                self._require(right, NUMBER)
                return NUMBER
            case ast.Compare():
                self._check_comparison(node)
                return TRUTH
            case ast.Constant(bool() | int() | float() | str() as value):
                return _kind_of([value])
            case ast.Name(name) if name in self._names:
                self._used.add(name)
                return _kind_of(self._names[name])
            case ast.Name(name):
                return _kind_of([self._known.setdefault(name, name)])
        raise self._error(f"{ast.unparse(node)}: is not allowed in a condition")

    def _check_comparison(self, node: ast.Compare) -> None:
        left, kind = node.left, self._kind(node.left)
        for at, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            others = [right]
            if isinstance(operator, ast.In | ast.NotIn):
                others = right.elts if isinstance(right, ast.Tuple | ast.List) else [right]
                node.comparators[at] = ast.Tuple(others, ast.Load())
            elif isinstance(operator, ast.Is | ast.IsNot):
                raise self._error("'is' is not allowed in a condition; write == or !=")
            kinds = [self._kind(other) for other in others]
            for other, others_kind in zip(others, kinds, strict=True):
                self._check_pair((left, other), operator, (kind, others_kind))
            left, kind = right, kinds[0] if others == [right] else TRUTH

    def _check_pair(
        self, sides: tuple[ast.expr, ast.expr], operator: ast.cmpop, kinds: tuple[str, str]
    ) -> None:
        """Refuse two kinds, an order of text, and text that is not a value of the parameter."""
        for part, other in (sides, sides[::-1]):
            values = self._names.get(other.id) if isinstance(other, ast.Name) else None
            is_text = values is not None and _kind_of(values) is TEXT
            if self._is_unknown(part) and not is_text:
                raise self._unknown(part)
            literal = self._literal(part)
            if is_text and literal is not None and literal not in (*(values or ()), *self._words):
                known = sorted(map(str, values or ()))
                near = difflib.get_close_matches(literal, [*known, *sorted(self._words)], n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; it is {' or '.join(known)}"
                raise self._error(f"the parameter is never {literal!r}{hint}")
        if kinds[0] != kinds[1]:
            quote = "; text is written in quotes" if TEXT in kinds else ""
            raise self._error(f"{kinds[0]} is compared with {kinds[1]}{quote}")
        if kinds[0] != NUMBER and not isinstance(operator, _EQUALITY):
            raise self._error(f"{kinds[0]} has no order; write == or !=")

    def _is_unknown(self, node: ast.expr) -> bool:
        """Whether it is a word that is no name: text without quotes, or a misspelt name."""
        is_name = isinstance(node, ast.Name) and node.id not in self._names
        return is_name and self._literal(node) is not None

    def _literal(self, node: ast.expr) -> str | None:
        """Text that is written as such, with quotes or without."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        value = self._known.get(node.id) if isinstance(node, ast.Name) else None
        return value if isinstance(value, str) else None

    def _unknown(self, node: ast.expr) -> SpaceError:
        name = self._literal(node) or ""
        near = difflib.get_close_matches(name, self._names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self._names)}"
        return self._error(f"nothing here has the name {name!r}; {hint}")

    def _error(self, message: str) -> SpaceError:
        return SpaceError(f"--when {self._text!r}: {message}")


def _kind_of(values: Sequence[Value]) -> str:
    if all(isinstance(value, bool) for value in values):
        return TRUTH
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return NUMBER
    return TEXT
