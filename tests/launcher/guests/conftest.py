# SPDX-License-Identifier: Apache-2.0
"""The guests: each shape is booted once, by the first test that asks for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from tests.launcher.guests.guest import QEMU, Guest, Shape, boot, find_kernel
from tests.launcher.guests.initramfs import write_initramfs
from tests.launcher.guests.shapes import ODD, SERVER

BootShape = Callable[[Shape], AbstractContextManager[Guest]]
MakeGroup = Callable[..., str]


@pytest.fixture(scope="session")
def boot_guest(
    needs: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> BootShape:
    """Boots a guest; skips where QEMU or a kernel is not there."""
    needs(shutil.which(QEMU), f"{QEMU} (Debian: qemu-system-x86)")
    kernel = find_kernel()
    needs(kernel, "a kernel for the guests (tests/launcher/guests/fetch_kernel)")
    initramfs = tmp_path_factory.mktemp("initramfs") / "initramfs.cpio"
    write_initramfs(initramfs)

    def boot_shape(shape: Shape) -> AbstractContextManager[Guest]:
        directory = tmp_path_factory.mktemp("guest")
        return boot(shape, kernel=kernel, initramfs=initramfs, directory=directory)

    return boot_shape


@pytest.fixture(scope="session")
def server(boot_guest: BootShape) -> Iterator[Guest]:
    """A guest of the shape `SERVER`."""
    with boot_guest(SERVER) as guest:
        yield guest


@pytest.fixture(scope="module")
def odd(boot_guest: BootShape) -> Iterator[Guest]:
    """A guest of the shape `ODD`."""
    with boot_guest(ODD) as guest:
        yield guest


@pytest.fixture
def make_group(server: Guest) -> Iterator[MakeGroup]:
    """`Guest.make_group` of the server; the groups are gone after the test."""
    yield server.make_group
    server.remove_groups()
