# SPDX-License-Identifier: Apache-2.0
"""The dynamic loader's cache: read as ldconfig prints it; half a cache is not believed."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlaunch.environment.loader_cache import (
    PATH,
    CachedLibrary,
    parse_loader_cache,
    read_loader_cache,
)

ENTRIES = [("libx.so.1", "/usr/lib/libx.so.1"), ("liby.so.2", "/opt/y/liby.so.2")]


def new_cache(entries=ENTRIES, *, hwcaps=(), order: str = "<", flags: int | None = None) -> bytes:
    """A cache as glibc writes it since 2.32."""
    table, strings = b"", b""
    base = 48 + 24 * len(entries)
    for index, words in enumerate(entries):
        offsets = []
        for word in words:
            offsets.append(base + len(strings))
            strings += word.encode() + b"\0"
        hwcap = hwcaps[index] if hwcaps else 0
        table += struct.pack(f"{order}iIIIQ", 0x303, *offsets, 0, hwcap)
    endian = {"<": 2, ">": 3}[order] if flags is None else flags
    header = b"glibc-ld.so.cache1.1" + struct.pack(
        f"{order}IIB3x4I", len(entries), len(strings), endian, 0, 0, 0, 0
    )
    return header + table + strings


def old_cache(entries=ENTRIES, *, behind: bytes = b"") -> bytes:
    """The table of libc5's days; `behind` it comes the one that counts."""
    table, strings = b"", b""
    for words in entries:
        offsets = []
        for word in words:
            offsets.append(len(strings))
            strings += word.encode() + b"\0"
        table += struct.pack("=iII", 3, *offsets)
    content = b"ld.so-1.7.0\0" + struct.pack("=I", len(entries)) + table
    if behind:
        return content + bytes(-len(content) % 8) + behind
    return content + strings


@pytest.mark.parametrize(
    "content",
    [
        new_cache(),
        new_cache(order=">"),
        new_cache() + b"extensions, which are left alone",
        old_cache(),
        old_cache(behind=new_cache()),
        old_cache([("libold.so", "/libold.so")] * 3, behind=new_cache()),
    ],
)
def test_each_format(content: bytes):
    assert parse_loader_cache(content) == tuple(CachedLibrary(*entry) for entry in ENTRIES)


def test_byte_order_is_the_machine_s_where_the_cache_does_not_say():
    native = "<" if struct.pack("=H", 1)[0] else ">"
    assert len(parse_loader_cache(new_cache(order=native, flags=0))) == 2


def test_builds_for_newer_processors_are_left_out():
    (found,) = parse_loader_cache(new_cache(hwcaps=(1 << 62 | 1, 0)))
    assert found.name == "liby.so.2"


def test_path_that_is_not_absolute_is_left_out():
    assert parse_loader_cache(new_cache([("libx.so", "libx.so"), ("", "/x")])) == ()


@pytest.mark.parametrize("whole", [new_cache(), old_cache(behind=new_cache())])
def test_half_a_cache_is_none(whole: bytes):
    for length in range(len(whole)):
        assert parse_loader_cache(whole[:length]) == ()


def test_real_cache_is_read_as_ldconfig_prints_it(needs):
    ldconfig = shutil.which("ldconfig", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    needs(ldconfig and os.path.exists(PATH), "ldconfig and its cache")
    told = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in told.splitlines() if " => " in line and "hwcap" not in line]
    expected = [CachedLibrary(*re.findall(r"^\s(\S+) .* => (.*)$", line)[0]) for line in lines]
    assert list(read_loader_cache()) == expected
    assert expected


def test_absent_cache_has_no_entries(tmp_path):
    assert read_loader_cache(str(tmp_path / "absent")) == ()
    assert read_loader_cache(str(tmp_path)) == ()


@given(st.binary(max_size=300))
def test_junk_is_no_traceback(junk: bytes):
    for beginning in (b"", b"glibc-ld.so.cache1.1", b"ld.so-1.7.0\0"):
        for found in parse_loader_cache(beginning + junk):
            assert found.name
            assert found.path.startswith("/")


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=20), st.booleans())
def test_damage_is_no_traceback(changes, both: bool):
    content = bytearray(old_cache(behind=new_cache()) if both else new_cache())
    for position, value in changes:
        content[position % len(content)] = value
    for found in parse_loader_cache(bytes(content)):
        assert found.path.startswith("/")
