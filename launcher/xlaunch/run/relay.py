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

from xlaunch.planning.plan import Instance, Plan
from xlaunch.run.logs import STREAMS
from xlaunch.run.output import READ_SIZE, LineTagger, Sink, Verbatim, read_available, same_file

PIPE_BYTES = 1 << 20
"""What a pipe holds at most, unless an administrator allows more."""

Listener = Callable[[int, str, bytes], None]
"""Takes what an instance wrote: its number, ``out`` or ``err``, the bytes."""


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

    def open(self, instance: Instance) -> tuple[int, int]:
        """New ways for an instance's standard output and error: the ends that it writes to."""
        out, err = (
            self._open_way(instance, stream, sink)
            for stream, sink in zip(STREAMS, (self._stdout, self._stderr), strict=True)
        )
        return out, err

    def _open_way(self, instance: Instance, stream: str, sink: Sink) -> int:
        if self._plan.request.pty:
            from xlaunch.run.pseudo_terminal import open_pseudo_terminal

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
            from xlaunch.run.pseudo_terminal import resize

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
        elif events & select.POLLNVAL:
            self._poll.unregister(descriptor)
        else:
            self._write_sink(descriptor)

    def drain(self, index: int) -> None:
        """Read what an instance that has ended left in its pipes; at most what they can hold."""
        for descriptor, source in list(self._sources.items()):
            if source.index == index:
                for _ in range(PIPE_BYTES // READ_SIZE):
                    if descriptor in self._sources:
                        self._read_source(descriptor)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Take what the last processes wrote; a stranger that holds a pipe open is not waited for."""
        for descriptor, source in self._sources.items():
            while data := read_available(descriptor):
                source.sink.add(self._taken(source, data))
                self.flush(given_up)
            source.sink.add(source.tagger.finish())
            os.close(descriptor)
        self._sources.clear()
        self.flush(given_up)

    def flush(self, given_up: Callable[[], bool]) -> None:
        """Write what waits for the destinations, as long as somebody reads and it is not given up."""
        for sink in {self._stdout, self._stderr}:
            while sink.pending and not sink.broken:
                if given_up():
                    return
                if select.select([], [sink.descriptor], [], 0.1)[1]:
                    sink.write_some()

    def _read_source(self, descriptor: int) -> None:
        source = self._sources[descriptor]
        data = read_available(descriptor)
        if data is None:
            return
        self._put(source.sink, self._taken(source, data) if data else source.tagger.finish())
        if not data or source.sink.broken:
            # With no reader left, the instance gets the SIGPIPE that it would get without us.
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._sources[descriptor]
        elif source.sink.full:
            self._watch_sources_of(source.sink, readable=False)

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
