# SPDX-License-Identifier: Apache-2.0
"""What every command prints, and how errors end: the standard streams, notes, exit codes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

from xlaunch.errors import UsageError, XLaunchError


def report_errors(
    dispatch: Callable[[list[str]], int], arguments: Sequence[str], program: str = "xlaunch"
) -> int:
    """Run `dispatch` and return its exit code; print an error as one line."""
    try:
        return dispatch(list(arguments))
    except XLaunchError as error:
        say(f"error: {error}", program)
        return error.exit_code
    except BrokenPipeError:  # the reader of standard output has enough
        return 1
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None and _is_nowhere():
            say("error: the working directory has been removed; change to another one", program)
            return UsageError.exit_code
        say(f"error: {_explain(error)}", program)
        return XLaunchError.exit_code


def _explain(error: OSError) -> str:
    """What failed. An error that names no file is of standard output, or of a new process."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"standard output cannot be written: {error.strerror}"
    if error.filename is None and error.errno in (errno.EAGAIN, errno.ENOMEM):
        return f"no process can be started: {error.strerror} (see ulimit -u, or the container's limits)"
    return str(error)


def _is_nowhere() -> bool:
    """Whether the working directory has been removed."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def json_line(line: str, stream: str, instance: int | None = None) -> str:
    """A line of output as JSON, with the time of now. `stream`: ``out``, ``err``, or ``xlaunch``."""
    import json
    from datetime import UTC, datetime

    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    fields = {"time": now, "instance": instance, "stream": stream, "line": line}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def say(text: str, program: str = "xlaunch", *, as_json: bool = False) -> None:
    """Print one line of the program's own to standard error."""
    line = f"{program}: {' '.join(text.split())}"
    line = json_line(line, program) if as_json else f"{line}\n"
    with contextlib.suppress(OSError):  # standard error is closed or full
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()


def terminal_width(descriptor: int) -> int | None:
    """The width in columns of the terminal on a descriptor; None if it is none or has no size."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def prepare_streams() -> None:
    """Open /dev/null for each closed standard stream, whose number the next pipe would get.

    Characters that a stream's encoding lacks are escaped: file names may hold anything.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
    # Python has none where it found one closed.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_streams() -> None:
    """Flush the standard streams. What cannot be written is dropped: the error was reported."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # At exit Python would try again, print a complaint, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
