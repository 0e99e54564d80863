# SPDX-License-Identifier: Apache-2.0
"""Probes: ask a service whether it works, without ever blocking the caller.

A port has to accept a connection, a URL to answer with a status from 200 to 399, a command to exit with 0.
Addresses are numeric: to look up a name would block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shlex
import signal
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from xlaunch.environment.variables import substitute
from xlaunch.errors import UsageError

EXEC = "exec:"
LOCALHOST = "127.0.0.1"
MAX_ANSWER_BYTES = 1 << 16
"""Of an HTTP answer; the rest is not read."""
FORMS = "a port, http://127.0.0.1:PORT/PATH, or exec:COMMAND"

_URL = re.compile(
    r"http://(?:\[([0-9a-fA-F:.]+)\]|([^/:?#@\[\]]+))(?::(\d+))?(/[^\s#]*)?", re.ASCII
)
_STATUS = re.compile(rb"HTTP/1\.\d (\d{3})")


class Target(NamedTuple):
    """What a probe asks: a command, or an address with the path of a URL."""

    text: str
    """As it was written, for messages."""
    command: tuple[str, ...] = ()
    host: str = LOCALHOST
    port: int = 0
    path: str = ""
    """Empty: only the connection counts."""


def check_form(text: str) -> None:
    """Raise `UsageError` for what is no target, whatever its braces become."""
    bare = re.sub(r"\{[^{}]*\}", "", text)
    if not (text.startswith((EXEC, "http://")) or bare == "" != text or bare.isdigit()):
        raise _not_a_target(text)
    if text.startswith(EXEC):
        _words(text)


def target_of(text: str, words: Mapping[str, str]) -> Target:
    """The target that a text with braces names. `words`: see `words_of`.

    Raises `UsageError`, also for an address that is not numeric.
    """
    if text.startswith(EXEC):
        return Target(text, tuple([substitute(word, words) for word in _words(text)]))
    place = substitute(text, words)
    host, port, path = LOCALHOST, place, ""
    if not place.isdigit():
        url = _URL.fullmatch(place)
        if url is None:
            raise _not_a_target(place)
        version_6, name, port, path = url.groups()
        host, port, path = version_6 or name, port or "80", path or "/"
        if path.startswith("?"):
            path = f"/{path}"
    host = LOCALHOST if host == "localhost" else host
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        raise UsageError(
            f"{place!r}: {host!r} is not a numeric address, and to look it up would block; write {LOCALHOST}"
        ) from None
    if not 0 < int(port) < 1 << 16:
        raise UsageError(f"{place!r}: {port} is not a port from 1 to 65535")
    return Target(place, host=host, port=int(port), path=path)


def _not_a_target(text: str) -> UsageError:
    tls = "; for https write exec:curl URL" if text.startswith("https:") else ""
    return UsageError(f"{text!r} is not {FORMS}{tls}")


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text[len(EXEC) :])
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from None
    if not words:
        raise UsageError(f"{text!r}: the command is empty")
    return words


class Probe:
    """One question. `advance` it until it has an answer; `problem` is then empty if all is well."""

    def __init__(self, target: Target, deadline: float, timeout_s: float) -> None:
        """`deadline`: on the clock of `time.monotonic()`, `timeout_s` from now."""
        self.target = target
        self.deadline = deadline
        self._timeout_s = timeout_s
        self.problem: str | None = None
        """Why the answer is bad; empty for a good one, None while there is none."""
        self.pid: int | None = None
        """The process of a command, until it is reaped."""
        self._socket: socket.socket | None = None
        self._answer = b""
        self._is_connected = False
        try:
            if target.command:
                self.pid = _spawn(target.command)
            else:
                family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
                self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                self._advance_socket(self._socket)
        except OSError as error:
            self._end(error.strerror or str(error))

    @property
    def descriptor(self) -> int | None:
        """What to wait for with poll(), if anything."""
        return None if self._socket is None else self._socket.fileno()

    @property
    def events(self) -> int:
        """The events of `descriptor` to wait for."""
        return select.POLLIN if self._is_connected else select.POLLOUT

    def advance(self, now: float) -> bool:
        """Go on as far as possible without waiting; return whether there is an answer."""
        if self.problem is not None:
            return True
        try:
            if self._socket is not None:
                self._advance_socket(self._socket)
            elif (code := self.reap()) is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
                self._end(f"the command {how}" if code else "")
        except OSError as error:
            self._end(error.strerror or str(error))
        if now >= self.deadline and self.problem is None:
            self._end(self._judge() if self._status() else f"no answer in {self._timeout_s:g} s")
            self.cancel()
        return self.problem is not None

    def reap(self) -> int | None:
        """The exit code of the command, negative for a signal; None while it runs."""
        if self.pid is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def cancel(self) -> None:
        """Close the connection, and kill the command with its process group; then reap it."""
        self._disconnect()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the probe, and wait for the end of its command."""
        self.cancel()
        if self.pid is not None:
            os.waitpid(self.pid, 0)
            self.pid = None

    def _end(self, problem: str) -> None:
        self.problem = problem
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _advance_socket(self, connection: socket.socket) -> None:
        target = self.target
        if not self._is_connected:
            code = connection.connect_ex((target.host, target.port))
            if code in (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN):
                return
            if code not in (0, errno.EISCONN):
                self._end(os.strerror(code).lower())
                return
            self._is_connected = True
            if not target.path:
                self._end("")
                return
            host = f"[{target.host}]" if ":" in target.host else target.host
            request = f"GET {target.path} HTTP/1.1\r\nHost: {host}:{target.port}\r\n"
            request += "User-Agent: xlaunch\r\nAccept: */*\r\nConnection: close\r\n\r\n"
            connection.send(request.encode())  # a new connection takes it whole
        while len(self._answer) < MAX_ANSWER_BYTES:
            try:
                data = connection.recv(MAX_ANSWER_BYTES)
            except BlockingIOError:
                return
            if not data:
                break
            self._answer += data
        self._end(self._judge())

    def _status(self) -> int:
        status = _STATUS.match(self._answer)
        return int(status[1]) if status else 0

    def _judge(self) -> str:
        status = self._status()
        if 200 <= status < 400:
            return ""
        return f"HTTP status {status}" if status else "the answer is not HTTP"


def _spawn(command: Iterable[str]) -> int:
    """Start a command in a process group of its own, without input and output. Raises OSError."""
    words = list(command)
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    return os.posix_spawnp(
        words[0],
        words,
        os.environ,
        file_actions=silent,
        setpgroup=0,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these
    )
