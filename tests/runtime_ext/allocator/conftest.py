# SPDX-License-Identifier: Apache-2.0
"""The allocators that tests run under: those that this system has, by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from tests.libraries import find_library
from tests.runtime_ext.conftest import Needs

from xlaunch.machine.sysfs import glibc_version


@pytest.fixture
def library(needs: Needs) -> Callable[[str], str | None]:
    """`library(name)`: what to preload for that allocator; None for glibc's own."""

    def find(name: str) -> str | None:
        if name == "glibc":
            needs(glibc_version(), "glibc")
            return None
        found = find_library(name, sys.prefix, os.environ)
        needs(found, f"the library of {name}")
        return found.path

    return find


@pytest.fixture
def jemalloc(library: Callable[[str], str | None]) -> str | None:
    return library("jemalloc")


@pytest.fixture
def tcmalloc(library: Callable[[str], str | None]) -> str | None:
    return library("tcmalloc")


@pytest.fixture
def mimalloc(library: Callable[[str], str | None]) -> str | None:
    return library("mimalloc")


@pytest.fixture
def glibc(library: Callable[[str], str | None]) -> None:
    library("glibc")
