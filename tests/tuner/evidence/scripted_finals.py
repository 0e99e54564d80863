# SPDX-License-Identifier: Apache-2.0
"""Finalists, launches and finals of made-up values, for tests of verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from xtune.evidence.finals import Final, FinalLaunch, FinalPlan
from xtune.evidence.verdicts import FinalistResults
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Requirement, Secondary
from xtune.space.parameters import Configuration

RATE = Objective("images/s", Goal.MAXIMIZE)
P99 = Requirement("p99<=20ms", "p99", True, 0.020)
RATE_UNDER_P99 = Objective("images/s", Goal.MAXIMIZE, (P99,))
ONE = Configuration({"allocator": "tcmalloc"})
TWO = Configuration({"allocator": "tcmalloc", "smt": True})
THREE = Configuration({"openmp": "gnu-passive"})


def finalist(
    configuration: Configuration,
    ratios: Sequence[float | None],
    *,
    changes: int = 1,
    memory_bytes: float | None = None,
    kept: Sequence[bool | None] = (),
    out: str = "",
) -> FinalistResults:
    """A finalist that was so many times better in each block."""
    return FinalistResults(
        configuration=configuration,
        changes=changes,
        log_ratios=tuple(None if ratio is None else math.log(ratio) for ratio in ratios),
        kept=tuple(kept),
        memory_bytes=memory_bytes,
        out=out,
    )


def around(ratio: float, spread: float, pairs: int, seed: int = 0) -> list[float]:
    """Ratios with exactly this geometric mean and this standard deviation of logarithms."""
    drawn = np.random.default_rng(seed).standard_normal(pairs)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
    return [float(value) for value in ratio * np.exp(spread * drawn)]


def launch(
    configuration: Configuration, value: float | None, *, p99_s: float | None = None, **more: object
) -> Launch:
    """What a launch of this configuration came to."""
    made = Launch(
        configuration,
        repr(configuration),
        Outcome.MEASURED,
        value,
        0.0,
        requirements=((P99.text, p99_s),),
        secondary=Secondary(10.0),
    )
    return made._replace(**more)  # type: ignore[arg-type]


Script = Callable[[FinalLaunch], Launch]


def scripted(
    values: dict[Configuration, float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    instead: Callable[[FinalLaunch], Launch | None] = lambda _: None,
) -> Script:
    """An executor that gives each configuration its value, times noise, or what `instead` gives."""
    rng = np.random.default_rng(seed)

    def execute(step: FinalLaunch) -> Launch:
        if (other := instead(step)) is not None:
            return other
        value = values[step.configuration] * math.exp(noise * rng.standard_normal())
        return launch(step.configuration, value)

    return execute


def play(
    plan: FinalPlan, execute: Script, *, objective: Objective = RATE, blocks: int | None = None
) -> tuple[Final, list[FinalLaunch]]:
    """A final played to its end, or for so many blocks, and its launches."""
    final = Final(plan, objective)
    return final, go_on(final, execute, plan.planned if blocks is None else blocks)


def go_on(final: Final, execute: Script, blocks: float = math.inf) -> list[FinalLaunch]:
    """Play a final until it is over or has so many blocks; the launches that it asked for."""
    steps = []
    while (step := final.next()) is not None and step.block < blocks:
        steps.append(step)
        final.record(step, execute(step))
    return steps
