# SPDX-License-Identifier: Apache-2.0
"""`xlaunch cache warm`: run a program until nothing new is compiled."""

from __future__ import annotations

from xlaunch.cache.warm import compiled_files, count_by_kind
from xlaunch.console import say
from xlaunch.errors import UsageError
from xlaunch.options.commands import launch_command, say_chosen
from xlaunch.options.definitions import OF_TORCHRUN
from xlaunch.options.precedence import ResolvedOptions, request_from
from xlaunch.text import counted

MAX_RUNS = 3
TIMED_OUT = 124
"""Exit code of a run that `--timeout` ended. Services are ended this way."""


@launch_command(
    program_required=True,
    without=(
        *OF_TORCHRUN,
        "exclusive",
        "wait",
        "rank-mode",
        "dry-run",
        "json",
        "explain",
        "no-cache",
        "sysroot",
        "synthetic",
    ),
    hidden=("optimize-wait", "supervise"),
)
def warm_command(asked: ResolvedOptions) -> int:
    """Run PROGRAM until a run compiles nothing new.

    It runs as a launch with these options would, so that later launches find all that they need.
    Programs that never end need --timeout. The exit code is 1 if the third run still compiles
    something, and the program's if it fails. --optimize implies --optimize-wait.
    """
    from xlaunch.launching import Purpose, launch, prepare

    request, options = request_from(asked.values), asked.values
    say_chosen(asked)
    if not request.program.words:
        raise UsageError(
            "no program given; usage: xlaunch cache warm [OPTIONS] [--] PROGRAM [ARGS...]"
        )
    if request.program.optimize is not None:
        request = request.replace(optimize_wait=True)  # a run ends with all of it compiled
    prepared = prepare(request, purpose=Purpose.LAUNCH, note=say)
    request, made, environment = prepared.request, prepared.plan, prepared.environment
    assert environment is not None
    for warning in environment.warnings:
        say(f"warning: {warning}")
    if environment.caches.base is None:
        raise UsageError("no cache can be kept: name a directory with --cache-dir")
    before = compiled_files(environment.caches)
    for run in range(1, MAX_RUNS + 1):
        report = launch(made, request.program, request.run, table=not options.get("quiet", False))
        if report.exit_code not in (0, TIMED_OUT):
            say(f"the program failed with exit code {report.exit_code}; the caches are not warm")
            return report.exit_code
        after = compiled_files(environment.caches)
        new = {name: kind for name, kind in after.items() if name not in before}
        if not new:
            done = f"warm after {counted(run, 'run')}: {count_by_kind(after.values())}"
            say(done if after else "nothing was compiled: the program uses none of the caches")
            return 0
        say(f"run {run} compiled {count_by_kind(new.values())}")
        before = after
    say(
        f"the program still compiles after {MAX_RUNS} runs: {count_by_kind(new.values())}; sizes, names or "
        "weights that change from run to run are the usual reason"
    )
    return 1
