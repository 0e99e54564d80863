# SPDX-License-Identifier: Apache-2.0
"""ELF files: read as readelf reads them, and damaged ones are told from whole ones."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.environment.made_up import AARCH64, X86_64, elf_bytes

from xlaunch.environment.elf import ElfError, ElfTarget, read_elf


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_made_up_library_of_each_sort(tmp_path: Path, bits: int, order: str):
    path = tmp_path / "lib.so"
    path.write_bytes(
        elf_bytes(soname="libx.so.2", needed=["liba.so", "libb.so.1"], bits=bits, order=order)
    )
    elf = read_elf(str(path))
    assert (elf.soname, elf.needed, elf.shared) == ("libx.so.2", ("liba.so", "libb.so.1"), True)
    assert (elf.target.bits, elf.target.byte_order) == (bits, order)


def test_program_that_is_not_position_independent_is_not_shared(tmp_path: Path):
    path = tmp_path / "program"
    path.write_bytes(elf_bytes(kind=2))
    assert not read_elf(str(path)).shared


def test_targets_have_names():
    assert str(ElfTarget(64, "<", AARCH64)) == "64-bit AArch64"
    assert str(ElfTarget(32, "<", X86_64)) == "32-bit x86-64"
    assert str(ElfTarget(64, "<", 4711)) == "64-bit machine 4711"


def test_real_libraries_are_read_as_readelf_reads_them(needs):
    readelf = shutil.which("readelf")
    needs(readelf, "readelf (binutils)")
    maps = Path("/proc/self/maps").read_text()
    files = sorted(set(re.findall(r"/\S+\.so[.\d]*$", maps, re.MULTILINE)))
    files = [*files[:40], str(Path(sys.executable).resolve())]
    for path in files:
        told = subprocess.run([readelf, "-dW", path], capture_output=True, text=True, check=True)
        found = dict.fromkeys(re.findall(r"\(NEEDED\)\s+.*\[(.*)\]", told.stdout))
        soname = re.search(r"\(SONAME\)\s+.*\[(.*)\]", told.stdout)
        elf = read_elf(path)
        assert elf.needed == tuple(found), path
        assert elf.soname == (soname[1] if soname else None), path
    assert len(files) > 3


def test_file_that_is_cut_short_is_told_at_every_length(tmp_path: Path):
    content = elf_bytes(soname="libx.so.2", needed=["liba.so"], text=b"more")
    path = tmp_path / "lib.so"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ElfError, match=r"is not an ELF file|is truncated|program headers"):
            read_elf(str(path))
    path.write_bytes(content)
    assert read_elf(str(path)).soname == "libx.so.2"


@pytest.mark.parametrize(
    "text", [b"", b"INPUT(-lx)\n", b"#!/bin/sh\n" * 20, b"\x7fELF" + b"\7" * 90]
)
def test_what_is_no_elf_file(tmp_path: Path, text: bytes):
    path = tmp_path / "lib.so"
    path.write_bytes(text)
    with pytest.raises(ElfError, match=r"is (not )?an ELF file"):
        read_elf(str(path))


def test_what_cannot_be_read(tmp_path: Path):
    with pytest.raises(ElfError, match="No such file"):
        read_elf(str(tmp_path / "absent"))
    with pytest.raises(ElfError, match="directory"):
        read_elf(str(tmp_path))
    with pytest.raises(ElfError, match=r"null (byte|character)"):
        read_elf("a\0b")


@given(
    changes=st.lists(st.tuples(st.integers(0, 260), st.integers(0, 255)), max_size=12),
    bits=st.sampled_from([32, 64]),
    order=st.sampled_from("<>"),
)
def test_damage_is_no_traceback(tmp_path_factory, changes, bits, order):
    content = bytearray(elf_bytes(soname="libx.so", needed=["liba.so"], bits=bits, order=order))
    for position, value in changes:
        content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(content)
    with contextlib.suppress(ElfError):
        read_elf(str(path))
