# SPDX-License-Identifier: Apache-2.0
"""Whether a profile keeps its rule is told from intervals, row by row."""

from __future__ import annotations

from benchmarks.harness.turns import Launched, Measured
from benchmarks.launching.profiles import judgements


def rated(*rates: float) -> Measured:
    return Measured(tuple(Launched([rate], [], [], []) for rate in rates))


def test_broken_undecided_and_kept() -> None:
    measured = {
        "slow": {"auto": rated(90, 90.1, 89.9), "other": rated(100, 100.1, 99.9)},
        "noisy": {"auto": rated(90, 110, 100), "other": rated(100, 100.1, 99.9)},
        "level": {"auto": rated(97, 97.1, 96.9), "other": rated(100, 100.1, 99.9)},
        "died": {"auto": rated(97, 97.1, 96.9), "other": Measured(())},
    }
    broken, undecided, rest = judgements(measured, "auto", 0.95)
    assert broken.startswith("  broken: slow, 0.90 [0.90, 0.90] times other")
    assert undecided.startswith("  undecided: noisy, 1.00 [0.7")
    assert rest == "  kept: 1 of 3"
    assert judgements({}, "auto", 0.95) == ["  kept: 0 of 0"]
