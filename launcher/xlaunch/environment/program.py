# SPDX-License-Identifier: Apache-2.0
"""Find the program to run and its interpreter, which need not be the launcher's.

A wrapper such as nice or timeout executes the command in its own arguments, in place and with its environment.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from xlaunch.environment.elf import Elf, read_program
from xlaunch.environment.python_environment import (
    InstalledPackages,
    find_installed,
    interpreter_of,
    prefix_of,
    shebang_of,
)
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, UsageError
from xlaunch.machine.tree import read_file
from xlaunch.planning.request import ProgramRequest
from xlaunch.text import did_you_mean

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

PROJECT_TOOLS = frozenset(
    ("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv")
)
"""Programs whose ``run`` finds the interpreter of a project and executes a command with it."""

MAX_SCRIPT_BYTES = 1 << 16


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
    installed: InstalledPackages = InstalledPackages()
    loads: Elf | None = None
    """What loads its libraries, see `read_program`."""
    starts_ranks: bool = False
    """It starts processes that divide its CPUs. **Ex.:** ``torchrun``, ``mpirun -n 4 app``."""
    command: tuple[str, ...] = ()
    """What is executed in the end: the part of `argv` behind nice and the like, with its path."""
    untried: str | None = None
    """Why nothing is started to try its interpreter or libraries; None: it may be.

    **Ex.:** ``"project pyproject.toml chooses python ./python"``, for a command that only answers."""


def resolve_program(request: ProgramRequest, environment: Mapping[str, str]) -> Program:
    """Find the program of `request`, how to run it, and what is installed with it.

    `environment`: the user's own variables, to which those of `request` are added.

    A name that ends in .py (.pyw, .pyc, .pyz), or a module, is run by the active environment's
    interpreter. Anything else is an executable, looked up as a shell would; its shebang names its
    interpreter, and so does the command behind nice, timeout or env. Raises `ProgramNotFoundError`
    (127), `ProgramNotExecutableError` (126), and `UsageError` for an interpreter that does not exist.
    """
    if not request.words:
        kind = "module" if request.module else "program"
        raise UsageError(f"no {kind} given; usage: xlaunch [OPTIONS] [--] PROGRAM [ARGS...]")
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
        argv = command = (executable, *(["-m"] if request.module else []), name, *arguments)
        interpreter: str | None = executable
    else:
        if "/" in name:
            _check_file(name, must_execute=True)
        executable = name if "/" in name else _search_path(name, environment)
        argv = (name, *arguments)
        command = _executed_command(executable, argv, environment)
        interpreter = interpreter_of(command[0], environment)
    program = Program(
        executable,
        argv,
        reason,
        interpreter,
        loads=read_program(interpreter or command[0]),
        starts_ranks=_starts_ranks(command),
        command=command,
    )
    if interpreter is None:
        return program
    prefix = prefix_of(interpreter)
    installed = find_installed(prefix, interpreter, {**environment, **dict(request.env)})
    return program._replace(prefix=prefix, installed=installed)


def _executed_command(
    executable: str, argv: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """See `Program.command`; `argv` with its path if the command is not found."""
    *_, (name, *arguments) = executed_commands(argv)
    if len(arguments) + 1 < len(argv):
        try:
            if "/" in name:
                _check_file(name, must_execute=True)
            return (name if "/" in name else _search_path(name, environment), *arguments)
        except (ProgramNotFoundError, ProgramNotExecutableError):
            pass  # the wrapper says so
    return (executable, *argv[1:])


def invoked(command: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What a command runs, and its arguments: a program's or script's name, or that of a module.

    **Ex.:** ``python -um torch.distributed.run x.py``: ``torch.distributed.run`` and ``x.py``.
    """
    name, words = os.path.basename(command[0]), iter(command[1:])
    if not name.startswith(("python", "pypy")):
        return name, tuple(words)
    for word in words:
        if not word.startswith("-"):
            return os.path.basename(word), tuple(words)
        if word in ("-W", "-X"):
            next(words, "")
        if word.startswith(("--", "-W", "-X")):
            continue
        flags, is_module, attached = word[1:].partition("m")
        if "c" in flags:  # the program is the next word
            break
        if is_module:  # -m NAME, -um NAME, -mNAME
            return attached or next(words, ""), tuple(words)
    return name, ()


def _starts_ranks(command: Sequence[str]) -> bool:
    """Whether a command starts ranks. **Ex.:** also ``python -m torch.distributed.run``."""
    name, arguments = invoked(command)
    if name in RANK_LAUNCHERS or name in RANK_MODULES:
        return True
    if name in PROJECT_TOOLS:
        return any(os.path.basename(word) in RANK_LAUNCHERS for word in arguments)
    return _script_starts_ranks(shell_script(command))


def shell_script(command: Sequence[str]) -> str:
    """The start of the shell script that a command runs; empty if it runs none.

    **Ex.:** ``./run.sh``, ``bash -e run.sh``, ``sh -c 'python x.py'``.
    """
    path = command[0]
    if os.path.basename(path) in SHELLS:
        words = iter(command[1:])
        for path in words:
            if not path.startswith(("-", "+")):
                break
            if not path.startswith("--") and "c" in path:
                return next(words, "")
            if path.endswith(("o", "O")):  # -o NAME
                next(words, "")
    elif not path.endswith(".sh") and not any(
        os.path.basename(word) in SHELLS for word in shebang_of(path)[:2]
    ):
        return ""
    if not os.path.isfile(path):  # a pipe can be read only once, by the shell
        return ""
    return (read_file(path, max_bytes=MAX_SCRIPT_BYTES) or b"").decode(errors="replace")


def _script_starts_ranks(script: str) -> bool:
    """Whether a shell's script may start such a program; a missing thread count does less harm."""
    words = [word.strip("'\"()") for word in re.split(r"[\s;&|]+", script)]
    modules = {after for before, after in pairwise(words) if before == "-m"}
    names = {os.path.basename(word) for word in words}
    return not (names.isdisjoint(RANK_LAUNCHERS) and modules.isdisjoint(RANK_MODULES))


def named_files(words: Sequence[str]) -> Iterator[str]:
    """What words may name as files: themselves, ``--name=FILE``, ``@FILE``, and after ``-m`` modules here."""
    for before, word in pairwise(("", *words)):
        yield word
        if word.startswith("@"):
            yield word[1:]
        if "=" in word:
            yield word.partition("=")[2]
        if before == "-m":
            path = word.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__main__.py")


def interpreter_flags(program: Program) -> Iterator[str]:
    """The letters of the options that the program's interpreter gets, up to the program's name.

    **Ex.:** ``python -uE -W error x.py``: ``u``, ``E``, ``W``.
    """
    words = iter(program.command[1:])
    if program.interpreter != program.command[0]:
        shebang = shebang_of(program.command[0])
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
        raise ProgramNotFoundError(f"program {path!r} does not exist{_meant(path)}") from None
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
    if assignments([name]):
        hint = f"; to run a program with a variable: xlaunch --env {name} PROGRAM"
    if name == "-":
        hint = "; to run a script from standard input write 'python -' as the program"
    raise ProgramNotFoundError(f"program {name!r} is not on PATH{hint or _meant(name)}")


def _meant(path: str) -> str:
    """The words within quotes, or scripts that are spelt like `path`; empty if there are none."""
    import shutil  # only this message needs it

    words = path.split()
    if len(words) > 1 and (os.path.isfile(words[0]) or shutil.which(words[0]) is not None):
        return f"; did you mean {path}, without quotes?"
    directory, name = os.path.split(path)
    try:
        scripts = [file for file in sorted(os.listdir(directory or ".")) if file.endswith(".py")]
    except (OSError, ValueError):
        return ""
    if f"{name}.py" in scripts:
        name += ".py"
    candidates = scripts if directory else ["python", *scripts]
    return did_you_mean(name, candidates, form=os.path.join(directory, "{}"))


class Wrapper(NamedTuple):
    """How the command line of a wrapper continues up to the command that it executes."""

    short: str = ""
    """Its options, as `getopt.getopt` takes them."""
    long: str = ""
    operands: int = 0
    """The number of words between its options and the command."""


WRAPPERS = {
    "chrt": Wrapper(
        "abdfioprRvT:P:D:", "all-tasks batch deadline fifo idle other rr ext verbose", 1
    ),
    # With a directory of its own (-C) or no variables (-i), names may mean other files.
    "env": Wrapper("u:v", "unset= debug"),
    "ionice": Wrapper("c:n:t", "class= classdata= ignore"),
    "nice": Wrapper("0123456789n:", "adjustment="),
    "nohup": Wrapper(),
    "numactl": Wrapper(
        "abC:i:lm:N:p:P:w:",
        "all balancing cpunodebind= interleave= localalloc membind= physcpubind= preferred= "
        "preferred-many= weighted-interleave=",
    ),
    "setsid": Wrapper("cfw", "ctty fork wait"),
    "stdbuf": Wrapper("i:o:e:", "input= output= error="),
    "taskset": Wrapper("ac", "all-tasks cpu-list", 1),
    "time": Wrapper("af:o:pqv", "append format= output= portability quiet verbose"),
    "timeout": Wrapper("fk:ps:v", "foreground kill-after= preserve-status signal= verbose", 1),
}


def executed_commands(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`words`, the command that they execute, the one that this executes, and so on.

    It ends at a wrapper whose options are not known here.
    **Ex.:** ``nice -n 5 timeout 60 python x.py``, ``timeout 60 python x.py``, ``python x.py``.
    """
    command = tuple(words)
    while command:
        yield command
        wrapper = WRAPPERS.get(os.path.basename(command[0]))
        command = () if wrapper is None else _behind(wrapper, command[1:])


def _behind(wrapper: Wrapper, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command in the arguments of a wrapper; empty if it cannot be told."""
    from getopt import GetoptError, getopt

    try:
        _, operands = getopt(list(arguments), wrapper.short, wrapper.long.split())
    except GetoptError:
        return ()
    if wrapper is WRAPPERS["env"]:
        count = len(assignments(operands))
        # With another PATH, the name of the command may mean another file.
        return (
            ()
            if any(word.startswith("PATH=") for word in operands[:count])
            else tuple(operands[count:])
        )
    return tuple(operands[wrapper.operands :])


def assignments(words: Sequence[str]) -> list[str]:
    """The variables that ``env`` is given before the command. **Ex.:** ``A=1 python x=2``: ``A=1``."""
    variables: list[str] = []
    for word in words:
        if "=" not in word:
            break
        variables.append(word)
    return variables
