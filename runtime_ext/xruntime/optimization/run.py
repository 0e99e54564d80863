# SPDX-License-Identifier: Apache-2.0
"""One run of `optimize`: passes one after the other, each checked on the sample and undone if it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xruntime.kept.libraries import weight_bytes
from xruntime.optimization.checking import Check
from xruntime.optimization.request import Request
from xruntime.optimization.steps import (
    Explanation,
    Outcome,
    SkipPassError,
    Step,
    Timing,
)
from xruntime.optimization.work import Work


class Run:
    """What inference and training share. `steps` has what became of each pass so far."""

    def __init__(self, request: Request, work: Work) -> None:
        self.request = request
        self.work = work
        self.steps: list[Step] = []
        self.check: Check | None = None
        self._bytes_before = weight_bytes(work.model)

    def prepare(self) -> None:
        """Call and watch the model with the sample, if there is one, to compare with."""
        if self.work.call is not None:
            self.check = Check(self.work, self.request.tolerance)

    def run_passes(self, passes: Mapping[str, Callable[[], str]]) -> None:
        """Run passes and check all of them at once; only if that fails, one after the other."""
        work, done = self.work, len(self.steps)
        mark, modes = work.edits.mark(), work.modes
        for name, change in passes.items():
            self.run_pass(name, change, checked=False)
        if self.check is not None and self.check.problem(work.run) is not None:
            work.edits.undo(mark)
            work.modes = modes
            del self.steps[done:]
            for name, change in passes.items():
                self.run_pass(name, change)

    def run_pass(self, name: str, change: Callable[[], str], *, checked: bool = True) -> bool:
        """Run one pass; undo it if the outputs differ then. Return whether it is applied."""
        work = self.work
        obstacle = self.request.obstacle(name)
        if obstacle is not None:
            self.steps.append(Step(name, Outcome.SKIPPED, obstacle))
            return False
        mark, modes = work.edits.mark(), work.modes
        outcome, reason = Outcome.APPLIED, ""
        try:
            reason = change()
        except SkipPassError as skip:
            outcome, reason = Outcome.SKIPPED, str(skip)
        else:
            problem = self.check.problem(work.run) if self.check is not None and checked else None
            if problem is not None:
                outcome, reason = Outcome.UNDONE, f"{reason}, but {problem}"
        if outcome is not Outcome.APPLIED:
            work.edits.undo(mark)
            work.modes = modes
        self.steps.append(Step(name, outcome, reason))
        return outcome is Outcome.APPLIED

    def explanation(self, bytes_kept: int = 0, timings: tuple[Timing, ...] = ()) -> Explanation:
        """Return what was done, for `explain`."""
        return Explanation(
            self.work.runner.kind.__name__,
            self.request.level,
            tuple(self.steps),
            self._bytes_before,
            weight_bytes(self.work.model),
            bytes_kept,
            None if self.check is None else self.check.latest,
            timings,
        )
