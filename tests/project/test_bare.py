# SPDX-License-Identifier: Apache-2.0
"""`.ci/bare` hides the files of Debian's packages from a command, and from nothing else."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
TELL = 'command -v g++; echo "${XLAUNCH_SYSTEM_LIBRARY_DIRS-the system\'s}"; exit 3'


def bare(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((ROOT / ".ci/bare", *words), capture_output=True, text=True, check=False)


def installed(package: str) -> bool:
    query = shutil.which("dpkg-query")
    return query is not None and not subprocess.run((query, "-W", package), check=False).returncode


def test_a_package_is_hidden_from_the_command_alone(needs: Callable[[object, str], None]) -> None:
    needs(installed("g++"), "a C++ compiler of Debian's (g++)")
    compiler = shutil.which("g++")
    done = bare("g++", "--", "sh", "-c", TELL)
    assert done.returncode == 3
    if "no mount namespace" in done.stderr:
        assert done.stdout == f"{compiler}\n\n"
    else:
        assert done.stdout == "the system's\n", done.stderr
    assert compiler is not None
    assert Path(compiler).exists()


def test_a_machine_without_the_packages_needs_nothing(needs: Callable[[object, str], None]) -> None:
    needs(shutil.which("dpkg-query"), "dpkg-query (Debian: dpkg)")
    done = bare("no-such-package", "--", "sh", "-c", "echo $0; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "sh\n", "")
