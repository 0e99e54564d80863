# SPDX-License-Identifier: Apache-2.0
"""Notes on programs that `xlaunch` places only in part, each with the command that places them.

They start workers, choose an interpreter, or reset the environment after xlaunch has decided.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.program import (
    PROJECT_TOOLS,
    WRAPPERS,
    Program,
    assignments,
    executed_commands,
    invoked,
    shell_script,
)
from xlaunch.options.definitions import BY_KEY


class Hint(NamedTuple):
    """What to say of one program."""

    why: str
    instead: str
    """``{count}`` is the number of workers, ``{name}`` the program."""
    subcommands: tuple[str, ...] = ()
    """The program's first argument must be one of them; empty: it may be anything."""
    counts: tuple[str, ...] = ()
    """Its options with the number of workers. One worker is placed like any other program."""
    default: str = "N"
    """The number of workers without these options."""
    variable: str = ""
    """The variable that replaces `default`."""


_BINDS = Hint(
    "binds again, after xlaunch has chosen the number of threads for its own CPUs",
    "leave {name} out and use --cpus or --numa-nodes",
)
_WORKERS = "starts workers, which share the cores and are not placed"
_NPROC = ("--nproc-per-node", "--nproc_per_node")
_TORCHRUN = Hint(
    _WORKERS, "write xlaunch --nproc-per-node {count} PROGRAM", counts=_NPROC, default="1"
)
_ACCELERATE = Hint(
    _WORKERS,
    "write accelerate launch --no_python xlaunch PROGRAM",
    counts=("--num_processes", "--num-processes"),
)
_DEEPSPEED = Hint(
    _WORKERS,
    "write deepspeed --no_python --no_local_rank xlaunch PROGRAM",
    counts=("--num_gpus", "--num_accelerators"),
)
_MPI = Hint(
    _WORKERS,
    "write {name} --bind-to none -n {count} xlaunch PROGRAM",
    counts=("-n", "-np", "--np", "-c"),
)
_PORTS = "write xlaunch --instances {count} --substitute {name}"
_WEB = Hint(
    _WORKERS,
    _PORTS + " APP --port {{8000+index}}",
    counts=("--workers",),
    default="1",
    variable="WEB_CONCURRENCY",
)
_DASK = Hint(
    _WORKERS,
    "write xlaunch --instances {count} dask worker SCHEDULER",
    counts=("--nworkers", "--nprocs"),
    default="1",
)
_LATER = (
    "chooses the interpreter after xlaunch, which sets less for a program that it does not know"
)
_ELSEWHERE = "starts its program elsewhere, where nothing arrives of what xlaunch chooses"

HINTS: Mapping[str, Hint] = {
    **dict.fromkeys(("numactl", "taskset", "ipexrun"), _BINDS),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    "accelerate": _ACCELERATE._replace(subcommands=("launch",)),
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), _ACCELERATE),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "prun"), _MPI),
    "mpiexec.hydra": _MPI._replace(instead="write {name} -n {count} xlaunch PROGRAM"),
    "srun": _MPI._replace(
        instead="write srun -n {count} xlaunch PROGRAM", counts=("-n", "--ntasks")
    ),
    **dict.fromkeys(
        ("horovodrun", "horovod.runner.launch"),
        _MPI._replace(instead="write horovodrun --mpi -np {count} xlaunch PROGRAM"),
    ),
    "uvicorn": _WEB,
    "gunicorn": _WEB._replace(
        instead="write xlaunch --instances {count} gunicorn --reuse-port APP",
        counts=("--workers", "-w"),
    ),
    "hypercorn": _WEB._replace(
        instead=_PORTS + " APP --bind :{{8000+index}}", counts=("--workers", "-w"), variable=""
    ),
    "dask": _DASK._replace(subcommands=("worker",)),
    "dask-worker": _DASK,
    "ray": Hint(
        _WORKERS,
        "write xlaunch --instances {count} ray start --block --address HOST:PORT",
        subcommands=("start",),
    ),
    **dict.fromkeys(
        PROJECT_TOOLS, Hint(_LATER, "write {name} run xlaunch PROGRAM", subcommands=("run",))
    ),
    **dict.fromkeys(
        ("sudo", "doas"),
        Hint("drops the variables that xlaunch sets", "write {name} xlaunch PROGRAM"),
    ),
    **dict.fromkeys(
        ("docker", "podman"),
        Hint(_ELSEWHERE, "write {name} run IMAGE xlaunch PROGRAM", subcommands=("run",)),
    ),
    "ssh": Hint(_ELSEWHERE, "write ssh HOST xlaunch PROGRAM"),
    "systemd-run": Hint(_ELSEWHERE, "write systemd-run xlaunch PROGRAM"),
}
"""By the name of a program or of a Python module."""


def program_hints(
    program: Program, environment: Mapping[str, str], words: Sequence[str] = ()
) -> Iterator[str]:
    """What to say of a program that is placed only in part, one line each; usually nothing.

    `environment`: what the program inherits. `words`: the program and its arguments, as typed. Nothing is
    said of how a command line is placed that has xlaunch in it.
    """
    if misplaced := _misplaced_options(words):
        went = f"{' and '.join(misplaced)} after {words[0]} went to the program"
        yield f"{went}, which does not mention it; xlaunch's options stand before the program"
    if any(os.path.basename(word) == "xlaunch" for word in program.command):
        return
    wrappers = [invoked(words) for words in executed_commands(program.argv)][:-1]
    for name, arguments in [*wrappers, invoked(program.command)]:
        if name == "env" and (given := assignments(arguments)):
            options = " ".join([f"--env {shlex.quote(word)}" for word in given])
            yield (
                "env sets variables after xlaunch has chosen its own: "
                f"write xlaunch {options} PROGRAM"
            )
        if (hint := HINTS.get(name)) is not None:
            yield from _say(hint, name, arguments, environment)
    name, arguments = invoked(program.command)
    if name in WRAPPERS and arguments and name not in HINTS:
        yield (
            f"{name} with these options hides its program from xlaunch, which sets less for it: "
            f"write xlaunch between {name}'s options and PROGRAM"
        )
    script = shell_script(program.command)
    if "xlaunch" not in script and re.search(r"(^|[\s/;&|(])python[\d.]*\s|\.py\b", script):
        name = os.path.basename(program.command[0])
        yield (
            f"{name} runs a shell script, and xlaunch sets less for Python programs that it does not "
            "know: write xlaunch before them, in the script"
        )


def _say(
    hint: Hint, name: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    subcommand = next(iter(arguments), "") if hint.subcommands else ""
    if hint.subcommands and subcommand not in hint.subcommands:
        return
    count = _count(hint.counts, arguments) or environment.get(hint.variable) or hint.default
    if count != "1":
        named = f"{name} {subcommand}".strip()
        yield f"{named} {hint.why}: {hint.instead.format(name=name, count=count)}"


def _count(options: Sequence[str], arguments: Sequence[str]) -> str:
    """The value of the last of `options` among `arguments`: ``-w 4``, ``-w4``, ``--workers=4``."""
    count = ""
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, attached = word.partition("=")
        if name in options:
            count = attached if equals else value
        elif word[:2] in options and word[2:].isdecimal():
            count = word[2:]
    return count if count.isdecimal() else "N" if count else ""


def _misplaced_options(words: Sequence[str]) -> list[str]:
    """The options of xlaunch that were typed after a script which does not mention them.

    **Ex.:** ``infer.py --instances 4``, where infer.py nowhere says ``instances``.
    """
    names = [word[2:].partition("=")[0] for word in words[1:] if word.startswith("--")]
    options = [name for name in dict.fromkeys(names) if name.replace("-", "_") in BY_KEY]
    # A pipe can be read only once, by the program.
    if not options or not words[0].endswith(".py") or not os.path.isfile(words[0]):
        return []
    try:
        with open(words[0], encoding="utf-8", errors="replace") as script:
            text = script.read()
    except OSError:
        return []
    return [
        f"--{name}" for name in options if name not in text and name.replace("-", "_") not in text
    ]
