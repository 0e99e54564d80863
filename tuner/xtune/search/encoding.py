# SPDX-License-Identifier: Apache-2.0
"""Conversion of stored objects to plain values for JSON, and to attributes of Optuna, and back.

Only digits of times below a microsecond are lost. Later versions read old recordings and studies, so a
key never changes its meaning. Empty values are left out.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from xtune.evidence.finals import Finalist, FinalPlan
from xtune.evidence.verdicts import ClaimRule
from xtune.launches.launch import (
    Goal,
    Launch,
    Objective,
    Outcome,
    Requirement,
    Secondary,
    Series,
    Steadiness,
)
from xtune.search.records import NextLaunch, Stage
from xtune.space.parameters import Configuration

Plain = dict[str, Any]

PREFIX = "xtune:"
"""Prefix of the attributes that xtune reads. Others are for people."""

PIECE = 32_000
"""Maximum characters of one attribute: MySQL's TEXT holds 65,535 bytes."""


def encode_objective(objective: Objective) -> Plain:
    requirements = [requirement._asdict() for requirement in objective.requirements]
    return {
        "metric": objective.metric,
        "goal": objective.goal.value,
        "requirements": requirements,
    }


def decode_objective(plain: Plain) -> Objective:
    requirements = tuple(Requirement(**one) for one in plain["requirements"])
    return Objective(plain["metric"], Goal(plain["goal"]), requirements)


def encode_launch(launch: Launch, *, series: bool = True) -> Plain:
    """A launch as plain values; `series`: include raw samples."""
    plain: Plain = {
        "configuration": dict(launch.configuration),
        "plan": launch.plan_hash,
        "outcome": launch.outcome.value,
        "value": launch.value,
        "began_s": launch.began_s,
        "steadiness": launch.steadiness.value,
        "requirements": dict(launch.requirements),
        "metrics": dict(launch.metrics),
        "units": dict(launch.units),
        "secondary": {k: v for k, v in launch.secondary._asdict().items() if v is not None},
        "exit_code": launch.exit_code,
        "stderr_tail": launch.stderr_tail,
        "shared_cpus": list(launch.shared_cpus),
        "notes": list(launch.notes),
    }
    if series:
        plain["series"] = [
            # Pipes are slower than a microsecond.
            {**one._asdict(), "times_s": [round(time_s, 6) for time_s in one.times_s]}
            for one in launch.series
        ]
    plain = {key: value for key, value in plain.items() if value not in (None, "", [], {})}
    # These are kept even when empty.
    return {"configuration": dict(launch.configuration), "plan": launch.plan_hash} | plain


def decode_launch(plain: Plain) -> Launch:
    return Launch(
        configuration=Configuration(plain["configuration"]),
        plan_hash=plain["plan"],
        outcome=Outcome(plain["outcome"]),
        value=plain.get("value"),
        began_s=plain["began_s"],
        steadiness=Steadiness(plain["steadiness"]),
        requirements=tuple(plain.get("requirements", {}).items()),
        metrics=tuple(plain.get("metrics", {}).items()),
        units=tuple(plain.get("units", {}).items()),
        secondary=Secondary(**plain["secondary"]),
        series=tuple(
            Series(**one | {"times_s": tuple(one["times_s"]), "values": tuple(one["values"])})
            for one in plain.get("series", ())
        ),
        exit_code=plain.get("exit_code"),
        stderr_tail=plain.get("stderr_tail", ""),
        shared_cpus=tuple(plain.get("shared_cpus", ())),
        notes=tuple(plain.get("notes", ())),
    )


def encode_step(step: NextLaunch) -> Plain:
    return {
        **step._asdict(),
        "stage": step.stage.value,
        "configuration": dict(step.configuration),
        "details": dict(step.details),
    }


def decode_step(plain: Plain) -> NextLaunch:
    configuration, stage = Configuration(plain["configuration"]), Stage(plain["stage"])
    return NextLaunch(**{**plain, "stage": stage, "configuration": configuration})


def encode_final_plan(plan: FinalPlan) -> Plain:
    return {
        "baseline": dict(plan.baseline),
        "finalists": [[dict(one.configuration), one.changes] for one in plan.finalists],
        "planned": plan.planned,
        "rule": plan.rule._asdict(),
        "seed": plan.seed,
        "attempt": plan.attempt,
    }


def decode_final_plan(plain: Plain) -> FinalPlan:
    finalists = [Finalist(Configuration(one), changes) for one, changes in plain["finalists"]]
    baseline, rule = Configuration(plain["baseline"]), ClaimRule(**plain["rule"])
    return FinalPlan(
        baseline, tuple(finalists), plain["planned"], rule, plain["seed"], plain["attempt"]
    )


def write_pieces(write: Callable[[str, Any], None], name: str, plain: Any) -> None:
    """Write plain values of any size as attributes of bounded length, the first one last."""
    data = json.dumps(plain, separators=(",", ":")).encode()
    text = base64.b64encode(zlib.compress(data)).decode()
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    for number, piece in reversed(list(enumerate(pieces))):
        write(f"{PREFIX}{name}#{number}", piece if number else f"{len(pieces)} {piece}")


def read_pieces(attributes: Mapping[str, Any], name: str) -> Any:
    """Read what `write_pieces` wrote; None if it is missing."""
    count, _, text = attributes.get(f"{PREFIX}{name}#0", "").partition(" ")
    if not count:
        return None
    rest = [attributes[f"{PREFIX}{name}#{number}"] for number in range(1, int(count))]
    return json.loads(zlib.decompress(base64.b64decode("".join([text, *rest]))))
