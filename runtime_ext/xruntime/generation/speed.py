# SPDX-License-Identifier: Apache-2.0
"""How fast the tokens of a model come, found while a program generates them."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Final

import torch

from xlaunch import read_machine
from xlaunch.machine.topology import Machine
from xlaunch.text import counted
from xruntime.generation.linear_rows import linear_rows
from xruntime.generation.packed_weights import PackedWeight

MODULE_CALLS: Final = 2
"""So many calls are timed in the modules: the first one also prepares things, so the quickest counts."""

STEPS: Final = 8
"""So many native steps are timed; the median counts."""

READS: Final = 3

MIN_SHARE: Final = 0.5
"""Of the speed of the output layer alone; below it `line` names what may be the reason."""

MIN_WEIGHT_BYTES: Final = 128 << 20
"""Smaller models fit caches, and the rest of a step takes as long as reading them."""


class Speed:
    """The times of a model's first calls, all of the batch size that came first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: tuple[int, float] | None = None
        self._batch = 0
        self._modules: list[float] = []
        self._steps: list[float] = []
        self.line: str | None = None
        """What was found; None before `STEPS` steps."""

    def add_prompt(self, tokens: int, seconds: float) -> None:
        """Keep the time of the first call with several tokens of a sequence: its result is the first token."""
        if self._first is None:
            self._first = tokens, seconds

    def needs_modules(self, batch: int) -> bool:
        """Whether the modules are to compute a call of that size, so that their time is known."""
        return self._batch in (0, batch) and len(self._modules) < MODULE_CALLS

    def add_modules(self, batch: int, seconds: float) -> None:
        """Keep the time of a call of the modules with torch's own linears."""
        with self._lock:
            if self.needs_modules(batch):
                self._batch = batch
                self._modules.append(seconds)

    def add_step(
        self,
        batch: int,
        threads: int,
        seconds: float,
        head: torch.Tensor | PackedWeight,
        weight_bytes: int,
    ) -> bool:
        """Keep the time of a native step by so many threads; return whether `line` was found just now.

        head
            The weights of the last linear, (vocabulary, hidden), which are read alone to see how fast memory is.
        weight_bytes
            The bytes of weights that a token reads.
        """
        with self._lock:
            if self.line is not None or batch != self._batch:
                return False
            self._steps.append(seconds)
            if len(self._steps) < STEPS:
                return False
            self.line = self._described(threads, head.detach(), weight_bytes)
            return True

    def _described(self, threads: int, head: torch.Tensor | PackedWeight, weight_bytes: int) -> str:
        step_s, modules_s = statistics.median(self._steps), min(self._modules)
        share = weight_bytes / step_s / _read_rate(head)
        first = ""
        if self._first is not None:
            first = f"; first token {self._first[1]:.3g} s after a prompt of {self._first[0]}"
        reasons = ""
        if share < MIN_SHARE and weight_bytes >= MIN_WEIGHT_BYTES:
            # Imported here, as in `slow_reasons`: a program whose tokens come fast does not wait for it.
            from xlaunch.machine.limits import SystemMode, system_mode

            has_large_pages = system_mode() is not SystemMode.NEVER
            reasons = f"; that is slow: {slow_reasons(read_machine(), threads, has_large_pages)}"
        return (
            f"{step_s * 1e3:.3g} ms a token by {counted(threads, 'thread')}, {modules_s * 1e3:.3g} by the modules, without what"
            f" generate() adds, in calls of {self._batch}; {weight_bytes / 1e6:.0f} MB of weights a token, read at {share:.0%} of the speed"
            f" of the output layer alone{first}{reasons}"
        )


def slow_reasons(machine: Machine, threads: int, has_large_pages: bool) -> str:
    """Return what on a machine may keep a step from reading memory fast, and what to do."""
    from xlaunch.doctor.decoding import machine_causes

    causes = machine_causes(machine, threads)
    if has_large_pages:
        causes.append("weights in small pages, unless optimize had inplace=True")
    else:
        causes.append("no pages of 2 MiB (transparent huge pages: never)")
    return "; ".join([*causes, "or other programs (xlaunch doctor shows them)"])


def _read_rate(head: torch.Tensor | PackedWeight) -> float:
    """Bytes a second at which a product of one row reads these weights."""
    row = torch.zeros((1, head.shape[1]))
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        linear_rows(row, head, None)
        times.append(time.perf_counter() - began)
    return head.nbytes / max(min(times), 1e-9)
