# SPDX-License-Identifier: Apache-2.0
"""A guest's whole file system as an initramfs: this Python, the working tree's xlaunch, an init.

The archive is in the format that the kernel unpacks at boot, "newc" of cpio(5). Every file lies
where it lies here, so that the interpreter finds its library; nothing else of this machine is in it.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

import xlaunch

INSIDE = Path(__file__).with_name("inside")
PYTHON = os.path.realpath(sys.executable)
PACKAGES = "/packages"
PROGRAMS = "/programs"
LEFT_OUT = re.compile(
    r"test|tests|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data|config-.*|\w+-packages"
)
"""Directories of the standard library that no launcher needs."""


def write_initramfs(path: Path) -> None:
    """Write the archive to `path`; some 50 MB."""
    files = dict(_interpreter())
    for package in (xlaunch, click):
        directory = Path(package.__file__).parent
        files.update(_tree(directory, f"{PACKAGES}/{directory.name}"))
    files.update(_tree(INSIDE, PROGRAMS))
    with path.open("wb") as stream:
        archive = _Archive(stream)
        for name, source in files.items():
            archive.add_file(name, source.read_bytes(), source.stat())
        init = f"#!{PYTHON}\n{(INSIDE / 'init.py').read_text()}"
        archive.add("/init", stat.S_IFREG | 0o755, init.encode())
        for name in ("/proc", "/sys", "/dev", "/tmp"):
            archive.add(name, stat.S_IFDIR | 0o755)
        archive.close()


def _interpreter() -> Iterator[tuple[str, Path]]:
    """The running Python: its executable, its standard library, and the libraries they load."""
    library = Path(os.path.realpath(sysconfig.get_path("stdlib")))
    extensions = [str(path) for path in library.glob("lib-dynload/*.so")]
    command = ["ldd", PYTHON, *extensions]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    yield PYTHON, Path(PYTHON)
    yield from _tree(library, str(library))
    for name in set(re.findall(r"(/\S+) \(0x", listed)):
        yield name, Path(name)
    if (cache := Path("/etc/ld.so.cache")).exists():
        yield str(cache), cache


def _tree(directory: Path, name: str) -> Iterator[tuple[str, Path]]:
    """The files of `directory`, with their names under `name`; compiled ones of this Python only."""
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not LEFT_OUT.fullmatch(name)]
        for file in files:
            path = Path(parent, file)
            if path.suffix != ".pyc" or path.name.endswith(f".{sys.implementation.cache_tag}.pyc"):
                yield f"{name}/{path.relative_to(directory)}", path


class _Archive:
    """Writes a cpio archive; directories come by themselves, before what they hold."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._names: set[str] = set()

    def add_file(self, name: str, data: bytes, status: os.stat_result) -> None:
        # Python takes a compiled module only while its source has the time it was compiled from.
        self.add(name, status.st_mode, data, time_s=int(status.st_mtime))

    def add(self, name: str, mode: int, data: bytes = b"", *, time_s: int = 0) -> None:
        parent = os.path.dirname(name)
        if parent not in ("", "/") and parent not in self._names:
            self.add(parent, stat.S_IFDIR | 0o755)
        if name in self._names:
            return
        self._names.add(name)
        self._write(name.lstrip("/"), mode, data, time_s)

    def close(self) -> None:
        self._write("TRAILER!!!", 0, b"", 0)

    def _write(self, name: str, mode: int, data: bytes, time_s: int) -> None:
        encoded = name.encode() + b"\0"
        fields = (len(self._names), mode, 0, 0, 1, time_s, len(data), 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (header + encoded, data):
            self._stream.write(part + b"\0" * (-len(part) % 4))
