# SPDX-License-Identifier: Apache-2.0
"""How layers become the options of a launch: a table of layers and what comes of them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from tests.golden import Golden

from xlaunch.errors import UsageError
from xlaunch.options.definitions import BY_KEY, FIELDS, IN_FILES, OPTIONS
from xlaunch.options.precedence import COMMAND_LINE, Layer, request_from, resolve, variables_layer
from xlaunch.planning.request import MAX, Mode, OnFailure, Request

TYPED, PRESET, PROJECT, USER = COMMAND_LINE, "preset p.toml", "project", "user"

Layers = list[tuple[str, dict[str, Any]]]

MERGED: dict[str, tuple[Layers, dict[str, Any], dict[str, str]]] = {
    "nothing": ([(TYPED, {}), (USER, {})], {}, {}),
    "variables of --env are merged by name": (
        [
            (TYPED, {"env": (("A", "1"),)}),
            (PRESET, {"env": (("A", "2"), ("B", "3"))}),
            (USER, {"env": (("B", "4"), ("C", "5"))}),
        ],
        {"env": (("A", "1"), ("B", "3"), ("C", "5"))},
        {"env A": TYPED, "env B": PRESET, "env C": USER},
    ),
    "of a variable set twice in one layer the last value counts": (
        [(TYPED, {"env": (("A", "1"), ("A", "2"))})], {"env": (("A", "2"),)}, {"env A": TYPED},
    ),
    "other options that may be repeated are not merged": (
        [(TYPED, {"metric": ("a",)}), (USER, {"metric": ("b",)})], {"metric": ("a",)},
        {"metric": TYPED},
    ),
    "max of one count and a number of the other go together": (
        [(TYPED, {"ncores": 2}), (PRESET, {"instances": MAX})],
        {"ncores": 2, "instances": MAX},
        {"ncores": TYPED, "instances": PRESET},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layers", "values", "origins"), MERGED.values(), ids=MERGED)
def test_layers_are_merged(layers: Layers, values: dict[str, Any], origins: dict[str, str]) -> None:
    assert resolve([Layer(*layer) for layer in layers]) == (values, origins, ())


DROPPED: list[tuple[Layers, dict[str, Any], list[str]]] = [
    (
        [(TYPED, {"instances": 2}), (PRESET, {"mode": Mode.LATENCY})], {"instances": 2},
        ["mode latency (preset p.toml) is ignored: instances 2 (command line) contradicts it"],
    ),
    (
        [(TYPED, {"mode": Mode.LATENCY}), (PRESET, {"instances": 2, "ncores": 1})],
        {"mode": Mode.LATENCY},
        [
            "instances 2 (preset p.toml) is ignored: mode latency (command line) contradicts it",
            "ncores 1 (preset p.toml) is ignored: mode latency (command line) contradicts it",
        ],
    ),
    (
        # What is dropped in one layer is not taken from a weaker one.
        [(TYPED, {"ncores": MAX}), (PRESET, {"instances": MAX}), (USER, {"instances": 3})],
        {"ncores": MAX},
        ["instances max (preset p.toml) is ignored: ncores max (command line) contradicts it"],
    ),
    (
        [(TYPED, {"cache_dir": "d"}), (USER, {"no_cache": True})], {"cache_dir": "d"},
        ["no-cache true (user) is ignored: cache-dir d (command line) contradicts it"],
    ),
    (
        [(TYPED, {"module": True}), (PRESET, {"no_python": True})], {"module": True},
        ["no-python true (preset p.toml) is ignored: module true (command line) contradicts it"],
    ),
    (
        [(TYPED, {"ncores": 2}), ("XLAUNCH_OPT_", {"mode": Mode.LATENCY})], {"ncores": 2},
        ["mode latency (XLAUNCH_OPT_MODE) is ignored: ncores 2 (command line) contradicts it"],
    ),
    ([(TYPED, {"instances": 2}), (PRESET, {"instances": 4, "ncores": 2})],
     {"instances": 2, "ncores": 2}, []),
    ([(TYPED, {"pty": False}), (USER, {"log_dir": "d"})], {"pty": False, "log_dir": "d"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "values", "notes"), DROPPED)
def test_the_stronger_layer_wins_with_a_note(
    layers: Layers, values: dict[str, Any], notes: list[str]
) -> None:
    found = resolve([Layer(*layer) for layer in layers])
    assert (found.values, list(found.notes)) == (values, notes)
    assert set(found.origins) == set(values)


def test_contradiction_within_a_layer_is_refused(golden: Golden) -> None:
    wrong: list[Layers] = [
        [(TYPED, {"quiet": True, "verbose": True})],
        [(TYPED, {}), (PRESET, {"mode": Mode.LATENCY, "ncores": 2}), (USER, {"smt": True})],
        [(TYPED, {"instances": MAX, "ncores": MAX})],
    ]
    golden.errors(*[partial(resolve, [Layer(*layer) for layer in layers]) for layers in wrong])


def test_variables() -> None:
    environment = {
        "XLAUNCH_OPT_NCORES": "4",
        "XLAUNCH_OPT_SMT": "yes",
        "XLAUNCH_OPT_ON_FAILURE": "CONTINUE",
        "XLAUNCH_OPT_ENV": "A=1 B=x=y",
        "XLAUNCH_OPT_METRIC": "tokens per second\nimages/s",
        "XLAUNCH_OPT_GRACE": "",
        "XLAUNCH_OPT_TIMEOUT": "soon",
        "XLAUNCH_NCORES": "8",
    }
    origin, values = variables_layer(environment, typed=("timeout", "env"))
    assert origin == "XLAUNCH_OPT_"
    assert values == {
        "ncores": 4,
        "smt": True,
        "on_failure": OnFailure.CONTINUE,
        "env": (("A", "1"), ("B", "x=y")),
        "metric": ("tokens per second", "images/s"),
    }
    with pytest.raises(UsageError, match=r"^XLAUNCH_OPT_TIMEOUT: 'soon' is not a time"):
        variables_layer(environment)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("NCORE", "did you mean XLAUNCH_OPT_NCORES?"),
        ("ncores", "did you mean XLAUNCH_OPT_NCORES?"),
        ("LOG-DIR", "did you mean XLAUNCH_OPT_LOG_DIR?"),
        ("FROBNICATE", "xlaunch --help lists the options"),
    ],
)
def test_a_variable_of_no_option_is_refused(name: str, advice: str):
    told = f"XLAUNCH_OPT_{name}: there is no such option; {advice}"
    with pytest.raises(UsageError, match=f"^{re.escape(told)}$"):
        variables_layer({f"XLAUNCH_OPT_{name}": "4"})
    assert variables_layer({f"XLAUNCH_OPT_{name}": "", "XLAUNCH_OPTICS": "4"}).values == {}


def test_request_takes_what_it_has_a_field_for() -> None:
    made = request_from({"ncores": 2, "timeout": 9.0, "quiet": True, "cpus": None})
    assert made == Request.of(ncores=2, timeout_s=9.0)


def test_every_field_of_a_request_is_an_option() -> None:
    fields = {FIELDS.get(option.key, option.key) for option in OPTIONS}
    # The program's words are arguments; near_gpus is set for ranks.
    assert Request().options().keys() - fields == {"words", "near_gpus"}
    assert {option.key for option in IN_FILES} - {"verbose", "quiet"} <= BY_KEY.keys()
    assert len(BY_KEY) == len(OPTIONS)
