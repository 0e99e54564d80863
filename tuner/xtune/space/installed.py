# SPDX-License-Identifier: Apache-2.0
"""Installed versions: of the tuner, of the program's environment and of the system.

Nothing of the program's environment is imported or run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata

from xlaunch.environment.program import resolve_program
from xlaunch.environment.variables import split_inherited
from xlaunch.errors import XLaunchError
from xlaunch.planning import Request

OURS = ("optuna", "numpy", "plotly")
THEIRS = (
    "torch",
    "torchvision",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "tensorflow",
    "jax",
    "onnxruntime",
    "openvino",
    "intel-openmp",
    "mkl",
)
"""Packages whose versions may affect a program's speed; listed if the program has them."""

TUNER, PROGRAM, SYSTEM = "tuner", "program", "system"

INTERPRETER = "interpreter"
"""The one entry that is not a version: the path of the program's Python."""

Installed = Mapping[str, Mapping[str, str]]
"""Versions by name, of the tuner, the program's environment and the system."""


def installed(request: Request) -> Installed:
    """The versions now, for the program of `request`."""
    return {
        TUNER: dict(_own_versions()),
        PROGRAM: dict(_program_versions(request)),
        SYSTEM: dict(_system_versions()),
    }


def _own_versions() -> Iterator[tuple[str, str]]:
    """Versions of the tuner and its libraries."""
    import xtune

    yield "xtune", xtune.__version__
    yield "Python", platform.python_version()
    for name in OURS:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _system_versions() -> Iterator[tuple[str, str]]:
    """Versions of kernel, distribution and C library."""
    yield "kernel", f"{platform.system()} {platform.release()}"
    try:
        release = platform.freedesktop_os_release()
        yield "distribution", release.get("PRETTY_NAME", release.get("NAME", "unknown"))
    except OSError:
        pass
    library = " ".join(platform.libc_ver()).strip()
    if library:
        yield "C library", library


def _program_versions(request: Request) -> Iterator[tuple[str, str]]:
    """Versions of the program's interpreter and of its packages; empty without an interpreter."""
    inherited = split_inherited(os.environ).users_own
    try:
        program = resolve_program(request.program, inherited)
    except XLaunchError:
        return
    if program.interpreter is None:
        return
    if program.installed.python is not None:
        yield "Python", ".".join(map(str, program.installed.python))
    yield INTERPRETER, program.interpreter
    packages = program.installed.packages or {}
    yield from [(name, packages[name]) for name in THEIRS if name in packages]
