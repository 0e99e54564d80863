# SPDX-License-Identifier: Apache-2.0
"""XL10x: advice on performance, with --hints."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Facts, Problem, has_stars, keyword
from xlaunch.doctor.lint.source import usable_cpus

_FUSED = frozenset(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))


def check_hints(facts: Facts) -> Iterator[Problem]:
    """What would probably make the script faster."""
    cpus = usable_cpus()
    for call in facts.calls_named("torch.utils.data.DataLoader"):
        workers = keyword(call.node, "num_workers")
        count = workers.value if isinstance(workers, ast.Constant) else None
        if isinstance(count, int) and count > cpus:
            yield (
                call.node,
                "XL104",
                f"num_workers={count} is more than the {cpus} CPUs of this process; take "
                f"len(os.sched_getaffinity(0))",
            )
    for call in facts.calls:
        if (
            facts.full(call.node.func, call.scope) not in _FUSED
            or has_stars(call.node)
            or keyword(call.node, "fused")
            or keyword(call.node, "foreach")
            or (call.node.args and isinstance(call.node.args[0], ast.List))  # a few tensors
        ):
            continue
        yield (
            call.node,
            "XL106",
            "fused=True updates all parameters in one pass over memory, on cpu, cuda, xpu and mps",
        )
        return  # once a file
