# SPDX-License-Identifier: Apache-2.0
"""Guests of any shape: boot one under QEMU, run xlaunch in it, read and write its files.

    with boot(SERVER, kernel=..., initramfs=..., directory=...) as guest:
        guest.xlaunch("plan", "--mode", "throughput", "--json").json()

The guest's kernel writes to the first serial line (a file, for whoever looks into a failure); the
second one carries requests and answers, see inside/init.py. There is no disk and no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.launcher.guests.initramfs import PACKAGES, PYTHON

QEMU = "qemu-system-x86_64"
BOOT_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0
LIFETIME_S = 1800
"""QEMU is ended after this time, even if nobody is left to end it."""
GROUPS = "/sys/fs/cgroup"
USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
"""Looked up when this is imported: tests have a cache of their own, without the kernel."""


class Shape(NamedTuple):
    """A machine for QEMU to make up."""

    options: tuple[str, ...]
    """QEMU's, for processors, memory and NUMA nodes."""
    kernel: str = ""
    """More of the kernel's command line. **Ex.:** ``"isolcpus=3"``."""


class Outcome(NamedTuple):
    """A program that ended in a guest."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Standard output as one JSON text."""
        return json.loads(self.stdout)

    def json_lines(self) -> list[Any]:
        """Standard output as one JSON text a line, in any order."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class GuestError(Exception):
    """A guest that did not answer, or that could not do what was asked."""


class Guest:
    """A running guest."""

    def __init__(self, process: subprocess.Popen[bytes], console: Path) -> None:
        self._process = process
        self._console = console
        self._pending = b""
        self._groups: list[str] = []
        self._receive(BOOT_TIMEOUT_S)

    def xlaunch(self, *arguments: str, check: bool = True, group: str = "") -> Outcome:
        """Run ``xlaunch ARGUMENTS``; see `python`."""
        return self.python("-m", "xlaunch", *arguments, check=check, group=group)

    def python(self, *arguments: str, check: bool = True, group: str = "") -> Outcome:
        """Run Python, in the control group whose directory is `group`; with `check` it must succeed."""
        answer = self._ask(
            run=[PYTHON, *arguments],
            env={"PYTHONPATH": PACKAGES, "PATH": "/bin", "HOME": "/tmp"},
            group=group,
            timeout_s=ANSWER_TIMEOUT_S - 10,
        )
        outcome = Outcome(**answer)
        if check and outcome.code:
            raise GuestError(f"{arguments} ended with {outcome.code}:\n{outcome.stderr}")
        return outcome

    def machine(self, group: str = "") -> dict[str, Any]:
        """What ``xlaunch topology --json`` says."""
        return self.xlaunch("topology", "--json", group=group).json()

    def plan(self, *options: str, group: str = "") -> dict[str, Any]:
        """What ``xlaunch plan OPTIONS --json`` says."""
        return self.xlaunch("plan", *options, "--json", group=group).json()

    def read(self, path: str) -> str:
        """The text of a file of the guest."""
        return self._ask(read=path)["text"]

    def write(self, path: str, text: str) -> None:
        """Write a file of the guest, such as one of /sys."""
        self._ask(write=path, text=text)

    def make_group(self, name: str, **settings: str) -> str:
        """Make a control group with what it needs above it; returns its directory.

        **Ex.:** ``make_group("job/step", cpu_max="50000 100000")``
        """
        directory = GROUPS
        for part in name.split("/"):
            self.write(f"{directory}/cgroup.subtree_control", "+cpuset +cpu +memory")
            directory += f"/{part}"
            self.make_directory(directory)
            self._groups.append(directory)
        for key, value in settings.items():
            self.write(f"{directory}/{key.replace('_', '.', 1)}", value)
        return directory

    def remove_groups(self) -> None:
        """Remove all groups that were made, with whoever is in them."""
        while self._groups:
            directory = self._groups.pop()
            self.write(f"{directory}/cgroup.kill", "1")
            while "populated 1" in self.read(f"{directory}/cgroup.events"):
                pass  # each answer takes its time
            self._ask(remove=directory)

    def make_directory(self, path: str) -> None:
        """Make a directory, if it is not there."""
        self._ask(make=path)

    def mount(self, kind: str, directory: str, options: str) -> None:
        """Mount a file system that needs no device."""
        self._ask(mount=kind, directory=directory, options=options)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        answer = self._receive(ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise GuestError(f"{request}: {answer['error']}")
        return answer

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            ready = select.select([descriptor], [], [], left)[0]
            data = os.read(descriptor, 1 << 16) if ready else b""
            if not data:
                what = "the guest ended" if ready else f"no answer within {timeout_s:g} s"
                end = self._console.read_text(errors="replace")[-3000:]
                self._process.terminate()  # a late answer would be taken for the next one
                raise GuestError(f"{what}; the end of {self._console}:\n{end}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)


@contextlib.contextmanager
def boot(shape: Shape, *, kernel: Path, initramfs: Path, directory: Path) -> Iterator[Guest]:
    """A guest of that shape, gone at the end of the block. `directory` gets what its kernel says."""
    console = directory / "console.log"
    command = (
        *("timeout", "--kill-after=5", str(LIFETIME_S)),
        *(QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", f"q35,accel={accelerator()}", *shape.options),
        # A model of its own, so that guests are the same on every host; the level makes QEMU tell
        # of dies.
        *("-cpu", "Haswell-noTSX,level=0x1f"),
        *("-serial", f"file:{console}"),
        *("-chardev", "stdio,id=requests,signal=off", "-serial", "chardev:requests"),
        *("-kernel", str(kernel), "-initrd", str(initramfs)),
        # While only the first CPU is up, all files are unpacked into the memory of its node.
        *("-append", f"console=ttyS0 panic=-1 maxcpus=1 {shape.kernel}"),
    )
    with (directory / "qemu.log").open("wb") as errors:
        process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    with process:
        try:
            yield Guest(process, console)
        finally:
            process.terminate()  # `timeout` passes it on


def numa_nodes(sizes_mib: Sequence[int], distances: Sequence[Sequence[int]] = ()) -> list[str]:
    """QEMU's options for nodes of that memory (0: none), at those distances from each other."""
    options = ["-m", str(sum(sizes_mib))]
    for node, size in enumerate(sizes_mib):
        memory = f",memdev=memory{node}" if size else ""
        if size:
            options += ["-object", f"memory-backend-ram,id=memory{node},size={size}M"]
        options += ["-numa", f"node,nodeid={node}{memory}"]
    for source, row in enumerate(distances):
        for target, distance in enumerate(row):
            options += ["-numa", f"dist,src={source},dst={target},val={distance}"]
    return options


def accelerator() -> str:
    """``kvm`` where this user may use it and the processor does the work, else ``tcg``.

    A KVM that works without the processor's help runs kernels that were made for it, and no others.
    """
    by_processor = any(Path(f"/sys/module/kvm_{name}").exists() for name in ("intel", "amd"))
    return "kvm" if by_processor and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def find_kernel() -> Path | None:
    """The kernel that $XLAUNCH_GUEST_KERNEL names, or the latest that fetch_kernel has fetched."""
    if named := os.environ.get("XLAUNCH_GUEST_KERNEL"):
        return Path(named)
    fetched = USER_CACHE.glob("xlaunch/guests/boot/vmlinuz-*")
    return max(fetched, key=lambda path: path.stat().st_mtime, default=None)
