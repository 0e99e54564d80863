# SPDX-License-Identifier: Apache-2.0
"""Where compilers keep what they compiled: one private folder for each kind of hardware.

Inductor's default lies under /tmp with a name that anybody can guess, and its entries are loaded
as code; Triton's, CUDA's and the others' are spread over the home folder. Cached machine code is
good for one kind of processor only. So all go into one folder that only this user can write, named
for the hardware, which lasts over a reboot and can be measured, pruned and shipped as a whole.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Mapping

from xlaunch.environment.ownership import writable_by_others
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError

LOCATIONS = (
    ("TORCHINDUCTOR_CACHE_DIR", "inductor", "torch/_inductor/runtime/cache_dir_utils.py"),
    ("TRITON_CACHE_DIR", "triton", "triton/knobs.py"),
    ("TORCH_EXTENSIONS_DIR", "torch_extensions", "torch/utils/cpp_extension.py"),
    ("SYCL_CACHE_DIR", "sycl", "oneAPI DPC++ environment variables"),
    ("NEO_CACHE_DIR", "neo", "Intel compute-runtime, FAQ: persistent cache"),
    ("CUDA_CACHE_PATH", "cuda", "CUDA C++ programming guide, environment variables"),
    ("NUMBA_CACHE_DIR", "numba", "numba environment variables"),
)
"""Variable, its folder below ours, and where the variable is described."""

NOT_MADE_BY_THEIR_LIBRARY = tuple(row for row in LOCATIONS if row[0] == "NEO_CACHE_DIR")

NAMELESS = (
    "--cache-dir: the folder's name is empty; name a folder, leave the option out for the one below "
    "XDG_CACHE_HOME, or use --no-cache to have none"
)

SWITCHES = (("SYCL_CACHE_PERSISTENT", "1", "SYCL keeps nothing between runs unless told to"),)


def cache_settings(
    asked: str | None, inherited: Mapping[str, str], *, make: bool
) -> tuple[tuple[Proposal, ...], str | None]:
    """The variables that move every compile cache below one folder, or a warning why none is moved.

    `asked`: `--cache-dir`, for which a failure is a `UsageError`; None: below XDG_CACHE_HOME.
    `make`: make the folder, for this user only.
    """
    if asked == "":
        raise UsageError(NAMELESS)
    base = asked or default_folder(inherited)
    if base is None:
        return (), "compile caches stay where they are: there is no home folder"
    folder = os.path.join(os.path.abspath(base), hardware_key())
    refusal = _make(folder) if make else None
    if refusal is None and os.path.exists(folder):
        refusal = writable_by_others(folder)
    if refusal is not None:
        if asked is not None:
            raise UsageError(f"--cache-dir {asked}: {refusal}")
        return (), f"compile caches stay where they are: {refusal}"
    reason = "compiled code is kept in one private folder for this hardware"
    moved = [Proposal(name, os.path.join(folder, sub), reason) for name, sub, _ in LOCATIONS]
    return (*moved, *(Proposal(name, value, why) for name, value, why in SWITCHES)), None


def _make(folder: str) -> str | None:
    """Make a folder and those that libraries do not make themselves; why that failed."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for _, sub, _ in NOT_MADE_BY_THEIR_LIBRARY:
            os.makedirs(os.path.join(folder, sub), mode=0o700, exist_ok=True)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


def default_folder(inherited: Mapping[str, str]) -> str | None:
    """**Ex.:** ``~/.cache/xlaunch/compiled``; None without a home."""
    home = inherited.get("HOME")
    base = inherited.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else None)
    return os.path.join(base, "xlaunch", "compiled") if base else None


def hardware_key() -> str:
    """A name for this kind of processor: architecture, and a digest of model and features."""
    if sys.platform == "win32":
        return sys.platform  # nothing to read there
    identity: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            # The first page holds the first CPU; the file of a large machine takes milliseconds.
            text = file.read(4096).decode("ascii", "replace")
    except OSError:
        text = ""
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _IDENTITY:
            identity[name.strip()] = value.strip()
    digest = zlib.crc32(repr(sorted(identity.items())).encode())
    return f"{os.uname().machine}-{digest:08x}"


_IDENTITY = frozenset(
    (
        *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
        *("isa", "uarch", "cpu", "revision", "machine", "features"),
    )
)
"""Lines of /proc/cpuinfo that tell kinds of processors apart, over the architectures."""
