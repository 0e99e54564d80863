# SPDX-License-Identifier: Apache-2.0
"""Children that ask about the allocator that serves them: one is chosen before a process starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

MIB = 1 << 20

# Blocks by the malloc that serves the process, every page written; `mib(n)` holds n MiB in one block.
PRELUDE = """
import ctypes, json, sys, threading
from xruntime import allocator
from xruntime import errors
from xruntime.allocator.memory import exact_resident

MIB = 1 << 20
program = ctypes.CDLL(None)
malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("malloc", program))
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", program))

def block(size):
    address = malloc(size)
    assert address, f"malloc({size})"
    ctypes.memset(address, 1, size)
    return address

def refusal(call, *arguments, **named):
    try:
        value = call(*arguments, **named)
    except errors.AllocatorError as error:
        return [type(error).__name__, str(error)]
    raise AssertionError(f"{arguments} was taken: {value!r}")

def in_thread(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    (result,) = results  # an exception in the thread leaves none
    return result

def tell(**answer):
    print(json.dumps(answer))

heap = allocator.current()
"""

_STEERING = ("LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES", "MIMALLOC_", "TCMALLOC_", "XLAUNCH_")


def clean_environment(**variables: str) -> dict[str, str]:
    """This environment without whatever chooses or steers an allocator, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING)}
    return kept | variables


def run(
    command: list[str], library: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command's end, under `library`'s malloc; None: under the C library's own."""
    if library is not None:
        variables["LD_PRELOAD"] = library
    return subprocess.run(
        command,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def assert_refused(cases: list[tuple[Any, ...]], refused: list[list[str]]) -> None:
    """Each refusal has the error and the words that end its case, in one line."""
    for (*call, error, words), (name, text) in zip(cases, refused, strict=True):
        assert name == error, (call, text)
        assert words in text
        assert "\n" not in text


def ask(
    code: str, library: str | None = None, *, python: str = sys.executable, **variables: str
) -> dict[str, Any]:
    """What `code`, run after `PRELUDE` in a child under `library`, hands to `tell`."""
    done = run([python, "-c", PRELUDE + code], library, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
