# SPDX-License-Identifier: Apache-2.0
"""Launches of finals: restores a final from the records and chooses its next launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xtune.evidence.advice import MAX_ADVISED_BLOCKS
from xtune.evidence.finals import Final, extend_final
from xtune.launches.objectives import Objective
from xtune.search.encoding import decode_final_plan, encode_final_plan
from xtune.search.records import Record, Stage, Step
from xtune.space.parameters import Configuration


def final_records(records: Sequence[Record]) -> list[Record]:
    """The launches of the last final: those of its attempt, started in the same way."""
    found = [record for record in records if record.step.stage is Stage.FINAL]
    last = max(found, key=lambda one: (one.step.details["attempt"], one.number), default=None)
    return [] if last is None else [one for one in found if _final_of(one) == _final_of(last)]


def _final_of(record: Record) -> tuple[object, ...]:
    return record.step.details["attempt"], record.step.details.get("plans")


class FinalTurns:
    """The finals of a study. All state follows from the records."""

    def __init__(self, objective: Objective, plan_hash: Callable[[Configuration], str]) -> None:
        self._objective = objective
        self._plan_hash = plan_hash
        self._known: dict[int, Final] = {}

    def last(self, records: Sequence[Record]) -> Final | None:
        """The last final with all its launches; None before there is one."""
        made = final_records(records)
        if not made:
            return None
        attempt = made[-1].step.details["attempt"]
        launches = [record.launch for record in made if record.launch is not None]
        # The plan is stored with the first launch, and again wherever it was extended.
        plans = [row.step.details["plan"] for row in made if "plan" in row.step.details]
        plan = decode_final_plan(plans[-1])
        final = self._known.get(attempt)
        if final is None or final.plan != plan or len(final.launches) > len(launches):
            final = self._known[attempt] = Final(plan, self._objective)
        for launch in launches[len(final.launches) :]:
            final.record(launch)
        return final

    def extended(self, final: Final, left: float, *, was_stopped: bool) -> Final:
        """The final with more blocks if its verdict is open, and a look at the point where it stopped.

        If the verdict is clear there, the final is over, and the launches of its open block are unused.

        left
            Launches of the budget.
        was_stopped
            An earlier search ended with the current verdict.
        """
        plan, done = final.plan, final.blocks
        if final.can_continue:
            blocks = math.floor(min(left, 1e6)) // final.block_launches
            if blocks:
                plan = extend_final(plan, done, done + min(blocks, MAX_ADVISED_BLOCKS))
        elif was_stopped and final.next() is not None:
            plan = extend_final(plan, done, len(plan.orders))
        if plan == final.plan:
            return final
        extended = Final(plan, self._objective)
        for launch in final.launches:
            if extended.next() is None:
                break
            extended.record(launch)
        return extended

    def turn(self, final: Final, *, is_new: bool = False) -> Step:
        """The next launch of a final that has one.

        is_new
            Store the plan with the launch.
        """
        turn = final.next()
        attempt = final.plan.attempt
        assert turn is not None
        details: dict[str, Any] = {
            "attempt": attempt,
            "block": turn.block,
            "candidate": turn.candidate,
            "plans": [self._plan_hash(one) for one in final.plan.configurations],
        }
        if is_new:
            details["plan"] = encode_final_plan(final.plan)
        key = f"final {attempt} {turn.block} {turn.candidate}"
        plan_hash = self._plan_hash(turn.configuration)
        return Step(Stage.FINAL, turn.configuration, plan_hash, key, details=details)
