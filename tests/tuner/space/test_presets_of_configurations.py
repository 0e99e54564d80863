# SPDX-License-Identifier: Apache-2.0
"""Presets and command lines of configurations, read back by the real xlaunch."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import SHOW, ask, clean_environment, run

import xlaunch as library
from xlaunch.cli.launch import command
from xlaunch.machine import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.options.commands import resolved_options
from xlaunch.options.precedence import request_from
from xlaunch.planning import Request
from xlaunch.planning.rendering import plan_to_dict
from xlaunch.planning.request import ECores
from xtune.space.launch_options import with_option
from xtune.space.machine_space import make_space
from xtune.space.offers import SWITCHES, Offers
from xtune.space.parameters import Configuration, Parameter, Target, Value
from xtune.space.resolution import Resolver, command_of
from xtune.space.spaces import Space
from xtune.space.user_parameters import parse_parameters

MACHINE = "package:2 node:1 l3:2 core:4 pu:2"
UNEVEN = "package:3 node:1 core:1 pu:2"

OFFERS = Offers(
    allocators=("auto", "glibc", "glibc-frugal"),
    runtimes=("auto", "auto+active"),
    huge_pages=("auto", "never"),
    switches=SWITCHES,
)
AWKWARD = 'it\'s {index} "x" ${HOME} $(id) \\ ä\ttab'
WORK = Request.of(
    str(SHOW),
    "--batch={batch}",
    "{text}",
    AWKWARD,
    "--",
    "-m",
    env=(("RATE", "{batch}"), ("NUMBER", "{index}/{count}"), ("AWKWARD", AWKWARD)),
)
OWN = ["batch=1,8", f"""text=plain,"two words",'{AWKWARD.replace("'", "''")}'"""]

CONFIGURATIONS: list[dict[str, Value]] = [
    {},
    {"layout": "2x4", "place": "scatter", "batch": 8},
    {"layout": "1x2", "smt": True, "memory": "interleave", "allocator": "glibc-frugal"},
    {"layout": "1xall", "memory": "interleave", "smt": True, "text": AWKWARD},
    {
        "layout": "16x1",
        "omp": "auto+active",
        "thp": "never",
        "text": "two words",
        "TORCHINDUCTOR_FREEZING": "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    },
]


def resolver_of(machine: Machine, request: Request = WORK) -> Resolver:
    own = parse_parameters(OWN, request)
    made = make_space(request, machine, OFFERS, own=own, allow_numerics=True)
    return Resolver(made.space, request, clean_environment(), machine)


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=["default", "2x4", "1x2", "all", "16x1"])
def test_presets_and_commands_plan_the_same(values: dict[str, Value], tmp_path: Path) -> None:
    configuration = Configuration(values)
    with machine_of(None, MACHINE) as machine:
        resolver = resolver_of(machine)
        expected = json.loads(json.dumps(plan_to_dict(resolver.resolve(configuration).plan)))
        environment = resolver.environment(configuration)
    file = tmp_path / "best of all.toml"
    file.write_text(resolver.preset(configuration, use=str(file)))
    by_preset = resolver.command(configuration, preset=str(file))
    assert planned(by_preset, "--dry-run") == planned(resolver.command(configuration), "--dry-run")

    made = json.loads(planned(by_preset, "plan", "--json"))
    assert made["instances"][0].pop("environment") == {
        setting.name: setting.value for setting in environment.settings[0]
    }
    for instance in made["instances"][1:]:
        del instance["environment"]
    assert made["program"] == list(environment.program.argv)
    names = expected.keys() - {"decisions", "warnings"}
    assert {name: made[name] for name in names} == {name: expected[name] for name in names}


def planned(words: list[str], *options: str) -> bytes:
    """What the command prints for the made-up machine instead of running."""
    assert words[0] == "xlaunch"
    done = ask(*options, "--synthetic", MACHINE, *words[1:])
    assert done.code == 0, done.err
    return done.out


def test_a_launch_by_preset_is_what_was_resolved(tmp_path: Path) -> None:
    """No made-up machine: the program itself tells what it was started with."""
    resolver = resolver_of(library.read_machine())
    wanted: dict[str, Value] = {
        "allocator": "glibc-frugal",
        "omp": "auto+active",
        "batch": 8,
        "text": AWKWARD,
    }
    if "layout" in {parameter.name for parameter in resolver.space.parameters}:
        wanted["layout"] = "1x1"
    configuration = Configuration(wanted)
    file = tmp_path / "best.toml"
    file.write_text(resolver.preset(configuration, use=str(file)))
    words = resolver.command(configuration, preset=str(file))
    told = run((sys.executable, "-m", *words)).only()

    environment = resolver.environment(configuration)
    variables = {n: v for n, v in environment.variables[0].items() if n != "XLAUNCH_SET"}
    assert {name: told["env"].get(name) for name in variables} == variables
    assert told["env"]["OMP_WAIT_POLICY"] == "active"
    assert told["env"]["RATE"] == "8"
    arguments = [os.fsencode(word) for word in environment.programs[0].argv[2:]]
    assert [bytes.fromhex(word) for word in told["argv"]] == arguments
    assert arguments[:2] == [b"--batch=8", os.fsencode(AWKWARD)]


def test_a_preset_says_every_option_that_was_searched(golden: Golden) -> None:
    space = Space(
        [
            Parameter("layout", ("1xall", "2x1"), "1xall", Target.OPTION),
            Parameter("smt", (False, True), False, Target.OPTION),
            Parameter("ONEDNN_X", ("unset", "1"), "unset", Target.VARIABLE),
        ]
    )
    request = Request.of("./serve", "x", module=True, reserve_cores=1, cpus=(0, 1, 2, 8))
    with machine_of(None, MACHINE) as machine:
        resolver = Resolver(space, request, {}, machine)
    text = resolver.preset(Configuration({}))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    golden(lines, text)
    changed = resolver.preset(Configuration({"layout": "2x1", "ONEDNN_X": "1"}))
    golden(changed)
    assert resolver.command(Configuration({}), preset="best.toml") == [
        *("xlaunch", "--preset", "best.toml", "--module", "./serve", "x")
    ]


def test_one_instance_for_each_node_is_a_mode() -> None:
    request = Request.of("./serve")
    space = Space([Parameter("layout", ("1xall", "node"), "1xall", Target.OPTION)])
    with machine_of(None, UNEVEN) as machine:
        resolver = Resolver(space, request, {}, machine)
    by_node = Configuration({"layout": "node"})
    assert resolver.command(by_node) == ["xlaunch", "--mode", "throughput", "./serve"]
    lines = resolver.preset(by_node).splitlines()
    assert lines[-1] == 'mode = "throughput"'
    assert not any(line.startswith(("instances", "ncores")) for line in lines)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, []),
        ({"instances": 2, "ncores": 4}, ["--instances", "2", "--ncores", "4"]),
        ({"cpus": (0, 1, 2, 8), "ecores": ECores.ONLY}, ["--cpus", "0-2,8", "--ecores", "only"]),
        ({"smt": True, "substitute": True}, ["--smt", "--substitute"]),
        ({"tag": False}, ["--no-tag"]),
        ({"tag": True, "timeout_s": 90.0}, ["--timeout", "90", "--tag"]),
        ({"env": (("A", "1 2"), ("B", ""))}, ["--env", "A=1 2", "--env", "B="]),
        ({"python": "/x/python", "no_cache": True}, ["--python", "/x/python", "--no-cache"]),
        ({"metric": ("img/s",), "grace_s": 0.5}, ["--grace", "0.5", "--metric", "img/s"]),
    ],
)
def test_any_request_is_words(fields: dict[str, Any], words: list[str]) -> None:
    request = Request.of("./serve", "-x").replace(**fields)
    assert command_of(request) == ["xlaunch", *words, "./serve", "-x"]
    context = command.make_context("xlaunch", ["--isolated", *command_of(request)[1:]])
    assert request_from(resolved_options(context.params).values) == request


def test_programs_with_the_name_of_a_command_are_reached() -> None:
    assert command_of(Request.of("plan", "x")) == ["xlaunch", "--", "plan", "x"]
    assert command_of(Request.of("-x")) == ["xlaunch", "--", "-x"]
    assert shlex.join(command_of(with_option(Request.of("a b"), "smt", True))) == (
        "xlaunch --smt 'a b'"
    )
