# SPDX-License-Identifier: Apache-2.0
"""Start an instance in its place.

Mask and memory policy are set in this process, which is single-threaded, inherited through fork and
exec, and restored: the instance never runs elsewhere, and nothing has to run in the child before its
program (see sched_setaffinity(2), set_mempolicy(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.environment import Program
from xlaunch.environment.python_environment import shebang_of
from xlaunch.errors import ProgramNotExecutableError, ProgramNotFoundError, XLaunchError
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import MemoryPolicy
from xlaunch.text import format_cpu_list, name_numbers

if TYPE_CHECKING:
    from xlaunch.output.relay import StandardStreams
    from xlaunch.supervision.syscalls import InheritedPolicy


FILTERED = (errno.EPERM, errno.ENOSYS)
"""Errors that only seccomp filters return, whatever the arguments are."""

NOT_BOUND = "instances are not bound to CPUs"
"""How the note about a refused sched_setaffinity begins."""


class Child(NamedTuple):
    """A forked process that waits to execute its program."""

    pid: int
    exec_result: int
    """Descriptor for `exec_failure`."""
    go: int
    """Closing this descriptor lets the process execute its program."""


def take_place(plan: Plan, *, forbids_huge_pages: bool) -> list[str]:
    """Take the CPUs and memory policy of the plan's only instance; return notes for the user."""
    instance = plan.instances[0]
    notes = _bind(plan, instance)
    notes += _set_memory_policy(plan, instance)[1]
    if forbids_huge_pages:
        from xlaunch.supervision.syscalls import forbid_huge_pages

        forbid_huge_pages(True)
    _restore_python_signals()
    return notes


@contextlib.contextmanager
def place_of(plan: Plan, instance: Instance, *, forbids_huge_pages: bool) -> Iterator[list[str]]:
    """Have the CPUs and memory policy of `instance` during the block; yield notes for the user."""
    from xlaunch.supervision.syscalls import forbid_huge_pages, restore_memory_policy

    mask = os.sched_getaffinity(0)
    policy, refused = None, ["not tried"]
    try:
        refused = _bind(plan, instance)
        policy, more = _set_memory_policy(plan, instance)
        if forbids_huge_pages:
            forbid_huge_pages(True)
        yield refused + more
    finally:
        if forbids_huge_pages:
            forbid_huge_pages(False)
        if plan.bound and not refused:
            os.sched_setaffinity(0, mask)
        if policy is not None:
            restore_memory_policy(policy)


def fork_instance(
    program: Program, variables: dict[str, str], streams: StandardStreams, signal_mask: set[int]
) -> Child:
    """Fork a process, in a group of its own, that executes `program` when `Child.go` is closed.

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
        os.setpgid(pid, pid)  # in both processes, because either may be first
    # The exec is not waited for: Ctrl-Z may stop the child before it.
    return Child(pid, failure_in, go_out)


def exec_failure(program: Program, descriptor: int) -> XLaunchError | None:
    """Why a child that has ended did not execute `program`; None if it did. Closes `descriptor`."""
    try:
        failed = os.read(descriptor, 4)
    finally:
        os.close(descriptor)
    return exec_error(program, int.from_bytes(failed, "little")) if failed else None


def execute(program: Program, variables: dict[str, str]) -> None:
    """Replace this process by `program`. Raises what `exec_error` returns."""
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
    """Whether a file is a binary; if it cannot be executed, it is one of another architecture."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def exec_error(program: Program, number: int) -> XLaunchError:
    """The error for a `program` that could not be executed. `number`: errno."""
    text = f"program {program.executable!r}: {os.strerror(number)}"
    if number == errno.ENOENT:  # the file was there: its interpreter is not
        interpreter = next(iter(shebang_of(program.executable)), None)
        if interpreter is None:
            return ProgramNotFoundError(f"{text} (the file or the interpreter that it names)")
        problem = f"names the interpreter {interpreter!r}, which does not exist"
        if os.path.exists(interpreter):
            problem = "has lines that end in a carriage return; save it with Unix line ends"
        return ProgramNotFoundError(f"program {program.executable!r} {problem}")
    if number == errno.E2BIG:
        return ProgramNotExecutableError(f"{text}: arguments and environment are too long")
    return ProgramNotExecutableError(text)


def _bind(plan: Plan, instance: Instance) -> list[str]:
    """Set the instance's affinity mask; return a note if the kernel refuses."""
    if not plan.bound:
        return []
    try:
        os.sched_setaffinity(0, instance.cpus)
    except OSError as error:
        if error.errno in FILTERED:
            return [f"{NOT_BOUND}: {_is_filtered('sched_setaffinity', error)}"]
        cpus = name_numbers("CPU", instance.cpus)
        return [
            f"instance {instance.index} runs unbound: the kernel refused {cpus} ({error.strerror})"
        ]
    return []


def _is_filtered(call: str, error: OSError) -> str:
    """The reason of a note, the same for all instances."""
    return f"{call} is refused ({error.strerror}), as by a container's seccomp profile"


def _set_memory_policy(plan: Plan, instance: Instance) -> tuple[InheritedPolicy | None, list[str]]:
    """Set the instance's memory policy. Return the policy that it replaces, if any, and notes."""
    if instance.memory is MemoryPolicy.NONE:
        return None, []
    from xlaunch.supervision.syscalls import MPOL_DEFAULT, read_memory_policy, set_memory_policy

    try:
        inherited = read_memory_policy()
        if plan.layout.mem_policy is MemoryPolicy.AUTO and inherited.mode != MPOL_DEFAULT:
            note = "keeping the inherited memory policy (numactl?); --mem-policy preferred overrides it"
            return None, [note]
        set_memory_policy(instance.memory, instance.memory_nodes)
    except OSError as error:
        if error.errno in FILTERED:
            filtered = _is_filtered("set_mempolicy", error)
            return None, [f"memory policy {instance.memory.value} is not set: {filtered}"]
        nodes = format_cpu_list(instance.memory_nodes)
        note = (
            f"instance {instance.index} runs without memory policy {instance.memory.value} {nodes}: "
            f"the kernel refused it ({error.strerror})"
        )
        return None, [note]
    return inherited, []


def _restore_python_signals() -> None:
    # Python ignores these two from its start, and exec keeps ignored signals ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
