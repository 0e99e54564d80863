# SPDX-License-Identifier: Apache-2.0
"""Start an instance in its place.

Mask and memory policy are set in this process, which is single-threaded, inherited through fork and
exec, and given back: the instance never runs a moment elsewhere, and nothing has to run in the
child before its program (see sched_setaffinity(2), set_mempolicy(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from xlaunch.environment import Program
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, XLaunchError
from xlaunch.machine.cpu_list import format_cpu_list, name_numbers
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import HugePages, MemoryPolicy

if TYPE_CHECKING:
    from xlaunch.output.relay import Streams
    from xlaunch.supervision.syscalls import InheritedPolicy

Note = Callable[[str], None]
"""Takes one line for the user."""


def replace_this_process(
    plan: Plan, program: Program, variables: dict[str, str], note: Note
) -> None:
    """Become the plan's only instance. Returns never; raises what `execute` raises."""
    instance = plan.instances[0]
    _bind(plan, instance, note)
    _set_memory_policy(plan, instance, note)
    _forbid_huge_pages(plan, forbid=True)
    _restore_python_signals()
    execute(program, variables)


@contextlib.contextmanager
def place_of(plan: Plan, instance: Instance, note: Note) -> Iterator[None]:
    """Within the block this process, and what it starts, is where `instance` should be."""
    mask = os.sched_getaffinity(0)
    policy = None
    try:
        _bind(plan, instance, note)
        policy = _set_memory_policy(plan, instance, note)
        _forbid_huge_pages(plan, forbid=True)
        yield
    finally:
        _forbid_huge_pages(plan, forbid=False)
        os.sched_setaffinity(0, mask)
        if policy is not None:
            from xlaunch.supervision.syscalls import restore_memory_policy

            restore_memory_policy(policy)


def fork_instance(
    program: Program,
    variables: dict[str, str],
    streams: Streams,
    *,
    before_exec: Callable[[int], None],
    signal_mask: set[signal.Signals],
) -> tuple[int, int]:
    """Start `program` as a process group of its own: its PID, and a descriptor for `exec_failure`.

    `before_exec` is called here, with the PID of the new group, before the program runs.
    `signal_mask`: the signals that it starts with blocked.
    """
    from xlaunch.supervision.syscalls import die_with_parent

    supervisor = os.getpid()
    failure_in, failure_out = os.pipe()  # close-on-exec: its end of file is a successful exec
    go_in, go_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        number = errno.EPERM
        try:
            os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(137)  # it ended before the request above
            os.close(go_out)
            os.read(go_in, 1)
            for target, source in enumerate(streams):
                os.dup2(source, target, inheritable=True)
            _restore_python_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
            _exec(program, variables)
        except OSError as error:
            number = error.errno or number
        finally:
            os.write(failure_out, number.to_bytes(4, "little"))
            os._exit(127)
    os.close(failure_out)
    os.close(go_in)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # whoever comes first, parent or child
    before_exec(pid)
    os.close(go_out)
    # Not waited for: Ctrl-Z may stop the child before its exec.
    return pid, failure_in


def exec_failure(program: Program, descriptor: int) -> XLaunchError | None:
    """Why a child that has ended never became `program`; None when it did. Closes `descriptor`."""
    try:
        failed = os.read(descriptor, 4)
    finally:
        os.close(descriptor)
    return exec_error(program, int.from_bytes(failed, "little")) if failed else None


def execute(program: Program, variables: dict[str, str]) -> None:
    """Replace this process by `program`.

    Raises `ProgramNotFoundError`, `ProgramNotExecutableError`, or `XLaunchError` for a lack of
    memory and the like.
    """
    try:
        _exec(program, variables)
    except OSError as error:
        raise exec_error(program, error.errno or 0) from None


def _exec(program: Program, variables: dict[str, str]) -> None:
    try:
        os.execve(program.executable, program.argv, variables)
    except OSError as error:
        if error.errno != errno.ENOEXEC or _is_elf(program.executable):
            raise
        # A script without a shebang: every shell runs it, and so does execvp(3).
        os.execve("/bin/sh", ("/bin/sh", program.executable, *program.argv[1:]), variables)


def _is_elf(path: str) -> bool:
    """Whether a file is a binary, of another machine then: no shell can run it."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def exec_error(program: Program, number: int) -> XLaunchError:
    """What to tell the user when `program` could not be executed for the reason `number` (errno)."""
    text = f"program {program.executable!r}: {os.strerror(number)}"
    if number == errno.ENOENT:  # the file was there: its interpreter is not
        return ProgramNotFoundError(f"{text} (the file or the interpreter that it names)")
    if number == errno.E2BIG:
        return ProgramNotExecutableError(f"{text}: arguments and environment are too long")
    return ProgramNotExecutableError(text)


def _bind(plan: Plan, instance: Instance, note: Note) -> None:
    if not plan.bound:
        return
    try:
        os.sched_setaffinity(0, instance.cpus)
    except OSError as error:
        note(
            f"instance {instance.index} runs unbound: the kernel refused "
            f"{name_numbers('CPU', instance.cpus)} ({error.strerror})"
        )


def _set_memory_policy(plan: Plan, instance: Instance, note: Note) -> InheritedPolicy | None:
    """Set the instance's policy; the one that was there, or None when it still is."""
    if instance.memory is MemoryPolicy.NONE:
        return None
    from xlaunch.supervision.syscalls import MPOL_DEFAULT, read_memory_policy, set_memory_policy

    try:
        inherited = read_memory_policy()
        if plan.request.mem_policy is MemoryPolicy.AUTO and inherited.mode != MPOL_DEFAULT:
            note(
                "the memory policy that was inherited (numactl?) stays; --mem-policy preferred overrides"
            )
            return None
        set_memory_policy(instance.memory, instance.memory_nodes)
    except OSError as error:
        nodes = format_cpu_list(instance.memory_nodes)
        note(
            f"instance {instance.index} runs without memory policy {instance.memory.value} {nodes}: "
            f"the kernel refused it ({error.strerror})"
        )
        return None
    return inherited


def _forbid_huge_pages(plan: Plan, *, forbid: bool) -> None:
    if plan.request.thp is HugePages.NEVER:
        from xlaunch.supervision.syscalls import forbid_huge_pages

        forbid_huge_pages(forbid)


def _restore_python_signals() -> None:
    # Python ignores these two from its start, and what is ignored stays so through exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
