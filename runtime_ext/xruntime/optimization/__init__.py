# SPDX-License-Identifier: Apache-2.0
"""`optimize`: one call that makes a model faster on the CPU, checks the result and explains it.

from xruntime import optimization, optimize

fast = optimize(model.eval(), sample_input=batch, dtype=torch.bfloat16)
print(optimization.explain(fast))
"""

from xruntime.optimization.arguments import DTYPES, GRAPHS, LEVELS
from xruntime.optimization.front_end import optimize
from xruntime.optimization.runner import SlowCallWarning
from xruntime.optimization.steps import (
    INFERENCE,
    TRAINING,
    Explanation,
    PassOutcome,
    Step,
    Timing,
    explain,
)

__all__ = [
    "DTYPES",
    "GRAPHS",
    "INFERENCE",
    "LEVELS",
    "TRAINING",
    "Explanation",
    "PassOutcome",
    "SlowCallWarning",
    "Step",
    "Timing",
    "explain",
    "optimize",
]
