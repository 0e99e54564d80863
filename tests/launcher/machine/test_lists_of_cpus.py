# SPDX-License-Identifier: Apache-2.0
"""CPU lists of users, and lists and masks of the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlaunch.errors import UsageError
from xlaunch.machine.tree import parse_list, parse_mask
from xlaunch.text import format_cpu_list, parse_cpu_list

some_cpus = st.sets(st.integers(0, 5000), max_size=200)


@given(some_cpus)
def test_format_and_parse_are_inverse(cpus: set[int]) -> None:
    text = format_cpu_list(cpus)
    assert parse_cpu_list(text) == tuple(sorted(cpus))
    assert parse_list(text) == tuple(sorted(cpus))


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 20))
def test_strides(low: int, length: int, step: int) -> None:
    text = f"{low}-{low + length}:{step}"
    assert parse_cpu_list(text) == tuple(range(low, low + length + 1, step))


@given(some_cpus, st.integers(0, 5))
def test_masks_as_the_kernel_prints_them(cpus: set[int], padding: int) -> None:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8 + 8 * padding)
    words = [digits[i : i + 8] for i in range(0, len(digits), 8)]
    assert parse_mask(",".join(words)) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("3", (0, 1)), ("0", ()), ("fffff", tuple(range(20))), ("0,00000f00", (8, 9, 10, 11)),
        ("1,00000000", (32,)), ("", ()), ("zz", ()),
    ],
)  # fmt: skip
def test_masks_of_any_width(mask: str, cpus: tuple[int, ...]) -> None:
    assert parse_mask(mask) == cpus


def test_the_kernels_strides_take_some_of_every_so_many() -> None:
    assert parse_list("0-9:2/4,20") == (0, 1, 4, 5, 8, 9, 20)
    assert parse_list("nonsense,3,-") == (3,)


@pytest.mark.parametrize("text", ["0-9999999", "9999999", "9" * 5000, "0-3:1/" + "9" * 5000 + ",x"])
def test_numbers_that_no_kernel_has_are_left_out(text: str) -> None:
    assert parse_list(f"{text},5") in ((5,), (0, 1, 2, 3, 5))
    assert parse_mask("f" * 100_000) == ()


@pytest.mark.parametrize(
    "text", ["0-", "-3", "a", "0..3", "3-1", "0-4:0", "1,,2", "0-3:", "99999999", "²"]
)
def test_a_users_bad_list_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--cpus: ") as caught:
        parse_cpu_list(text, what="--cpus")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("abc", "cannot read 'abc'; write"),
        ("1,abc", "cannot read 'abc' in '1,abc'; write"),
        ("3-1", "'3-1' runs backwards"),
    ],
)
def test_the_part_of_a_list_is_named_once(text: str, beginning: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cpu_list(text, what="")
    assert str(caught.value).startswith(beginning)


@pytest.mark.parametrize(
    ("text", "below", "problem"),
    [
        ("0-7,8", 8, "'8' in '0-7,8' is too large: at most 7"),
        ("0-1048575", 8, "'0-1048575' is too large: at most 7"),
        ("0-1048575," * 5000 + "0", 1 << 20, "names more than 1048576 numbers; list each once"),
    ],
)
def test_numbers_are_counted_before_they_are_listed(text: str, below: int, problem: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_cpu_list(text, what="", below=below)
    assert str(error.value) == problem
