# SPDX-License-Identifier: Apache-2.0
"""Python processes that xlaunch starts to find something out: they see no file of the current directory.

``-c`` and ``-m`` put the current directory first on ``sys.path``, ``-P`` needs Python 3.11, and ``-I`` loses
PYTHONPATH and the user's packages. So each of them runs a file of ``scripts``, a directory that holds no name
of another module and that each file removes from ``sys.path``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PATH = "PYTHONPATH"
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory on which Python finds this very package."""
SCRIPTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "scripts")


def script(name: str) -> str:
    """The path of a script for a Python that need not be ours. **Ex.:** ``"find_hook"``."""
    return os.path.join(SCRIPTS, f"{name}.py")


def without_current_directory(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, with a PYTHONPATH that does not name the current directory in relative terms.

    **Ex.:** ``:/mine``, in which the empty entry means the current directory, becomes ``/mine``. A
    variable without a name, as of ``env =x``, is left out: it cannot be passed on.
    """
    kept = {name: value for name, value in environment.items() if name}
    entries = [e for e in kept.pop(PATH, "").split(os.pathsep) if not _is_current_directory(e)]
    return {**kept, PATH: os.pathsep.join(entries)} if entries else kept


def _is_current_directory(entry: str) -> bool:
    if os.path.isabs(entry):
        return False
    try:
        return os.path.realpath(entry) == os.getcwd()
    except OSError:  # it has been removed
        return True
