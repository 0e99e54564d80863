# SPDX-License-Identifier: Apache-2.0
"""Compile caches: one private directory per kind of hardware.

Inductor's default is under /tmp with a predictable name, and its entries are loaded as code; the
caches of Triton, CUDA and others are spread over the home directory. Cached machine code fits one
kind of processor only. So all caches go to one directory that only this user can write, named for
the hardware. It survives a reboot and can be measured, pruned and shipped as a whole.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Mapping

from xlaunch.environment.ownership import inspect_ownership, make_private
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.machine.cpuinfo import parse_cpuinfo
from xlaunch.machine.files import Tree

LOCATIONS = (
    ("TORCHINDUCTOR_CACHE_DIR", "inductor", "torch/_inductor/runtime/cache_dir_utils.py"),
    ("TRITON_CACHE_DIR", "triton", "triton/knobs.py"),
    ("TORCH_EXTENSIONS_DIR", "torch_extensions", "torch/utils/cpp_extension.py"),
    ("SYCL_CACHE_DIR", "sycl", "oneAPI DPC++ environment variables"),
    ("NEO_CACHE_DIR", "neo", "Intel compute-runtime, FAQ: persistent cache"),
    ("CUDA_CACHE_PATH", "cuda", "CUDA C++ programming guide, environment variables"),
    ("NUMBA_CACHE_DIR", "numba", "numba environment variables"),
)
"""Variable, subdirectory, and where the variable is documented."""

NOT_MADE_BY_THEIR_LIBRARY = tuple(row for row in LOCATIONS if row[0] == "NEO_CACHE_DIR")

NAMELESS = (
    "--cache-dir: the directory's name is empty; name a directory, leave the option out for the one below "
    "XDG_CACHE_HOME, or use --no-cache to have none"
)

INTEL = "0x8086"
"""Intel's vendor number on PCI."""

SWITCHES = (("SYCL_CACHE_PERSISTENT", "1", "SYCL keeps nothing between runs unless told to"),)


def cache_settings(
    asked: str | None, inherited: Mapping[str, str], *, make: bool
) -> tuple[tuple[Proposal, ...], str | None]:
    """The variables that move every compile cache below one directory; and a warning, or None.

    `asked`: the value of `--cache-dir`; a failure is then a `UsageError`. None: a directory below
    XDG_CACHE_HOME; a failure is then a warning, and no cache is moved. `make`: create the directory,
    for this user only.
    """
    if asked == "":
        raise UsageError(NAMELESS)
    base = asked or default_directory(inherited)
    if base is None:
        return (), "compile caches stay where they are: there is no home directory"
    directory = os.path.join(os.path.abspath(base), hardware_key())
    refusal = _make(directory) if make else None
    note = None
    if refusal is None and os.path.exists(directory):
        refusal, note = inspect_ownership(directory, named=asked is not None, private=asked is None)
    if refusal is not None:
        if asked is not None:
            raise UsageError(f"--cache-dir {asked}: {refusal}")
        return (), f"compile caches stay where they are: {refusal}"
    reason = "compiled code is kept in one private directory for this hardware"
    option = None if asked is None else f"--cache-dir {asked}"
    moved = [
        Proposal(name, os.path.join(directory, sub), reason, option=option)
        for name, sub, _ in LOCATIONS
    ]
    switches = [Proposal(*row) for row in SWITCHES if has_intel_gpu()]
    return (*moved, *switches), None if note is None else f"--cache-dir {asked}: {note}"


def has_intel_gpu(drm: str = "/sys/class/drm") -> bool:
    """Whether the kernel lists an Intel GPU."""
    try:
        names = [name for name in os.listdir(drm) if name.startswith("renderD")]
    except OSError:
        return False
    for name in names:
        try:
            with open(os.path.join(drm, name, "device", "vendor"), encoding="ascii") as file:
                if file.read().strip() == INTEL:
                    return True
        except (OSError, ValueError):
            continue
    return False


def _make(directory: str) -> str | None:
    """Create a directory and the ones that libraries do not create; the reason if that failed."""
    try:
        make_private(directory)
        for _, sub, _ in NOT_MADE_BY_THEIR_LIBRARY:
            make_private(os.path.join(directory, sub))
    except OSError as error:
        return f"{directory}: {error.strerror}"
    return None


def default_directory(inherited: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch/compiled``; None without a home."""
    home = cache_home(inherited)
    return None if home is None else os.path.join(home, "compiled")


def cache_home(inherited: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch``; None without a home."""
    base = inherited.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification has relative ones ignored
        home = inherited.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "xlaunch")


def hardware_key() -> str:
    """A name for this kind of processor: its architecture and a digest of model and features."""
    if sys.platform == "win32":
        return sys.platform  # nothing to read there
    fields = parse_cpuinfo(Tree("/").read_start("/proc/cpuinfo").split("\n\n", 1)[0])
    identity = sorted((name, value) for name, value in fields.items() if name in _IDENTITY)
    digest = zlib.crc32(repr(identity).encode())
    return f"{os.uname().machine}-{digest:08x}"


_IDENTITY = frozenset(
    (
        *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
        *("isa", "uarch", "cpu", "revision", "machine", "features"),
    )
)
"""Fields of /proc/cpuinfo that identify a kind of processor, on any architecture."""
