# SPDX-License-Identifier: Apache-2.0
"""The user's parameters: ``--param batch=1,2,4,8``, and their places in the program's arguments.

    batch=1,2,4,8        these values; the first is the default
    threads=4..64        doubling: 4, 8, 16, 32, 64
    threads=4..64:4      in steps of 4; both ends are always included
    size=1,10..40:10     lists and ranges together
    mode=eager,compile   text
    stop='a,b',"c d"     quotes protect commas and blanks; a quote in quotes is doubled

The items are numbers if all are written as Python writes numbers (``8``, ``0.5``), and otherwise text
(``1e-3``, ``007``). The program receives them byte for byte as written.

``{batch}`` in the program's arguments and in the values of --env is replaced by the value. Other
braces are kept: JSON, ``{index}``, ``${HOME}``. ``{{batch}}`` gives the text ``{batch}``, as with
xlaunch's --substitute.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from xlaunch.planning import Request
from xtune.errors import SpaceError
from xtune.space.conditions import KEYWORDS
from xtune.space.launch_options import INSTANCES, NCORES, OPTIONS
from xtune.space.parameters import BARE, Parameter, Target, Value

MAX_VALUES = 1000
"""Maximum number of values of one parameter."""

LAUNCHER_WORDS = ("index", "count", "cpus", "ncores", "node")
"""Names that xlaunch itself replaces in braces, see `xlaunch.environment.variables`."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?", re.ASCII)
_ITEM = re.compile(r"""\s*(?:'((?:[^']|'')*)'\s*|"((?:[^"]|"")*)"\s*|([^,]*))""")
_RANGE_BEGUN = re.compile(rf"{_NUMBER}\.\.", re.ASCII)


def parse_parameter(text: str) -> Parameter:
    """Parse ``NAME=VALUES``; the module's docstring has the forms. Raises `SpaceError`."""
    name, equals, listed = text.partition("=")
    if not equals:
        raise SpaceError(
            f"--param {text!r}: write NAME=VALUE,VALUE or NAME=LOW..HIGH, as in batch=1,2,4,8"
        )
    if not _NAME.fullmatch(name) or name in KEYWORDS:
        raise SpaceError(
            f"--param {text!r}: {name!r} cannot be a name; use letters, digits and _, do not begin "
            f"with a digit, and avoid {', '.join(KEYWORDS)}"
        )
    taken = _owner_of(name)
    if taken is not None:
        raise SpaceError(f"--param {text!r}: {name!r} is {taken}; choose another name")
    texts: list[str] = []
    texts_only = False
    for item, is_quoted in _items(text, listed):
        texts_only |= is_quoted
        texts += [item] if is_quoted else _spread(text, item)
        if len(texts) > MAX_VALUES:
            raise SpaceError(f"--param {text!r}: more than {MAX_VALUES} values; give fewer")
    numbers = [] if texts_only else [number for t in texts if (number := _number(t)) is not None]
    ordered = len(numbers) == len(texts)
    values: list[int | float] | list[str] = numbers if ordered else texts
    twice = [texts[at] for at, value in enumerate(values) if value in values[:at]]
    if twice:
        raise SpaceError(f"--param {text!r}: {twice[0]!r} is given twice")
    return Parameter(
        name=name,
        values=tuple(sorted(numbers)) if ordered else tuple(texts),
        default=numbers[0] if ordered else texts[0],
        where=Target.PROGRAM,
        ordered=ordered,
        changes_results=False,
        reason=f"asked for: --param {text}",
    )


def parse_parameters(
    texts: Iterable[str], request: Request, commands: Iterable[str] = ()
) -> tuple[Parameter, ...]:
    """Parse several --param. `commands`: others that may have them, such as that of --measure.

    Raises `SpaceError` for one that is given twice, or that occurs nowhere.
    """
    places = [*request.program.words[1:], *[text for _, text in request.program.env], *commands]
    parameters: list[Parameter] = []
    for text in texts:
        parameter = parse_parameter(text)
        if any(parameter.name == other.name for other in parameters):
            raise SpaceError(
                f"--param {text!r}: {parameter.name!r} is given twice; join the values"
            )
        _require_place(parameter.name, places)
        parameters.append(parameter)
    return tuple(parameters)


def fill(request: Request, values: Mapping[str, Value]) -> Request:
    """`request` with names replaced by values in the program's arguments and --env.

    **Ex.:** ``infer.py --batch-size {batch}`` with ``{"batch": 8}``: ``infer.py --batch-size 8``.
    """
    if not values:
        return request
    words = request.program.words
    words = (*words[:1], *[replace(word, values) for word in words[1:]])
    env = tuple([(name, replace(value, values)) for name, value in request.program.env])
    return request.replace(words=words, env=env)


def replace(text: str, values: Mapping[str, Value]) -> str:
    """Replace each ``{name}`` by its value; ``{{name}}`` gives ``{name}``."""
    if "{" not in text or not values:
        return text

    def replacement(braces: re.Match[str]) -> str:
        opening, name, closing = braces.groups()
        if opening and closing:
            return braces[0][1:-1]
        return f"{opening}{values[name]}{closing}"

    return _braces(values).sub(replacement, text)


def _braces(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\{{(\{{?)({'|'.join(map(re.escape, names))})\}}(\}}?)")


def _owner_of(name: str) -> str | None:
    """What uses a name already; None if it is free."""
    if name in LAUNCHER_WORDS:
        return f"reserved: xlaunch itself replaces {{{name}}}"
    if name in (*OPTIONS, INSTANCES, NCORES):
        return "the name of a launch parameter"
    if name in BARE:
        return "used by the tuner itself"
    return None


def _require_place(name: str, texts: Sequence[str]) -> None:
    if any(not (m[1] and m[3]) for text in texts for m in _braces([name]).finditer(text)):
        return
    written = {word for text in texts for word in re.findall(r"\{(\w+)\}", text)}
    near = difflib.get_close_matches(name, sorted(written - set(LAUNCHER_WORDS)), n=1)
    if near:
        hint = f"there is {{{near[0]}}}"
    else:
        hint = f"write {{{name}}} where the value goes, as in --{name.replace('_', '-')} {{{name}}}"
    raise SpaceError(
        f"--param {name}: {{{name}}} occurs neither in the program's arguments nor in --env, --measure, --prepare,"
        f" --cleanup or --ready; {hint}"
    )


def _items(text: str, listed: str) -> Iterator[tuple[str, bool]]:
    """The items of a list as written, and whether each was in quotes; blanks around them are dropped."""
    at = 0
    while at <= len(listed):
        match = _ITEM.match(listed, at)
        assert match is not None
        single, double, unquoted = match.groups()
        end, at = match.end(), match.end() + 1
        if "\0" in match[0]:
            raise SpaceError(f"--param {text!r}: no argument can hold a null character")
        if unquoted is None:
            if end < len(listed) and listed[end] != ",":
                problem = f"a comma is missing before {listed[end:]!r}; quotes hold a whole value"
                raise SpaceError(f"--param {text!r}: {problem}")
            inside = double.replace('""', '"') if single is None else single.replace("''", "'")
            yield inside, True
        elif unquoted[:1] in ("'", '"'):
            raise SpaceError(
                f"--param {text!r}: the quote in {listed[match.start(3) :]!r} is not closed"
            )
        elif not unquoted.strip():
            raise SpaceError(f"--param {text!r}: a value is empty; for empty text write ''")
        else:
            yield unquoted.rstrip(), False


def _spread(text: str, item: str) -> list[str]:
    """The values of a range as text; anything else is returned itself."""
    match = _RANGE.fullmatch(item)
    if match is None:
        if _RANGE_BEGUN.match(item):
            raise SpaceError(
                f"--param {text!r}: {item!r} is not a range; write LOW..HIGH or LOW..HIGH:STEP, or quotes "
                "around text"
            )
        return [item]
    low, high = Decimal(match[1]), Decimal(match[2])
    step = Decimal(match[3]) if match[3] else None
    if low >= high:
        raise SpaceError(f"--param {text!r}: {item!r} does not ascend; write the lower end first")
    if step is None and low <= 0:
        raise SpaceError(
            f"--param {text!r}: {item!r} doubles its values and cannot begin with {low}; "
            f"write steps: {low}..{high}:{max(1, round(high) // 8)}"
        )
    if step is not None and step <= 0:
        raise SpaceError(f"--param {text!r}: the step of {item!r} must be above 0")
    values = []
    value = low
    while value < high:
        values.append(value)
        if len(values) >= MAX_VALUES:
            raise SpaceError(f"--param {text!r}: more than {MAX_VALUES} values; take larger steps")
        value = value * 2 if step is None else value + step
    return [_written(value) for value in [*values, high]]


def _written(value: Decimal) -> str:
    """The number as Python writes it: ``8``, ``0.5``."""
    return str(int(value)) if value == value.to_integral_value() else str(float(value))


def _number(text: str) -> int | float | None:
    """The number that `text` denotes, if Python writes it the same way."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text and text not in ("nan", "inf", "-inf"):
            return number
    return None
