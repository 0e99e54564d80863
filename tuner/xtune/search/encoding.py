# SPDX-License-Identifier: Apache-2.0
"""Conversion of stored objects to plain values for JSON, and to attributes of Optuna, and back.

A trial's attributes are plain values that can be read without xtune: ``stage``, ``outcome``, ``metrics``,
``secondary``, ``series 0`` with all samples. Only digits of times below a microsecond are lost. Later
versions read old recordings and studies, so a key never changes its meaning. Empty values are left out.
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
from xtune.space.parameters import BARE, Configuration

Plain = dict[str, Any]

PREFIX = "xtune:"
"""Prefix of attributes that say nothing to people."""

PIECE = 30_000
"""Maximum characters of one attribute. MySQL's TEXT holds 65,535 bytes, and quoting can double them."""


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
        plain["series"] = _encode_series(launch)
    plain = {key: value for key, value in plain.items() if value not in (None, "", [], {})}
    # These are kept even when empty.
    return {"configuration": dict(launch.configuration), "plan": launch.plan_hash} | plain


def _encode_series(launch: Launch) -> list[Plain]:
    # Pipes are slower than a microsecond.
    return [
        {**one._asdict(), "times_s": [round(time_s, 6) for time_s in one.times_s]}
        for one in launch.series
    ]


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


def write_value(write: Callable[[str, Any], object], name: str, value: Any) -> None:
    """Write a plain value as an attribute.

    A long one is written as pieces of its JSON, the attribute that counts them last. Each piece is a list
    of one text, because Optuna's dashboard shortens lists, but shows texts whole.
    """
    text = json.dumps(value)
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    if len(pieces) == 1:
        write(name, value)
        return
    for number, piece in enumerate(pieces):
        write(f"{name}#{number}", [piece])
    write(name, {"pieces": len(pieces)})


def read_values(attributes: Mapping[str, Any]) -> Plain:
    """Read what `write_value` wrote. Raises LookupError, TypeError or ValueError if it is damaged."""
    return {name: read_value(attributes, name) for name in attributes if "#" not in name}


def read_value(attributes: Mapping[str, Any], name: str) -> Any:
    """Read one value that `write_value` wrote. Raises like `read_values`."""
    value = attributes[name]
    if not (isinstance(value, dict) and value.keys() == {"pieces"}):
        return value
    pieces = [attributes[f"{name}#{number}"][0] for number in range(value["pieces"])]
    return json.loads("".join(pieces))


def encode_claim(step: NextLaunch) -> Plain:
    """The attributes of a launch that begins; its configuration is in the trial's parameters."""
    plain = {**step._asdict(), "stage": step.stage.value, "details": dict(step.details)}
    del plain["configuration"]
    return {name: value for name, value in plain.items() if value not in (None, "", {})}


def decode_claim(plain: Plain, configuration: Configuration) -> NextLaunch:
    fields = {name: plain[name] for name in NextLaunch._fields if name in plain}
    return NextLaunch(**{**fields, "stage": Stage(plain["stage"]), "configuration": configuration})


def encode_result(launch: Launch) -> Plain:
    """The attributes of a finished launch."""
    plain = encode_launch(launch)
    for name in ("configuration", "plan", "series"):
        plain.pop(name, None)
    if launch.stderr_tail:
        plain["stderr_tail"] = launch.stderr_tail.split("\n")
    series = {f"series {number}": one for number, one in enumerate(_encode_series(launch))}
    return plain | series


def decode_result(plain: Plain, step: NextLaunch) -> Launch:
    """The launch of a step with these attributes."""
    series = [plain[f"series {n}"] for n in range(sum(key.startswith("series ") for key in plain))]
    return decode_launch(
        {
            **plain,
            "configuration": step.configuration,
            "plan": step.plan_hash,
            "stderr_tail": "\n".join(plain.get("stderr_tail", ())),
            "series": series,
        }
    )


# Studies of format 3, which hold compressed values.


def read_compressed(attributes: Mapping[str, Any], name: str) -> Any:
    """Read a value of a study of format 3. Raises one of `xtune.search.damage.DAMAGE`."""
    count, _, text = attributes[f"{PREFIX}{name}#0"].partition(" ")
    rest = [attributes[f"{PREFIX}{name}#{number}"] for number in range(1, int(count))]
    return json.loads(zlib.decompress(base64.b64decode("".join([text, *rest]))))


def read_compressed_trial(attributes: Mapping[str, Any]) -> Plain:
    """The attributes of a trial of format 3 as this format has them."""
    claim = attributes[f"{PREFIX}claim"]
    plain: Plain = claim | claim["step"]
    if Configuration(plain["configuration"]) == BARE:
        plain["bare"] = True
    if f"{PREFIX}launch#0" in attributes:
        launch = read_compressed(attributes, "launch")
        plain |= launch
        plain |= {f"series {number}": one for number, one in enumerate(launch.get("series", ()))}
        plain["stderr_tail"] = launch.get("stderr_tail", "").split("\n")
    return plain
