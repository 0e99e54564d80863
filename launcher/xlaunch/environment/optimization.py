# SPDX-License-Identifier: Apache-2.0
"""`--optimize`: the variables with which a Python program loads xruntime's start-up hook.

The hook is the program's own xruntime: a directory with a ``sitecustomize.py``, which Python's module
`site` imports at start-up if PYTHONPATH names the directory. It removes these variables at once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from xlaunch.children import PATH, script, without_current_directory
from xlaunch.environment.contribution import Contribution, ListEntry, Situation
from xlaunch.environment.program import interpreter_flags
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.planning.request import Optimize

VARIABLE = "XLAUNCH_OPTIMIZE"
"""For the hook: the precision, and a second word ``wait`` with `--optimize-wait`."""

HOOK = os.path.join("program_hook", "startup")
"""The hook's directory inside the package xruntime."""

CHILD_TIMEOUT_S = 60.0


def contribute_optimization(precision: Optimize, situation: Situation) -> Contribution:
    """The variables for `--optimize`, and the hook.

    Starts the interpreter to find its xruntime, without importing it, unless `Program.untried`. Raises `UsageError` for a
    program that is not Python, that ignores the hook, or whose environment has no xruntime.
    """
    program, environment = situation.program, situation.given
    option = f"--optimize {precision.value}"
    if program.interpreter is None:
        raise UsageError(
            f"{option}: {program.argv[0]} is not a Python program; give a script, -m MODULE, or "
            "python itself"
        )
    if program.starts_ranks:
        raise UsageError(
            f"{option}: {os.path.basename(program.argv[0])} starts processes of its own, which do not "
            "inherit it; call xruntime.optimize in the script"
        )
    for flag in interpreter_flags(program):
        if flag in "EIS":
            raise UsageError(
                f"{option}: python -{flag} ignores PYTHONPATH or sitecustomize, through which the "
                f"program is reached; leave -{flag} out, or call xruntime.optimize in the script"
            )
    if program.untried is not None:
        reason = f"not tried: {program.untried}; a launch adds PYTHONPATH, which loads the hook"
        return Contribution([Proposal(VARIABLE, precision.value, reason, option=option)])
    hook = _find_hook(option, program.interpreter, environment)
    variable = Proposal(
        VARIABLE,
        f"{precision.value} wait" if situation.request.optimize_wait else precision.value,
        "xruntime.optimize is applied to models that the program runs without gradients; only in "
        "this process",
        option=option,
    )
    reason = "loads the hook for it, which removes itself from here"
    return Contribution([variable], entries=[ListEntry(PATH, hook, reason)])


def _find_hook(option: str, interpreter: str, environment: Mapping[str, str]) -> str:
    """The directory of the hook in `interpreter`'s xruntime. Raises `UsageError` if it has none."""
    mark = os.urandom(16).hex()
    try:
        done = subprocess.run(
            (interpreter, script("find_hook"), mark),
            env=without_current_directory(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{option}: {interpreter} cannot be started: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UsageError(f"{option}: {interpreter} fails at start-up: {' '.join(said)}")
    package = os.fsdecode(done.stdout).partition(mark)[2].partition(mark)[0]
    if not package:
        raise UsageError(
            f"{option}: {interpreter} has no package xruntime; install xlaunch into the program's "
            "environment, or choose another interpreter with --python"
        )
    hook = os.path.join(package, HOOK)
    if not os.path.isfile(os.path.join(hook, "sitecustomize.py")):
        raise UsageError(
            f"{option}: the xruntime in {package} is too old for it; update xlaunch in the program's "
            "environment"
        )
    if os.pathsep in hook:
        raise UsageError(f"{option}: PYTHONPATH cannot name {hook}, which contains {os.pathsep!r}")
    return hook
