# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of operators: inputs, and results in fp64 from plain numpy, in one file for C++ programs.

An operator `NAME` adds `tests/kernels/recorded/ops/NAME.py` with a function ``cases()``, and
`tests/kernels/programs/recorded/NAME.cpp`, which calls the operator. Nothing else lists them.

A file is a sequence of records, little-endian. A text is its length in one byte and its characters.

====  ==========================================================================================
kind  content
====  ==========================================================================================
c     a case begins: name
n     number: name, fp64
a     array: name, numpy's name of the type, count as int64, elements
e     expectation: name of an array after the call, rtol and atol as fp64, then as in an array
====  ==========================================================================================
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

OPERATORS = Path(__file__).parent / "ops"


class Expectation(NamedTuple):
    """What an array holds after the call: ``|actual - wanted| <= atol + rtol |wanted|``."""

    wanted: Array
    rtol: float = 0
    atol: float = 0


class Case(NamedTuple):
    """One call of an operator, and its results by another way than the library's."""

    name: str
    """The runner in C++, then what tells the case from its others. **Ex.:** ``adam/split/bf16``"""
    numbers: dict[str, float]
    arrays: dict[str, Array]
    """Of any number of dimensions, written in C's order. A type of uint16 stands for bf16."""
    expectations: dict[str, Expectation]


def to_bf16(values: Array) -> Array:
    """The bits of bf16 as uint16: of finite values, rounded to nearest, ties to even."""
    bits = values.astype("<f4").view("<u4")
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded


def from_bf16(bits: Array) -> Array:
    """The values in fp64."""
    return (bits.astype("<u4") << 16).view("<f4").astype("<f8")


ROUNDING = {"fp32": 2e-6, "bf16": 2**-8, "fp16": 2**-11}
"""Relative error of a sum in fp32, or of one rounding to the type."""


def stored(values: Array, as_type: str) -> Array:
    """Values as one of the types of `ROUNDING`."""
    if as_type == "bf16":
        return to_bf16(values)
    return values.astype("<f4" if as_type == "fp32" else "<f2")


def values_of(array: Array) -> Array:
    """The values of a stored array in fp64."""
    return from_bf16(array) if array.dtype == np.uint16 else array.astype("<f8")


def split(values: Array) -> tuple[Array, Array]:
    """The upper halves of fp32 values, rounded to nearest, and the signed remainders."""
    bits = values.view("<u4")
    return ((bits + 0x8000) >> 16).astype("<u2"), (bits & 0xFFFF).astype("<u2").view("<i2")


def join(halves: Array, remainders: Array) -> Array:
    """The fp32 values. A remainder that makes a NaN of a number is of another value, and ignored."""
    upper = halves.astype("<u4") << 16
    bits = upper + remainders.astype("<i4").view("<u4")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    joined: Array = np.where(nan, upper, bits).astype("<u4").view("<f4")
    return joined


def every_case() -> Iterator[Case]:
    """The cases of all operators that have a file in `ops`."""
    for path in sorted(OPERATORS.glob("*.py")):
        yield from importlib.import_module(f"tests.kernels.recorded.ops.{path.stem}").cases()


def write_cases(path: Path) -> int:
    """Write every case to a file; return their number."""
    written = 0
    with path.open("wb") as file:
        for case in every_case():
            file.write(b"c" + _text(case.name))
            for name, number in case.numbers.items():
                file.write(b"n" + _text(name) + struct.pack("<d", number))
            for name, array in case.arrays.items():
                file.write(b"a" + _text(name) + _array(array))
            for name, (wanted, rtol, atol) in case.expectations.items():
                file.write(b"e" + _text(name) + struct.pack("<dd", rtol, atol) + _array(wanted))
            written += 1
    return written


def _text(value: str) -> bytes:
    return struct.pack("B", len(value)) + value.encode("ascii")


def _array(array: Array) -> bytes:
    little = array.astype(array.dtype.newbyteorder("<"))
    return _text(little.dtype.str) + struct.pack("<q", little.size) + little.tobytes()
