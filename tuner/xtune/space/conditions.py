# SPDX-License-Identifier: Apache-2.0
"""Conditions on a space: a small language of comparisons, read without ever running Python.

    threads <= ncores                        both are numbers
    batch >= 8 if allocator == tcmalloc      where the allocator is another, any batch will do
    instances * batch <= 64 and not smt
    allocator in (glibc, jemalloc) or omp != 'intel+active'

Names are those of parameters, and those that a space derives from them (`ncores`, `instances`). Any
other word is text and has to be a value of what it is compared with; quotes make text of anything.
There are ``or``, ``and``, ``not``, ``== != < <= > >=`` (also chained), ``in (..)``, ``not in``,
``+ - * / // %``, parentheses, ``true`` and ``false``; they bind as in Python. ``A if B`` says nothing
where B does not hold.
"""

from __future__ import annotations

import difflib
import enum
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from xtune.errors import SpaceError
from xtune.space.parameters import Value

MAX_CHARACTERS = 500
MAX_NESTED = 30
"""Parentheses, ``not`` and signs within each other."""

KEYWORDS = ("if", "or", "and", "not", "in", "true", "false")
"""Words that cannot be names."""

Values = Mapping[str, Value]


class Condition(NamedTuple):
    """What a configuration has to keep. Compared by its text."""

    text: str
    """As the user wrote it."""
    names: frozenset[str]
    """Of parameters and derived values that it speaks of."""
    evaluate: Callable[[Values], Value]

    def holds(self, values: Values) -> bool:
        """Whether `values`, which has every one of `names`, keeps it.

        Raises `SpaceError` where it divides by nothing.
        """
        try:
            return bool(self.evaluate(values))
        except ZeroDivisionError:
            where = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise SpaceError(f"--when {self.text!r}: divides by 0 where {where}") from None


def parse_condition(
    text: str, names: Mapping[str, Sequence[Value]], words: Collection[str] = ()
) -> Condition:
    """The condition that `text` writes.

    names
        What may be spoken of, and every value that each can have; these tell its kind.
    words
        Text that is known though nothing here has it as a value: an allocator of other machines.

    Raises `SpaceError`, one line that points at the place.
    """
    return _Parser(text, names, frozenset(words)).condition()


class _Kind(enum.Enum):
    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"


class _Term(NamedTuple):
    """A part of a condition that was understood."""

    kind: _Kind
    at: int
    """Where it begins in the text."""
    evaluate: Callable[[Values], Value]
    values: frozenset[Value] | None = None
    """Of a name that is text: all that it can be."""
    literal: str | None = None
    """Text that was written, with quotes or without."""
    bare: bool = False
    """It was written without quotes, and may be a slip for a name."""


class _Token(NamedTuple):
    kind: str
    """``number``, ``word``, ``quoted``, ``sign`` or ``end``."""
    text: str
    at: int


_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?![\w.])", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_SIGN = re.compile(r"==|!=|<=|>=|//|[-+*/%<>()\[\],]")
_AFTER_VALUE = re.compile(r"[\w.:/+-]", re.ASCII)
"""What cannot follow a value that is written without quotes: it would be another word."""
_WRITTEN_BARE = re.compile(r"[\w.:/+-]+", re.ASCII)
_HINTS = {"=": "==", "&": "and", "|": "or", "!": "not, or !="}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


class _Parser:
    """Reads one condition from left to right, and knows the kind of every part."""

    def __init__(
        self, text: str, names: Mapping[str, Sequence[Value]], words: frozenset[str]
    ) -> None:
        self._text = text
        self._names = names
        self._words = words
        self._used: set[str] = set()
        self._depth = 0
        if not text.strip():
            raise SpaceError("--when: the condition is empty; write for example 'threads<=ncores'")
        if len(text) > MAX_CHARACTERS:
            raise SpaceError(
                f"--when: a condition of {len(text)} characters; at most {MAX_CHARACTERS}, and "
                "several --when all have to hold"
            )
        self._tokens = self._tokenize()
        self._next = 0

    def condition(self) -> Condition:
        """The whole text."""
        consequence = self._truth(self._either())
        evaluate = consequence.evaluate
        if self._take("if"):
            premise = self._truth(self._either()).evaluate
            then = consequence.evaluate
            evaluate = lambda values: not premise(values) or then(values)  # noqa: E731
        token = self._tokens[self._next]
        if token.kind != "end":
            raise self._error(token.at, f"{token.text!r} is not expected here")
        if not self._used:
            raise self._error(
                0, f"speaks of no parameter; there are {', '.join(self._names) or 'none'}"
            )
        return Condition(self._text, frozenset(self._used), evaluate)

    # From the loosest to the tightest binding.

    def _either(self) -> _Term:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        if len(parts) == 1:
            return parts[0]
        sides = [self._truth(part).evaluate for part in parts]
        return _Term(_Kind.TRUTH, parts[0].at, lambda values: any(side(values) for side in sides))

    def _all(self) -> _Term:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        if len(parts) == 1:
            return parts[0]
        sides = [self._truth(part).evaluate for part in parts]
        return _Term(_Kind.TRUTH, parts[0].at, lambda values: all(side(values) for side in sides))

    def _negation(self) -> _Term:
        at = self._tokens[self._next].at
        if not self._take("not"):
            return self._comparison()
        self._descend(at)
        inner = self._truth(self._negation()).evaluate
        self._depth -= 1
        return _Term(_Kind.TRUTH, at, lambda values: not inner(values))

    def _comparison(self) -> _Term:
        left = first = self._sum()
        checks: list[Callable[[Values], bool]] = []
        while True:
            token = self._tokens[self._next]
            if token.kind == "sign" and token.text in _COMPARISONS:
                self._next += 1
                right = self._sum()
                checks.append(self._compared(token, left, right))
                left = right
            elif self._is_membership():
                checks.append(self._membership(left))
                break
            else:
                break
        if not checks:
            return first
        if len(checks) == 1:
            return _Term(_Kind.TRUTH, first.at, checks[0])
        return _Term(_Kind.TRUTH, first.at, lambda values: all(check(values) for check in checks))

    def _is_membership(self) -> bool:
        words = [token.text for token in self._tokens[self._next : self._next + 2]]
        return words[:1] == ["in"] or words == ["not", "in"]

    def _membership(self, term: _Term) -> Callable[[Values], bool]:
        absent = self._take("not")
        token = self._tokens[self._next]
        self._take("in")
        opening = self._tokens[self._next]
        closing = {"(": ")", "[": "]"}.get(opening.text if opening.kind == "sign" else "")
        if closing is None:
            raise self._error(opening.at, "a list in parentheses is expected after 'in'")
        self._next += 1
        equal = _Token("sign", "==", token.at)
        items = [self._compared(equal, term, self._sum())]
        while self._take(","):
            items.append(self._compared(equal, term, self._sum()))
        if not self._take(closing):
            raise self._error(self._tokens[self._next].at, f"',' or {closing!r} is expected here")
        return lambda values: any(item(values) for item in items) is not absent

    def _sum(self) -> _Term:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> _Term:
        return self._chain(("*", "/", "//", "%"), self._factor)

    def _chain(self, signs: tuple[str, ...], operand: Callable[[], _Term]) -> _Term:
        left = operand()
        while self._tokens[self._next].kind == "sign" and self._tokens[self._next].text in signs:
            calculate = _ARITHMETIC[self._tokens[self._next].text]
            self._next += 1
            left = self._calculated(calculate, self._number(left), self._number(operand()))
        return left

    @staticmethod
    def _calculated(calculate: Callable[[float, float], float], left: _Term, right: _Term) -> _Term:
        one, other = left.evaluate, right.evaluate

        def evaluate(values: Values) -> Value:
            first, second = one(values), other(values)
            assert isinstance(first, int | float)
            assert isinstance(second, int | float)
            return calculate(first, second)

        return _Term(_Kind.NUMBER, left.at, evaluate)

    def _factor(self) -> _Term:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            number: Value = float(token.text) if "." in token.text else int(token.text)
            return _Term(_Kind.NUMBER, token.at, lambda _: number)
        if token.kind == "quoted":
            return _Term(_Kind.TEXT, token.at, lambda _: token.text, literal=token.text)
        if token.kind == "word" and token.text in ("true", "false"):
            return _Term(_Kind.TRUTH, token.at, lambda _: token.text == "true")
        if token.kind == "word" and token.text not in KEYWORDS:
            return self._named(token)
        if token.text == "(" and token.kind == "sign":
            self._descend(token.at)
            inner = self._either()
            if not self._take(")"):
                raise self._error(self._tokens[self._next].at, "')' is expected here")
            self._depth -= 1
            return inner._replace(at=token.at)
        if token.text == "-" and token.kind == "sign":
            self._descend(token.at)
            operand = self._number(self._factor())
            self._depth -= 1
            zero = _Term(_Kind.NUMBER, token.at, lambda _: 0)
            return self._calculated(operator.sub, zero, operand)
        found = "the end" if token.kind == "end" else repr(token.text)
        raise self._error(token.at, f"a name, a number or text is expected, not {found}")

    def _named(self, token: _Token) -> _Term:
        values = self._names.get(token.text)
        if values is None:
            return _Term(_Kind.TEXT, token.at, lambda _: token.text, literal=token.text, bare=True)
        self._used.add(token.text)
        kind = _kind_of(values)
        known = frozenset(values) if kind is _Kind.TEXT else None
        return _Term(kind, token.at, lambda values: values[token.text], values=known)

    # What fits together.

    def _compared(self, sign: _Token, left: _Term, right: _Term) -> Callable[[Values], bool]:
        for term, other in ((left, right), (right, left)):
            if term.bare and other.values is None:
                raise self._unknown(term)
        if left.kind is not right.kind:
            quote = "; text is written in quotes" if _Kind.TEXT in (left.kind, right.kind) else ""
            raise self._error(
                sign.at, f"{left.kind.value} is compared with {right.kind.value}{quote}"
            )
        if left.kind is not _Kind.NUMBER and sign.text not in ("==", "!="):
            raise self._error(sign.at, f"{left.kind.value} has no order; write == or !=")
        for term, other in ((left, right), (right, left)):
            self._check_value(term, other)
        compare, one, other_side = _COMPARISONS[sign.text], left.evaluate, right.evaluate
        return lambda values: compare(one(values), other_side(values))

    def _check_value(self, written: _Term, named: _Term) -> None:
        """Refuse text that what it is compared with can never be."""
        if written.literal is None or named.values is None:
            return
        if written.literal in named.values or written.literal in self._words:
            return
        known = sorted(map(str, named.values))
        near = difflib.get_close_matches(written.literal, [*known, *sorted(self._words)], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it is {' or '.join(known)}"
        raise self._error(written.at, f"the parameter is never {written.literal!r}{hint}")

    def _number(self, term: _Term) -> _Term:
        if term.bare:
            raise self._unknown(term)
        if term.kind is not _Kind.NUMBER:
            raise self._error(term.at, f"a number is expected here, and this is {term.kind.value}")
        return term

    def _truth(self, term: _Term) -> _Term:
        if term.bare:
            raise self._unknown(term)
        if term.kind is not _Kind.TRUTH:
            raise self._error(
                term.at, f"this is {term.kind.value} by itself; compare it, as in threads<=ncores"
            )
        return term

    def _unknown(self, term: _Term) -> SpaceError:
        near = difflib.get_close_matches(term.literal or "", self._names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self._names)}"
        return self._error(term.at, f"nothing here has the name {term.literal!r}; {hint}")

    # Words.

    def _take(self, text: str) -> bool:
        token = self._tokens[self._next]
        found = token.text == text and token.kind in ("word", "sign")
        self._next += found
        return found

    def _descend(self, at: int) -> None:
        self._depth += 1
        if self._depth > MAX_NESTED:
            raise self._error(at, f"nested more than {MAX_NESTED} deep")

    def _tokenize(self) -> list[_Token]:
        tokens, at = [], 0
        bare = self._bare_values()
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            token, at = self._token(at, bare)
            tokens.append(token)
        return [*tokens, _Token("end", "", len(self._text.rstrip()))]

    def _bare_values(self) -> list[str]:
        """Values that hold more than a name may (``glibc-tuned``, ``4x8``), the longest first."""
        texts = {str(value) for values in self._names.values() for value in values}
        texts = {
            text
            for text in texts | self._words
            if _WRITTEN_BARE.fullmatch(text)
            and not _WORD.fullmatch(text)
            and not _NUMBER.fullmatch(text.removeprefix("-"))
        }
        return sorted(texts, key=len, reverse=True)

    def _token(self, at: int, bare: list[str]) -> tuple[_Token, int]:
        text = self._text
        for value in bare:
            end = at + len(value)
            if text.startswith(value, at) and not _AFTER_VALUE.match(text, end):
                return _Token("word", value, at), end
        for kind, pattern in (("number", _NUMBER), ("word", _WORD), ("sign", _SIGN)):
            match = pattern.match(text, at)
            if match:
                return _Token(kind, match[0], at), match.end()
        match = _QUOTED.match(text, at)
        if match:
            return _Token("quoted", match[1] if match[2] is None else match[2], at), match.end()
        if text[at] in "'\"":
            raise self._error(at, "the quote is not closed")
        hint = _HINTS.get(text[at])
        raise self._error(at, f"{text[at]!r} means nothing" + (f"; write {hint}" if hint else ""))

    def _error(self, at: int, message: str) -> SpaceError:
        return SpaceError(f"--when {self._text!r}: character {at + 1}: {message}")


def _kind_of(values: Sequence[Value]) -> _Kind:
    if all(isinstance(value, bool) for value in values):
        return _Kind.TRUTH
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _Kind.NUMBER
    return _Kind.TEXT
