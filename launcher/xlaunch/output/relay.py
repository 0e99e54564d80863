# SPDX-License-Identifier: Apache-2.0
"""The way of instances' output: from their pipes or pseudo-terminals to the launcher's own streams.

Nothing here blocks: it is driven by the supervisor's poll(). While a destination takes nothing, the
pipes that lead there are left to fill up.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import NamedTuple

from xlaunch.output.logs import STREAMS, open_logs
from xlaunch.output.tagged_lines import LineTagger, Sink, Verbatim, read_available, same_file
from xlaunch.planning.plans import Instance, Plan

PIPE_BYTES = 1 << 20
"""What a pipe holds at most, unless an administrator allows more."""

Listener = Callable[[int, str, bytes], None]
"""Takes what an instance wrote: its number, ``out`` or ``err``, the bytes."""


class Streams(NamedTuple):
    """File descriptors that become an instance's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class _Source(NamedTuple):
    """One output stream of one instance, on its way to a sink."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    stream: str
    """``out`` or ``err``."""
    tagger: LineTagger | Verbatim
    sink: Sink


class Relay:
    """The output of all instances of a plan, and of the launcher in between."""

    def __init__(self, plan: Plan, poll: select.poll) -> None:
        """`poll` is the supervisor's."""
        self._plan = plan
        self._poll = poll
        shared = len(plan.instances) > 1 or plan.tagged
        self._stdout = Sink(1, shared=shared)
        self._stderr = self._stdout if same_file(1, 2) else Sink(2, shared=shared)
        self._sources: dict[int, _Source] = {}
        self.seen: Listener | None = None
        """Sees all that instances write, before it is passed on."""

    def open_streams(self, instance: Instance, opened: list[int], *, first: bool) -> Streams:
        """The standard streams of a run of an instance.

        Those that the instance alone needs are noted in `opened`. `first`: of its runs, whose log
        files are new.
        """
        stdin = 0
        if len(self._plan.instances) > 1:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            opened.append(stdin)
        if self._plan.request.log_dir is not None:
            outputs = open_logs(self._plan.request.log_dir, instance.index, new=first)
        elif self._plan.relayed:
            outputs = (
                self._open_pipe(instance, STREAMS[0], self._stdout),
                self._open_pipe(instance, STREAMS[1], self._stderr),
            )
        else:
            return Streams(stdin, 1, 2)
        opened.extend(outputs)
        return Streams(stdin, *outputs)

    def _open_pipe(self, instance: Instance, stream: str, sink: Sink) -> int:
        if self._plan.request.pty:
            from xlaunch.output.pseudo_terminal import open_pseudo_terminal

            reader, writer = open_pseudo_terminal()
        else:
            reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._sources[reader] = _Source(instance.index, stream, self._tagger(instance, sink), sink)
        self._poll.register(reader, select.POLLIN)
        return writer

    def _tagger(self, instance: Instance, sink: Sink) -> LineTagger | Verbatim:
        if len(self._plan.instances) == 1 and not self._plan.tagged:
            return Verbatim()
        tag = str(instance.index) if self._plan.tagged else ""
        return LineTagger(tag, terminal=sink.terminal)

    def resize_terminals(self) -> None:
        """Give the instances' pseudo-terminals the size that the launcher's terminal has now."""
        if self._plan.request.pty:
            from xlaunch.output.pseudo_terminal import resize

            resize(self._sources)

    def say(self, text: str) -> None:
        """Put lines of the launcher's own on standard error that nothing else comes between."""
        self._put(self._stderr, f"{text}\n".encode(errors="backslashreplace"))

    def handle(self, descriptor: int, events: int) -> None:
        """Do what can be done with a descriptor that poll() has reported."""
        if descriptor in self._sources:
            self._read_source(descriptor)
        elif descriptor not in (self._stdout.descriptor, self._stderr.descriptor):
            pass  # closed while the events before it were handled
        else:
            self._write_sink(descriptor)

    def drain(self, index: int) -> None:
        """Read what an instance that has ended left in its pipes; at most what they can hold."""
        for descriptor, source in list(self._sources.items()):
            if source.index == index:
                left = PIPE_BYTES
                while descriptor in self._sources and left > 0:
                    count = self._read_source(descriptor)
                    left -= count or left

    def finish(self) -> None:
        """Take what the last processes wrote; a stranger that holds a pipe open is not waited for."""
        for index in {source.index for source in self._sources.values()}:
            self.drain(index)
        for descriptor, source in self._sources.items():
            self._put(source.sink, source.tagger.finish())
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._sources.clear()

    @property
    def pending(self) -> bool:
        """Whether output waits for somebody to read it."""
        return self._stdout.pending or self._stderr.pending

    def drop_pending(self) -> None:
        """Give up destinations whose readers take nothing."""
        for sink in (self._stdout, self._stderr):
            if sink.pending:
                sink.give_up()

    def _read_source(self, descriptor: int) -> int:
        """Pass on some of what an instance wrote; the number of bytes."""
        source = self._sources[descriptor]
        data = read_available(descriptor)
        if data is None:
            return 0
        self._put(source.sink, self._taken(source, data) if data else source.tagger.finish())
        if not data or source.sink.broken:
            # With no reader left, the instance gets the SIGPIPE that it would get without us.
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._sources[descriptor]
        elif source.sink.full:
            self._watch_sources_of(source.sink, readable=False)
        return len(data)

    def _taken(self, source: _Source, data: bytes) -> bytes:
        """What of `data` is to be passed on now; whoever measures has seen it."""
        if self.seen is not None:
            self.seen(source.index, source.stream, data)
        return source.tagger.feed(data)

    def _put(self, sink: Sink, lines: bytes) -> None:
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
