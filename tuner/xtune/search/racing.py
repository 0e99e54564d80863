# SPDX-License-Identifier: Apache-2.0
"""Race of all plans of a small space: each block launches every plan once, and drops losers.

As in irace (López-Ibáñez et al. 2016), survivors get more launches. Plans are compared within blocks,
so slow changes of the machine cancel.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xtune.evidence.distributions import student_quantile

FIRST_BLOCKS = 2
"""Minimum blocks before a plan is dropped."""

MAX_BLOCKS = 8
"""Maximum blocks before the final."""

LAUNCHES_EACH = 3
"""A space is raced if the budget allows this many launches of each plan."""

DROP_LEVEL = 0.005
"""The probability of dropping a plan that is as good as the leader, in one comparison."""

Scores = Mapping[str, float | None]
"""The scores of a block by plan, larger is better; None for a failure."""


class RaceState(NamedTuple):
    """The state of a race."""

    survivors: tuple[str, ...]
    """Plans, the best first."""
    is_over: bool
    """Start the final instead of another block."""


def race_state(plans: Sequence[str], blocks: Sequence[Scores], wanted: int) -> RaceState:
    """The race after complete blocks.

    plans
        All plans of the race, in any order.
    blocks
        The scores of the plans in the race at that time.
    wanted
        Number of plans for the final.
    """
    alive = [plan for plan in plans if all(block.get(plan, 0.0) is not None for block in blocks)]
    for count in range(FIRST_BLOCKS, len(blocks) + 1):
        alive = _survivors(alive, blocks[:count])
    if blocks:
        alive = sorted(alive, key=lambda plan: -_mean(blocks, plan))
    over = len(alive) <= 1 or len(blocks) >= MAX_BLOCKS
    over = over or (len(alive) <= wanted and len(blocks) > FIRST_BLOCKS)
    return RaceState(tuple(alive), bool(blocks) and over)


def block_order(survivors: Sequence[str], block: int, seed: int) -> list[str]:
    """The random order of a block; the same for every worker."""
    order = sorted(survivors)
    random.Random(f"{seed} race {block}").shuffle(order)  # noqa: S311 - no secret
    return order


def _survivors(alive: list[str], blocks: Sequence[Scores]) -> list[str]:
    """The plans that are not significantly behind the leader; the noise is assumed equal for all."""
    rows = {plan: [_score(block, plan) for block in blocks] for plan in alive}
    if len(rows) < 2:
        return alive
    count = len(blocks)
    middles = [sum(row[at] for row in rows.values()) / len(rows) for at in range(count)]
    levels = {plan: sum(row) / count for plan, row in rows.items()}
    overall = sum(levels.values()) / len(levels)
    squares = sum(
        (row[at] - levels[plan] - middles[at] + overall) ** 2
        for plan, row in rows.items()
        for at in range(count)
    )
    degrees = (len(rows) - 1) * (count - 1)
    error = math.sqrt(squares / degrees) * math.sqrt(2.0 / count)
    reach = student_quantile(DROP_LEVEL, degrees) * error
    leader = max(levels.values())
    return [plan for plan in alive if levels[plan] >= leader - reach]


def _score(block: Scores, plan: str) -> float:
    score = block[plan]
    assert score is not None
    return score


def _mean(blocks: Sequence[Scores], plan: str) -> float:
    found = [score for block in blocks if (score := block.get(plan)) is not None]
    return sum(found) / len(found) if found else -math.inf
