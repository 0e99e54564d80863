# SPDX-License-Identifier: Apache-2.0
"""The relay: reads instances' pipes or pseudo-terminals, writes to the launcher's own streams, with its own lines.

It never blocks: the supervisor's poll() drives it. While a destination accepts nothing, the pipes
that lead there are left to fill up.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xlaunch.console import json_line
from xlaunch.output.destinations import (
    ERASE_TO_END,
    STREAMS,
    JsonLines,
    LineTagger,
    LogFile,
    Sink,
    last_lines,
    log_path,
    open_logs,
    read_available,
    same_file,
)
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import LogFormat, RunRequest

PIPE_BYTES = 1 << 20
"""Maximum content of a pipe (default of /proc/sys/fs/pipe-max-size)."""

DEFAULT_SIZE = (24, 80)
"""Rows and columns if the launcher has no terminal."""


class Chunk(NamedTuple):
    """Bytes that an instance wrote."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    stream: str
    """``out`` or ``err``."""
    data: bytes


class StandardStreams(NamedTuple):
    """File descriptors that become an instance's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class _Source(NamedTuple):
    """One output stream of one instance, and where it goes."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    stream: str
    """``out`` or ``err``."""
    tagger: LineTagger | JsonLines | None
    """None: bytes are passed on unchanged, of a single instance."""
    sink: Sink
    log: LogFile | None = None
    """The file that it goes to as well (`--tee`), or instead."""


class Relay:
    """Passes on the output of all instances, and prints the launcher's lines between it."""

    def __init__(self, plan: Plan, run: RunRequest, poll: select.poll) -> None:
        """`poll` is the supervisor's."""
        self._plan = plan
        self._run = run
        self._tagged = plan.tagged(run)
        self._poll = poll
        shared = len(plan.instances) > 1 or self._tagged
        self._stdout = Sink(1, shared=shared)
        self._stderr = self._stdout if same_file(1, 2) else Sink(2, shared=shared)
        self._is_json = run.log_format is LogFormat.JSON
        self._nowhere = Sink(1)
        self._nowhere.give_up()
        self._sources: dict[int, _Source] = {}
        self._live_shown = False
        self.lost_logs: list[str] = []
        """Why log files (`--tee`) are not whole, one line each."""
        self._line_begun = False
        """Whether an instance has written part of a line to standard error."""

    @contextlib.contextmanager
    def open_streams(self, instance: Instance, *, first: bool) -> Iterator[StandardStreams]:
        """Open the standard streams for a run of an instance; those of its own are closed after the block.

        `first`: the first run of the instance, which gets new log files.
        """
        with contextlib.ExitStack() as opened:

            def owned(descriptor: int) -> int:
                opened.callback(os.close, descriptor)
                return descriptor

            stdin = 0
            if len(self._plan.instances) > 1:
                stdin = owned(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            logs: tuple[int, int] | None = None
            if self._run.log_dir is not None:
                logs = open_logs(self._run.log_dir, instance.index, new=first)
            if logs is not None and not self._run.relays_logs:
                out, err = map(owned, logs)
                yield StandardStreams(stdin, out, err)
            elif self._plan.relayed(self._run):
                sinks = (self._stdout, self._stderr)
                if logs is not None and not self._run.tee:
                    sinks = (self._nowhere, self._nowhere)
                out, err = (
                    owned(self._open_pipe(instance, stream, sink, log))
                    for stream, sink, log in zip(STREAMS, sinks, logs or (None, None), strict=True)
                )
                yield StandardStreams(stdin, out, err)
            else:
                yield StandardStreams(stdin, 1, 2)

    def _open_pipe(self, instance: Instance, stream: str, sink: Sink, log: int | None) -> int:
        reader, writer = _open_pseudo_terminal() if self._run.pty else os.pipe()
        os.set_blocking(reader, False)
        log_file = None
        if log is not None and self._run.log_dir is not None:
            path = log_path(self._run.log_dir, instance.index, stream)
            log_file = LogFile(log, path, self._run.log_size)
        tagger = self._tagger(instance, stream, sink)
        self._sources[reader] = _Source(instance.index, stream, tagger, sink, log_file)
        self._poll.register(reader, select.POLLIN)
        return writer

    def _tagger(self, instance: Instance, stream: str, sink: Sink) -> LineTagger | JsonLines | None:
        if self._is_json:
            return JsonLines(instance.index, stream)
        if len(self._plan.instances) == 1 and not self._tagged:
            return None
        tag = str(instance.index) if self._tagged else ""
        return LineTagger(tag, terminal=sink.terminal)

    def resize_terminals(self) -> None:
        """Set the instances' pseudo-terminals to the current size of the launcher's terminal."""
        size = _window_size()
        for descriptor in self._sources if self._run.pty else ():
            with contextlib.suppress(termios.error):  # no process has it open any more
                termios.tcsetwinsize(descriptor, size)

    def say(self, text: str) -> None:
        """Print lines of the launcher's own on standard error that no other output separates."""
        lines = f"{text}\n"
        if self._is_json:
            lines = "".join([json_line(line, "xlaunch") for line in text.splitlines()])
        self._put(self._stderr, lines.encode(errors="backslashreplace"))

    def show_live(self, line: str) -> None:
        """Show a line on the terminal of standard error that the next output erases.

        Nothing is shown within another line, such as a prompt or a progress bar, or without a terminal.
        """
        if not self._stderr.terminal or self._stderr.pending or self._line_begun or self._is_json:
            return
        columns = os.get_terminal_size(self._stderr.descriptor).columns or 80
        self._put(self._stderr, b"\r" + line[: columns - 1].encode() + ERASE_TO_END)
        self._live_shown, self._line_begun = True, False

    def hide_live(self) -> None:
        """Erase what `show_live` shows."""
        if self._live_shown:
            self._live_shown = False
            self._put(self._stderr, b"\r" + ERASE_TO_END)
            self._line_begun = False

    def handle(self, descriptor: int) -> list[Chunk]:
        """Use a descriptor that poll() has reported; return what an instance wrote."""
        if descriptor in self._sources:
            return self._read_source(descriptor)
        # Any other one was closed while the events before this one were handled.
        if descriptor in (self._stdout.descriptor, self._stderr.descriptor):
            self._write_sink(descriptor)
        return []

    def drain(self, index: int) -> list[Chunk]:
        """Read what an instance that has ended left in its pipes; at most what they can hold."""
        chunks: list[Chunk] = []
        for descriptor, source in list(self._sources.items()):
            room = PIPE_BYTES if source.index == index else 0
            while descriptor in self._sources and room > 0:
                new_chunks = self._read_source(descriptor)
                chunks += new_chunks
                room -= sum(len(chunk.data) for chunk in new_chunks) or room
        return chunks

    def finish(self) -> list[Chunk]:
        """Read and close every pipe. One that an unknown process holds open is not waited for."""
        indices = {source.index for source in self._sources.values()}
        chunks = [chunk for index in indices for chunk in self.drain(index)]
        for descriptor, source in self._sources.items():
            self._pass_on(source, b"")
            self._close(descriptor, source)
        self._sources.clear()
        return chunks

    @property
    def pending(self) -> bool:
        """Whether output waits for its reader."""
        return self._stdout.pending or self._stderr.pending

    @property
    def output_problem(self) -> str | None:
        """Why standard output was lost; None if it was not, or its reader is gone."""
        return self._stdout.problem

    def drop_pending(self) -> None:
        """Drop the pending output of all destinations, and what they would get later."""
        for sink in (self._stdout, self._stderr):
            if sink.pending:
                sink.give_up()

    def _read_source(self, descriptor: int) -> list[Chunk]:
        """Pass on some of what an instance wrote."""
        source = self._sources[descriptor]
        data = read_available(descriptor)
        if data is None:
            return []
        self._pass_on(source, data)
        if not data or (source.sink.broken and source.log is None):
            # Without a reader, the instance gets the SIGPIPE that it would get without the launcher.
            self._close(descriptor, source)
            del self._sources[descriptor]
        elif source.sink.full:
            self._watch_sources_of(source.sink, readable=False)
        return [Chunk(source.index, source.stream, data)] if data else []

    def _pass_on(self, source: _Source, data: bytes) -> None:
        """Write what an instance wrote, or at its end what was held back."""
        lines = data
        if source.tagger is not None:
            lines = source.tagger.feed(data) if data else source.tagger.finish()
        self._put(source.sink, lines)
        if source.log is not None and (
            problem := source.log.write(lines if self._is_json else data)
        ):
            lost = f"{problem}; instance {source.index} is no longer logged"
            self.lost_logs.append(lost)
            self.say(f"xlaunch: warning: {lost}")

    def _close(self, descriptor: int, source: _Source) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        if source.log is not None:
            source.log.close()

    def _put(self, sink: Sink, lines: bytes) -> None:
        if sink is self._stderr and lines:
            self.hide_live()
            self._line_begun = not lines.endswith(b"\n")
        sink.add(lines)
        if sink.pending:
            self._poll.register(sink.descriptor, select.POLLOUT)

    def _write_sink(self, descriptor: int) -> None:
        sink = self._stdout if descriptor == self._stdout.descriptor else self._stderr
        was_full = sink.full
        if sink.pending:
            sink.write_some()
        if not sink.pending:
            self._poll.unregister(descriptor)
        if was_full and not sink.full:
            self._watch_sources_of(sink, readable=True)

    def _watch_sources_of(self, sink: Sink, *, readable: bool) -> None:
        for descriptor, source in self._sources.items():
            if source.sink is sink:
                self._poll.register(descriptor, select.POLLIN if readable else 0)


def _open_pseudo_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal (`--pty`): the end to read from, and the instance's. Raises OSError.

    It is not the controlling terminal: Ctrl-C and job control are not affected, and it has no input.
    """
    ours, theirs = os.openpty()
    # Pass bytes unchanged: no carriage return before each newline.
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    termios.tcsetwinsize(theirs, _window_size())
    return ours, theirs


def _window_size() -> tuple[int, int]:
    """Rows and columns of the launcher's terminal."""
    for descriptor in (1, 2, 0):
        with contextlib.suppress(termios.error):
            rows, columns = termios.tcgetwinsize(descriptor)
            if rows and columns:
                return rows, columns
    return DEFAULT_SIZE


class Messages:
    """Prints lines of the launcher, and keeps the warnings of a run for its report."""

    def __init__(self, relay: Relay, warnings: Iterable[str], *, quiet: bool) -> None:
        """`warnings`: those that were printed before the start. `quiet`: print no further ones."""
        self._relay = relay
        self.quiet = quiet
        self.warnings = list(warnings)

    def say(self, text: str) -> None:
        """Print a line on standard error, never inside another line."""
        self.say_block(f"xlaunch: {text}")

    def say_block(self, text: str) -> None:
        """Print lines on standard error that no other output separates."""
        self._relay.say(text)

    def warn(self, text: str | None) -> None:
        """Add a warning, if there is one, to the report, and print it, once."""
        if text is not None and text not in self.warnings:
            self.warnings.append(text)
            if not self.quiet:
                self.say(f"warning: {text}")

    def show_end_of(self, path: str) -> None:
        """Show the end of a log file."""
        lines = last_lines(path)
        heading = f"xlaunch: the end of {path}:" if lines else f"xlaunch: {path} is empty"
        self.say_block("\n".join([heading, *[f"  {line}" for line in lines]]))

    def report_lost_output(self) -> bool:
        """Print why output was lost; return whether some was."""
        self.warnings += self._relay.lost_logs  # printed when they were lost
        problem = self._relay.output_problem
        if problem is not None:
            text = f"standard output cannot be written: {problem}"
            self.warnings.append(text)
            self.say(f"error: {text}")
        return problem is not None or bool(self._relay.lost_logs)
