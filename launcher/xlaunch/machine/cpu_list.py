# SPDX-License-Identifier: Apache-2.0
"""CPU lists in the format of the kernel, taskset and numactl: ``0-3,8,16-30:2``."""

from __future__ import annotations

from collections.abc import Iterable

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs

MAX_NUMBER = 1 << 20
"""No kernel has CPU or node numbers this large; a larger number is a typing error."""


def parse_cpu_list(text: str, *, what: str = "CPU list", below: int = MAX_NUMBER) -> CPUs:
    """The numbers that `text` names, ascending, each once. An empty text names none.

    Ranges may have a stride. **Ex.:** ``"0-2,8-14:3"`` is ``(0, 1, 2, 8, 11, 14)``. Numbers must be
    less than `below`. No more than `MAX_NUMBER` are listed before repeated ones are dropped.
    Raises `UsageError`, which begins with `what`, for anything else.
    """
    numbers: set[int] = set()
    listed = 0
    text = text.strip()
    if not text:
        return ()
    beginning = f"{what}: " if what else ""
    for part in text.split(","):
        interval, _, stride = part.strip().partition(":")
        first, dash, last = interval.partition("-")
        bounds = [first, last] if dash else [first]
        if stride or part.endswith(":"):
            bounds.append(stride)
        if not all(bound.isascii() and bound.isdigit() for bound in bounds):
            raise UsageError(
                f"{beginning}cannot read {_quoted(part, text)}; "
                "write numbers and ranges such as 0-3,8 or 0-30:2"
            )
        low = read_digits(first)
        high = read_digits(last) if dash else low
        step = read_digits(stride) if stride else 1
        if high < low or step == 0 or high >= below:
            reason = (
                "runs backwards"
                if high < low
                else "has a stride of 0"
                if step == 0
                else f"is too large: at most {below - 1}"
            )
            raise UsageError(f"{beginning}{_quoted(part, text)} {reason}")
        interval_numbers = range(low, high + 1, step)
        listed += len(interval_numbers)
        if listed > MAX_NUMBER:
            raise UsageError(f"{beginning}names more than {MAX_NUMBER} numbers; list each once")
        numbers.update(interval_numbers)
    return tuple(sorted(numbers))


def _quoted(part: str, text: str) -> str:
    """A part of a list, and the list where it has more. **Ex.:** ``'a' in '1,a'``."""
    return repr(part) if part == text else f"{part!r} in {text!r}"


def read_digits(digits: str) -> int:
    """The number in `digits`; any number above `MAX_NUMBER` becomes `MAX_NUMBER` + 1.

    Python refuses to convert thousands of digits.
    """
    digits = digits.lstrip("0") or "0"
    longest = len(str(MAX_NUMBER))
    return min(int(digits), MAX_NUMBER + 1) if len(digits) <= longest else MAX_NUMBER + 1


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest list of numbers and ranges. **Ex.:** ``(0, 1, 2, 8)`` is ``"0-2,8"``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join([f"{low}" if low == high else f"{low}-{high}" for low, high in ranges])


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """The noun with its list. **Ex.:** ``CPU 2``, ``CPUs 0-3``, ``CPU -`` for an empty list."""
    distinct = set(numbers)
    return f"{noun}{'s' if len(distinct) > 1 else ''} {format_cpu_list(distinct) or '-'}"
