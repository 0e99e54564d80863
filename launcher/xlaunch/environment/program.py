# SPDX-License-Identifier: Apache-2.0
"""Find the program to run and its interpreter, which need not be the launcher's."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from xlaunch.environment.elf import Elf, read_program
from xlaunch.environment.python_environment import (
    Installed,
    find_installed,
    interpreter_of,
    prefix_of,
    shebang_of,
)
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, UsageError
from xlaunch.planning.request import ProgramRequest

PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")


RANK_LAUNCHERS = frozenset(
    (
        *("torchrun", "torchrun_main", "accelerate", "deepspeed", "horovodrun", "ipexrun"),
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"),
        *("srun", "aprun", "jsrun", "flux"),
    )
)
"""Programs that start ranks and give each of them a part of their CPUs."""

SHELLS = frozenset(("ash", "bash", "dash", "ksh", "sh", "zsh"))

RANK_MODULES = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"),
        *("torch.backends.xeon.run_cpu", "intel_extension_for_pytorch.cpu.launch"),
        *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
        *("horovod.runner.launch",),
    )
)
"""The same, as Python modules."""


class Program(NamedTuple):
    """A program as it will be executed, and the environment of its packages."""

    executable: str
    """The file handed to execve; a path."""
    argv: tuple[str, ...]
    interpreter_reason: str | None = None
    """Why this Python interpreter was chosen; None if none was."""
    interpreter: str | None = None
    """The Python that runs it, a shebang's too; None: it is not a Python program."""
    prefix: str | None = None
    """The interpreter's sys.prefix; None without an interpreter."""
    installed: Installed = Installed()
    loads: Elf | None = None
    """What loads its libraries, see `read_program`."""
    starts_ranks: bool = False
    """It starts processes that divide its CPUs. **Ex.:** ``torchrun``, ``mpirun -n 4 app``."""


def resolve_program(request: ProgramRequest, environment: Mapping[str, str]) -> Program:
    """Find the program of `request`, how to run it, and what is installed with it.

    `environment`: the user's own variables, to which those of `request` are added.

    A name that ends in .py (.pyw, .pyc, .pyz), or a module, is run by the active environment's
    interpreter. Anything else is an executable, looked up as a shell would; its shebang names its
    interpreter. Raises `ProgramNotFoundError` (127), `ProgramNotExecutableError` (126), and `UsageError`
    for an interpreter that does not exist.
    """
    if not request.words:
        what = "module" if request.module else "program"
        raise UsageError(f"no {what} given; usage: xlaunch [OPTIONS] [--] PROGRAM [ARGS...]")
    name, *arguments = request.words
    if not name:
        raise ProgramNotFoundError("the program's name is empty")
    reason: str | None = None
    is_script = name.endswith(PYTHON_SUFFIXES) and not request.no_python
    if request.module or is_script:
        if not request.module:
            _check_file(name, must_execute=False)
            if name.startswith("-"):  # to Python it would be an option
                name = f"./{name}"
        executable, reason = find_interpreter(request.python, environment)
        argv = (executable, *(["-m"] if request.module else []), name, *arguments)
        interpreter: str | None = executable
    else:
        if "/" in name:
            _check_file(name, must_execute=True)
        executable = name if "/" in name else _search_path(name, environment)
        argv = (name, *arguments)
        interpreter = interpreter_of(executable, environment)
    program = Program(
        executable,
        argv,
        reason,
        interpreter,
        loads=read_program(interpreter or executable),
        starts_ranks=_starts_ranks(argv),
    )
    if interpreter is None:
        return program
    prefix = prefix_of(interpreter)
    installed = find_installed(prefix, interpreter, {**environment, **dict(request.env)})
    return program._replace(prefix=prefix, installed=installed)


def _starts_ranks(argv: tuple[str, ...]) -> bool:
    """Whether a command starts ranks. **Ex.:** also ``python -m torch.distributed.run``."""
    name, words = os.path.basename(argv[0]), iter(argv[1:])
    if name in SHELLS and "-c" in argv[1:-1]:
        return _script_starts_ranks(argv[argv.index("-c") + 1])
    if not name.startswith(("python", "pypy")):
        return name in RANK_LAUNCHERS
    for word in words:
        if not word.startswith("-"):
            return os.path.basename(word) in RANK_LAUNCHERS
        if word in ("-W", "-X"):
            next(words, "")
        if word.startswith(("--", "-W", "-X")):
            continue
        flags, is_module, attached = word[1:].partition("m")
        if "c" in flags:  # the program is the next word
            break
        if is_module:  # -m NAME, -um NAME, -mNAME
            return (attached or next(words, "")) in RANK_MODULES
    return False


def _script_starts_ranks(script: str) -> bool:
    """Whether a shell's script names such a program anywhere. If in doubt, it does: a missing
    thread count does less harm.
    """
    words = [word.strip("'\"()") for word in re.split(r"[\s;&|]+", script)]
    modules = {after for before, after in pairwise(words) if before == "-m"}
    names = {os.path.basename(word) for word in words}
    return not (names.isdisjoint(RANK_LAUNCHERS) and modules.isdisjoint(RANK_MODULES))


def interpreter_flags(program: Program) -> Iterator[str]:
    """The letters of the options that the program's interpreter gets, up to the program's name.

    **Ex.:** ``python -uE -W error x.py``: ``u``, ``E``, ``W``.
    """
    words = iter(program.argv[1:])
    if program.interpreter != program.executable:
        shebang = shebang_of(program.executable)
        words = iter([word for word in shebang[1:] if word.startswith("-") and word != "-S"])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return
        if word.startswith("--"):
            continue
        for position, letter in enumerate(word[1:], 2):
            yield letter
            if letter in "cm":  # the program
                return
            if letter in "WX":  # the rest, or the next word, is its value
                if position == len(word):
                    next(words, "")
                break


def find_interpreter(asked: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """The Python interpreter for scripts, and why: --python, VIRTUAL_ENV, CONDA_PREFIX or ours."""
    if asked is not None:
        try:
            if "/" not in asked:
                return _search_path(asked, environment), "--python"
            _check_file(asked, must_execute=True)
        except (ProgramNotFoundError, ProgramNotExecutableError) as error:
            raise UsageError(f"--python: {error}") from None
        return asked, "--python"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environment.get(variable)
        candidate = os.path.join(prefix, "bin", "python") if prefix else ""
        if candidate and os.access(candidate, os.X_OK):
            return candidate, f"{variable} is active"
    return sys.executable, "the interpreter that xlaunch runs on"


def _check_file(path: str, *, must_execute: bool) -> None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ProgramNotFoundError(f"program {path!r} does not exist") from None
    except OSError as error:
        raise ProgramNotExecutableError(f"program {path!r}: {error.strerror}") from None
    except ValueError:  # an embedded null byte
        raise ProgramNotFoundError(f"program {path!r} is not a file name") from None
    if stat.S_ISDIR(mode):
        raise ProgramNotExecutableError(f"program {path!r} is a directory; name a file in it")
    if must_execute and not stat.S_ISREG(mode):
        raise ProgramNotExecutableError(f"program {path!r} is not a regular file; name one")
    if must_execute and not os.access(path, os.X_OK):
        raise ProgramNotExecutableError(
            f"program {path!r} is not executable; chmod +x it, or name its interpreter first"
        )
    if not must_execute and not os.access(path, os.R_OK):
        raise ProgramNotExecutableError(f"program {path!r} cannot be read: permission denied")


def _search_path(name: str, environment: Mapping[str, str]) -> str:
    refused: str | None = None
    for directory in environment.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(directory or ".", name)
        if not os.path.isfile(candidate):
            continue
        if os.access(candidate, os.X_OK):
            return candidate
        refused = refused or candidate
    if refused is not None:
        raise ProgramNotExecutableError(f"program {refused!r} is not executable")
    if os.path.isdir(name):
        raise ProgramNotExecutableError(f"program {name!r} is a directory; name a file in it")
    hint = f"; to run the file in this directory write ./{name}" if os.path.isfile(name) else ""
    if name == "-":
        hint = "; to run a script from standard input write 'python -' as the program"
    raise ProgramNotFoundError(f"program {name!r} is not on PATH{hint}")
