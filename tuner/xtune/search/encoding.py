# SPDX-License-Identifier: Apache-2.0
"""Conversion of stored objects to plain values for JSON, and to attributes of Optuna, and back.

A trial's attributes are plain values that can be read without xtune: ``stage``, ``outcome``, ``metrics``,
``secondary``, ``series 0`` with all samples. Only digits of times below a microsecond are lost. Later
versions read old recordings and studies, so a key never changes its meaning. Empty values are left out.
What is damaged raises one of `DAMAGE`, and nothing is computed from it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import textwrap
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from xtune.launches.launch import Launch
from xtune.search.records import NextLaunch, Stage
from xtune.space.parameters import BARE, Configuration
from xtune.space.plain_values import from_plain, to_plain

Plain = dict[str, Any]

PREFIX = "xtune:"
"""Prefix of attributes that say nothing to people."""

PIECE = 30_000
"""Maximum characters of one attribute. MySQL's TEXT holds 65,535 bytes, and quoting can double them."""

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, zlib.error)
"""What reading damaged attributes raises."""

_EMPTY: tuple[Any, ...] = (None, "", [], {})


def check_details(step: NextLaunch) -> tuple[Configuration, ...]:
    """The configurations of a step, those of its final too. Raises one of `DAMAGE`."""
    final = step.details
    if final is None:
        if step.stage is Stage.FINAL:
            raise KeyError("details")
        return (step.configuration,)
    if final.candidate not in range(len(final.plan.configurations)):
        raise ValueError(f"candidate is {final.candidate}")
    return (step.configuration, *final.plan.configurations)


def check_numbers(step: NextLaunch, launch: Launch) -> None:
    """Raise ValueError if a time, a size or a number of samples cannot be."""
    for number in (step.cut_at, launch.began_s, *launch.secondary):
        if number is not None and not math.isfinite(number):
            raise ValueError(f"a time, size or limit is {number}")
    for series in launch.series:
        if len(series.times_s) != len(series.values):
            raise ValueError(
                f"{len(series.values)} values of {series.metric} at {len(series.times_s)} times"
            )


def damage_text(error: BaseException) -> str:
    """The damage in one line. **Ex.:** ``'outcome' is missing``."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return textwrap.shorten(text, 200, placeholder=" ...")


def _filled(plain: Mapping[str, Any]) -> Plain:
    """Without empty values."""
    return {name: value for name, value in plain.items() if value not in _EMPTY}


def encode_launch(launch: Launch, *, series: bool = True) -> Plain:
    """A launch as plain values; `series`: include raw samples."""
    plain: Plain = to_plain(launch if series else launch._replace(series=()))
    configuration, plan_hash = plain.pop("configuration"), plain.pop("plan_hash")
    for name in ("requirements", "metrics", "units"):
        plain[name] = dict(plain[name])
    plain["secondary"] = _filled(plain["secondary"])
    for one in plain["series"]:  # pipes are slower than a microsecond
        one["times_s"] = [round(time_s, 6) for time_s in one["times_s"]]
    return {"configuration": configuration, "plan": plan_hash, **_filled(plain)}


def write_value(write: Callable[[str, Any], object], name: str, value: Any) -> None:
    """Write a plain value as an attribute.

    A long one is written as pieces of its JSON, the attribute that counts them last. Each piece is a list
    of one text, because Optuna's dashboard shortens lists, but shows texts whole.
    """
    text = json.dumps(value)
    if len(text) <= PIECE:
        write(name, value)
        return
    starts = range(0, len(text), PIECE)
    for number, at in enumerate(starts):
        write(f"{name}#{number}", [text[at : at + PIECE]])
    write(name, {"pieces": len(starts)})


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
    plain: Plain = to_plain(step)
    del plain["configuration"]
    if step.details is not None:  # finalists are lists, without the names of their fields
        plan = plain["details"]["plan"]
        plan["finalists"] = [[*finalist.values()] for finalist in plan["finalists"]]
    return _filled(plain)


def encode_result(launch: Launch) -> Plain:
    """The attributes of a finished launch."""
    plain = encode_launch(launch)
    del plain["configuration"], plain["plan"]
    if launch.stderr_tail:
        plain["stderr_tail"] = launch.stderr_tail.split("\n")
    return plain | {f"series {n}": one for n, one in enumerate(plain.pop("series", ()))}


def decode_result(plain: Plain, step: NextLaunch) -> Launch:
    """The launch of a step with these attributes."""
    series = [plain[f"series {n}"] for n in range(sum(key.startswith("series ") for key in plain))]
    tail = "\n".join(plain.get("stderr_tail", ()))
    launch = from_plain(
        Launch,
        {**plain, "configuration": {}, "plan_hash": step.plan_hash}
        | {"stderr_tail": tail, "series": series},
    )
    return launch._replace(configuration=step.configuration)


# Studies of format 3, which hold compressed values.


def _read_compressed(attributes: Mapping[str, Any], name: str) -> Any:
    count, _, text = attributes[f"{PREFIX}{name}#0"].partition(" ")
    further_parts = [attributes[f"{PREFIX}{name}#{number}"] for number in range(1, int(count))]
    return json.loads(zlib.decompress(base64.b64decode("".join([text, *further_parts]))))


def read_compressed_study(attributes: Mapping[str, Any]) -> Plain:
    """The attributes of a study of format 3 in this format, without damaged notes. Raises one of `DAMAGE`."""
    plain: Plain = _read_compressed(attributes, "subject")
    for key in attributes:
        name = key.removeprefix(PREFIX).partition("#")[0]
        if name.startswith("note "):
            with contextlib.suppress(*DAMAGE):
                plain[name.removeprefix("note ")] = _read_compressed(attributes, name)
    return plain


def read_compressed_trial(attributes: Mapping[str, Any]) -> Plain:
    """The attributes of a trial of format 3 as this format has them."""
    claim = attributes[f"{PREFIX}claim"]
    plain: Plain = claim | claim["step"]
    plain["details"] = plain["details"] or None
    if Configuration(plain["configuration"]) == BARE:
        plain["bare"] = True
    if f"{PREFIX}launch#0" in attributes:
        launch = _read_compressed(attributes, "launch")
        plain |= launch
        plain |= {f"series {number}": one for number, one in enumerate(launch.get("series", ()))}
        plain["stderr_tail"] = launch.get("stderr_tail", "").split("\n")
    return plain
