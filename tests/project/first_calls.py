# SPDX-License-Identifier: Apache-2.0
"""Run a command of ours in this process, and write which functions it called, in the order of their first calls.

    python first_calls.py FILE PACKAGE ARGUMENTS...

FILE gets lines such as ``launching.py:prepare``. Processes that were forked go on with the list of their parent, and
write FILE.PID when they execute something; a call in a later one stands behind those of its parents.
"""

import atexit
import importlib
import importlib.util
import os
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

ORDER: dict[str, None] = {}


def main() -> None:
    file, package, *arguments = sys.argv[1:]
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = os.path.dirname(spec.origin) + os.sep

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Not the bodies of modules and classes, nor comprehensions.
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(root):
            ORDER.setdefault(f"{code.co_filename[len(root) :]}:{code.co_qualname}")

    def write(event: str = "os.exec", _: object = None) -> None:
        if event == "os.exec":
            Path(f"{file}.{os.getpid()}").write_text("\n".join(ORDER))

    sys.addaudithook(write)
    atexit.register(write)
    sys.argv = [package, *arguments]
    run = importlib.import_module(f"{package}.__main__").main
    sys.setprofile(note)
    sys.exit(run())


main()
