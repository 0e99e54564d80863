# SPDX-License-Identifier: Apache-2.0
"""Where compilers keep what they compiled: one private folder for each kind of hardware.

Inductor's default lies under /tmp with a name that anybody can guess, and its entries are loaded
as code; Triton's, CUDA's and the others' are spread over the home folder. Cached machine code is
good for one kind of processor only. So all go into one folder that only this user can write, named
for the hardware, which lasts over a reboot and can be measured, pruned and shipped as a whole.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Mapping

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

SWITCHES = (("SYCL_CACHE_PERSISTENT", "1", "SYCL keeps nothing between runs unless told to"),)


def cache_settings(
    asked: str | None, inherited: Mapping[str, str]
) -> tuple[Proposal, ...]:
    """The variables that move every compile cache below one folder.

    `asked`: `--cache-dir`; None: below XDG_CACHE_HOME. Without a home every cache stays where its
    library puts it.
    """
    base = asked or default_folder(inherited)
    if base is None:
        return ()
    folder = os.path.join(os.path.abspath(base), hardware_key())
    reason = "compiled code is kept in one private folder for this hardware"
    moved = [Proposal(name, os.path.join(folder, sub), reason) for name, sub, _ in LOCATIONS]
    return (*moved, *(Proposal(name, value, why) for name, value, why in SWITCHES))


def make_cache_folders(settings: Mapping[str, str], *, asked: bool) -> str | None:
    """Make the folders that `settings` name, for this user only; a warning when that fails.

    With `asked` (`--cache-dir`) a failure is a `UsageError`. Some libraries do not make them.
    """
    for name, _, _ in LOCATIONS:
        path = settings.get(name)
        if path is None:
            continue
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            _refuse_foreign(os.path.dirname(path))
        except OSError as error:
            text = f"{os.path.dirname(path)!r}: {error.strerror or error}"
            if asked:
                raise UsageError(f"--cache-dir: {text}") from None
            return f"compile caches stay at their defaults: {text}"
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


def _refuse_foreign(folder: str) -> None:
    """Raise PermissionError when somebody else could put code into `folder`."""
    if sys.platform == "win32":
        return  # owner and mode say nothing there
    status = os.stat(folder)
    if status.st_uid not in (os.getuid(), 0):
        raise PermissionError(1, "belongs to another user, who could put code into it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(1, "can be written by other users, who could put code into it")
