# SPDX-License-Identifier: Apache-2.0
"""The probability that a configuration fails, learnt from failed launches.

Most failures are caused by one setting, or by a pair of settings. A successful launch clears all its
settings and pairs. The others are suspects, above all those that many failures share; a configuration
with suspects will probably fail too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xtune.search.surrogate import Floats, Rows

SINGLE_WEIGHT = 3.0
"""Weight of a single setting, relative to a pair."""

OTHER_WEIGHT = 1.0
"""Weight of any other cause, relative to a pair."""


def success_chances(candidates: Rows, worked: Rows, failed: Rows) -> Floats:
    """(candidates,): the probability that each candidate succeeds. All rows come from one encoder."""
    chances = np.ones(len(candidates))
    if not len(failed):
        return chances
    cleared = np.asarray(_shared(failed, worked).any(axis=1))
    repeated = np.asarray(_shared(failed, failed).sum(axis=1))
    common = _shared(failed, candidates)
    singles = np.eye(failed.shape[1], dtype=bool)
    for at in range(len(failed)):
        suspects = np.triu(~cleared[at])
        weights = suspects * np.where(singles, SINGLE_WEIGHT, 1.0) * repeated[at] ** 2.0
        total = weights.sum() + OTHER_WEIGHT
        blame = (common[at] * weights).sum(axis=(1, 2)) / total
        chances *= 1.0 - blame
    return chances


def _shared(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """(rows, others, parameters, parameters): whether both have the same values of a pair."""
    same = rows[:, None] == others[None]
    shared: NDArray[np.bool_] = same[..., :, None] & same[..., None, :]
    return shared
