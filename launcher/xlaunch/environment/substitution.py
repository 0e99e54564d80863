# SPDX-License-Identifier: Apache-2.0
"""Replace braces in arguments and variables by an instance's own numbers.

``{index}``, ``{count}``, ``{cpus}``, ``{ncores}``, ``{node}``, and sums and products of whole numbers
with them: ``{8000+2*index}``. Anything else in braces stays as it is, JSON and ``${HOME}`` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xlaunch.environment.program import Program
from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import ProgramRequest

MAX_DIGITS = 18
"""Longer numbers in braces are left alone."""

MAX_TERMS = 10

_TERM = rf"(?:[0-9]{{1,{MAX_DIGITS}}}|[a-z]+)"
# Doubled braces are an escape: {{index}} stands for the text {index}.
_BRACES = rf"\{{(\{{?)({_TERM}(?:[-+*]{_TERM}){{0,{MAX_TERMS - 1}}})\}}(\}}?)"


def words_of(plan: Plan, instance: Instance) -> dict[str, str]:
    """The names that may be in braces, and the text of each for `instance`.

    **Ex.:** ``{"index": "1", "count": "4", "cpus": "4-7", "ncores": "4", "node": "0"}``
    """
    return {
        "index": str(instance.index),
        "count": str(plan.count),
        "cpus": format_cpu_list(instance.cpus),
        "ncores": str(instance.ncores),
        "node": format_cpu_list(instance.nodes),
    }


def own_variables(request: ProgramRequest, plan: Plan, instance: Instance) -> dict[str, str]:
    """The variables of `--env`, substituted for `instance`. Raises what `substitute` raises."""
    words = words_of(plan, instance)
    return {name: _named(f"--env {name}", value, words) for name, value in request.env}


def own_program(
    program: Program, request: ProgramRequest, plan: Plan, instance: Instance
) -> Program:
    """Substitute in the program's arguments for `instance`. Raises what `substitute` raises."""
    written = len(request.words) - 1
    if not request.substitute or not written:
        return program
    words = words_of(plan, instance)
    arguments = [_named("--substitute", text, words) for text in program.argv[-written:]]
    return program._replace(argv=(*program.argv[:-written], *arguments))


def substitute(text: str, words: Mapping[str, str]) -> str:
    """Replace the braces in `text` whose names are in `words`.

    Braces that name nothing known, or no name at all (``{3}``), are left alone; ``{{index}}`` gives
    ``{index}``. Raises `UsageError` for a sum with a list: ``{cpus+1}``.
    """
    if "{" not in text:
        return text

    def replace(found: re.Match[str]) -> str:
        opening, expression, closing = found.groups()
        names = re.findall("[a-z]+", expression)
        if not names or any(name not in words for name in names):
            return found[0]
        if opening and closing:
            return found[0][1:-1]
        return f"{opening}{_value(expression, words)}{closing}"

    return re.sub(_BRACES, replace, text)


def _named(option: str, text: str, words: Mapping[str, str]) -> str:
    try:
        return substitute(text, words)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _value(expression: str, words: Mapping[str, str]) -> str:
    if expression in words:
        return words[expression]
    total = 0
    for sign, product in re.findall("([-+]?)([^-+]+)", expression):
        value = 1
        for factor in product.split("*"):
            value *= _number(factor, expression, words)
        total += -value if sign == "-" else value
    return str(total)


def _number(factor: str, expression: str, words: Mapping[str, str]) -> int:
    text = words.get(factor, factor)
    if not text.isdigit():
        raise UsageError(
            f"{{{expression}}}: {factor} is {text or 'empty'!r} here, which is no number to "
            f"calculate with; write {{{factor}}} alone"
        )
    return int(text)
