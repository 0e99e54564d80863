# SPDX-License-Identifier: Apache-2.0
"""Variables in and out: options from XLAUNCH_OPT_*, what instances get, launchers inside instances."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cli.commands import (
    SHOW,
    XLAUNCH,
    allowed_cpus,
    ask,
    clean_environment,
    program,
    run,
    show,
    two_cpus,
    xlaunch,
)

from xlaunch.machine.cpu_list import format_cpu_list, parse_cpu_list

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
SEVERAL = (*TWO, "-q", "--no-tag")
OURS = ("XLAUNCH_INSTANCE_INDEX", "XLAUNCH_INSTANCE_COUNT", "XLAUNCH_INSTANCE_CPUS", "XLAUNCH_INSTANCE_NODES")  # fmt: skip


def planned(*options: str, **env: str) -> dict[str, Any]:
    """The plan as values."""
    return json.loads(ask("plan", "--json", *options, env=clean_environment(**env)).out)


def narrowed(cpus: list[int], *words: Any, **options: Any) -> Any:
    """Run a command under a narrower mask, as `taskset` would."""
    return run(
        ("taskset", "--cpu-list", format_cpu_list(cpus), *words),
        **options,
    )


# What instances get


def test_instances_know_their_number_and_their_place():
    instances = planned(*TWO)["instances"]
    told = xlaunch(*SEVERAL, SHOW).shown()
    for index, (one, instance) in enumerate(zip(told, instances, strict=True)):
        assert [one["env"][name] for name in OURS] == [
            str(index),
            "2",
            format_cpu_list(instance["cpus"]),
            format_cpu_list(instance["numa_nodes"]),
        ]
        assert one["cpus"] == instance["cpus"]


def test_selected_instances_keep_their_numbers_and_places():
    both = xlaunch(*SEVERAL, SHOW).shown()
    for index in (0, 1):
        alone = xlaunch(*SEVERAL, "--instance-index", str(index), SHOW).only()
        assert alone["cpus"] == both[index]["cpus"]
        assert [alone["env"][name] for name in OURS] == [both[index]["env"][name] for name in OURS]


def test_threads_are_those_of_the_plan():
    for instance, told in zip(
        planned(*TWO)["instances"], xlaunch(*SEVERAL, SHOW).shown(), strict=True
    ):
        assert told["env"]["OMP_NUM_THREADS"] == str(instance["thread_count"])


def test_user_s_own_threads_stay_and_the_plan_says_so():
    env = clean_environment(OMP_NUM_THREADS="7")
    assert show(env=env)["env"]["OMP_NUM_THREADS"] == "7"
    out = ask("plan", "true", env=env).out.decode()
    assert "OMP_NUM_THREADS=7  (already set" in out
    assert out.count("warning: inherited variables are kept: OMP_NUM_THREADS=7 (not ") == 1


def test_flag_wins_over_the_inherited_number_of_threads_and_says_so():
    env = clean_environment(OMP_NUM_THREADS="7")
    done = xlaunch("--ncores", "1", "sh", "-c", "echo $OMP_NUM_THREADS", env=env)
    line = "--ncores 1 replaces the inherited OMP_NUM_THREADS=7 (now 1)"
    assert (done.out, done.err) == (b"1\n", f"xlaunch: warning: {line}\n")
    out = ask("plan", "--ncores", "1", "true", env=env).out.decode()
    assert f"warning: {line}\n" in out
    told = xlaunch("-v", "--ncores", "1", "true", env=env).err
    assert told.count(line) == 1


def test_program_that_starts_ranks_gets_no_thread_count(tmp_path: Path):
    names = ("OMP_NUM_THREADS", "PYTHON_CPU_COUNT", "RAYON_NUM_THREADS")
    torchrun = program(tmp_path / "torchrun", f'#!/bin/sh\nexec {sys.executable} {SHOW} "$@"\n')
    for options in ((), ("--ncores", "1"), SEVERAL):
        for told in xlaunch(*options, torchrun).shown():
            assert not set(names) & set(told["env"])
    env = clean_environment(OMP_NUM_THREADS="7")
    assert xlaunch("--ncores", "1", torchrun, env=env).only()["env"]["OMP_NUM_THREADS"] == "7"
    # A launcher around this one has set a number for one process.
    told = xlaunch("--ncores", "1", "--", *XLAUNCH, torchrun).only()["env"]
    assert "OMP_NUM_THREADS" not in told
    out = ask("plan", "--explain", torchrun).out.decode()
    assert "thread counts: left to the program, which starts ranks of its own" in out


@pytest.mark.long
@pytest.mark.parametrize("words", [("torchrun",), ("-m", "torch.distributed.run")])
def test_torchrun_shares_the_cpus_among_its_ranks(words: tuple[str, ...], needs: Any):
    needs(find_spec("torch"), "torch")
    env = clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    told = xlaunch("-q", *words, "--nproc-per-node", "2", SHOW, env=env)
    assert [one["env"]["OMP_NUM_THREADS"] for one in told.shown()] == ["1", "1"]


def test_env_option_comes_over_everything():
    env = clean_environment(OMP_NUM_THREADS="7", A="inherited", KEPT="kept")
    options = ("--env", "OMP_NUM_THREADS=3", "--env", "A=x=y z", "--env", "B=", "--env", "B=2")
    got = show(options=options, env=env)["env"]
    assert [got[name] for name in ("OMP_NUM_THREADS", "A", "B", "KEPT")] == ["3", "x=y z", "2", "kept"]  # fmt: skip


def test_env_option_takes_any_bytes():
    told = xlaunch("--env", b"A=\xff\n\xc3\xbc ", SHOW).only()
    assert os.fsencode(told["env"]["A"]) == b"\xff\n\xc3\xbc "


def test_output_through_a_pipe_of_ours_is_not_held_back():
    assert "PYTHONUNBUFFERED" not in show()["env"]
    assert xlaunch("--tag", "-q", "sh", "-c", "echo $PYTHONUNBUFFERED").out == b"[0] 1\n"
    for inherited, expected in (("", b"1"), ("x", b"x")):
        env = clean_environment(PYTHONUNBUFFERED=inherited)
        done = xlaunch("--tag", "-q", "sh", "-c", "echo $PYTHONUNBUFFERED", env=env)
        assert done.out == b"[0] %s\n" % expected


def test_one_instance_on_everything_keeps_every_cpu_of_a_narrower_mask(needs: Any):
    first, _ = two_cpus(needs)
    told = narrowed([first], *XLAUNCH, SHOW).only()
    assert told["cpus"] == [first]
    assert told["env"]["XLAUNCH_INSTANCE_CPUS"] == str(first)
    refused = narrowed([first], *XLAUNCH, "--cpus", "0-1048575", SHOW).refused()
    assert "--cpus" in refused


def test_cpu_outside_the_mask_is_refused(needs: Any):
    first, second = two_cpus(needs)
    line = narrowed([first], *XLAUNCH, "--cpus", str(second), SHOW).refused()
    assert str(second) in line
    assert "not allowed" in line


# Options from variables


def test_options_come_from_variables():
    env = {
        "XLAUNCH_OPT_INSTANCES": "2",
        "XLAUNCH_OPT_NCORES": "1",
        "XLAUNCH_OPT_OVERSUBSCRIBE": "1",
        "XLAUNCH_OPT_QUIET": "true",
        "XLAUNCH_OPT_TAG": "0",
        "XLAUNCH_OPT_INSTANCE_INDEX": "1",
        "XLAUNCH_OPT_ENV": "A=1 B=2",
    }
    told = xlaunch(SHOW, env=clean_environment(**env)).only()
    assert told["env"]["XLAUNCH_INSTANCE_INDEX"] == "1"
    assert (told["env"]["A"], told["env"]["B"]) == ("1", "2")
    assert planned(**env) == planned(*TWO, "--instance-index", "1", "--env", "A=1", "--env", "B=2")  # fmt: skip


def test_option_on_the_command_line_comes_over_its_variable():
    env = {"XLAUNCH_OPT_NCORES": "junk", "XLAUNCH_OPT_MEM_POLICY": "local"}
    assert len(planned("--ncores", "1", **env)["instances"]) == 1


def test_wrong_value_in_a_variable_is_refused():
    for name, value in (
        ("XLAUNCH_OPT_NCORES", "many"),
        ("XLAUNCH_OPT_SMT", "perhaps"),
        ("XLAUNCH_OPT_ENV", "A=1 B"),
        ("XLAUNCH_OPT_TIMEOUT", "soon"),
        ("XLAUNCH_OPT_CPUS", "1-"),
    ):
        line = ask("true", env=clean_environment(**{name: value})).refused()
        assert line.startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["XLAUNCH_OPT_NCORES", "XLAUNCH_OPT_CPUS", "XLAUNCH_OPT_SMT"])
def test_empty_variable_is_no_option(name: str):
    assert planned(**{name: ""}) == planned()


def test_variables_of_instances_are_no_options():
    env = dict.fromkeys(OURS, "999") | {"XLAUNCH_CPUS": "999", "XLAUNCH_NCORES": "999"}
    assert planned(**env) == planned()


# Launchers inside instances


def test_launcher_inside_an_instance_takes_its_mask_as_the_machine(needs: Any):
    _, second = two_cpus(needs)
    outer = (*XLAUNCH, "--cpus", str(second), "-q")
    for how in ((), ("--supervise",)):
        told = run((*outer, *how, "--", *XLAUNCH, "--instances", "max", "-q", SHOW)).only()
        assert told["cpus"] == [second]
        assert told["env"]["XLAUNCH_INSTANCE_CPUS"] == str(second)


def test_launcher_inside_an_instance_does_not_inherit_the_layout():
    layout = {
        "XLAUNCH_OPT_INSTANCES": "2",
        "XLAUNCH_OPT_NCORES": "1",
        "XLAUNCH_OPT_OVERSUBSCRIBE": "1",
        "XLAUNCH_OPT_INSTANCE_INDEX": "1",
        "XLAUNCH_OPT_TAG": "no",
    }
    told = xlaunch("--", *XLAUNCH, SHOW, env=clean_environment(**layout)).only()
    assert [told["env"][name] for name in OURS[:2]] == ["0", "1"]
    assert not [name for name in told["env"] if name.startswith("XLAUNCH_OPT_")]


def test_outer_launcher_s_threads_are_not_the_user_s(needs: Any):
    first, _ = two_cpus(needs)
    everything = str(len(allowed_cpus()))
    for inner_options, own, expected in (
        (("--cpus", str(first)), {}, "1"),
        (("--cpus", str(first)), {"OMP_NUM_THREADS": "7"}, "7"),
        (("--cpus", str(first)), {"OMP_NUM_THREADS": everything}, everything),
    ):
        env = clean_environment(**own)
        inner = (*XLAUNCH, *inner_options, SHOW)
        assert xlaunch("--", *inner, env=env).only()["env"]["OMP_NUM_THREADS"] == expected, own
        thrice = (*XLAUNCH, "--", *inner)
        assert xlaunch("--", *thrice, env=env).only()["env"]["OMP_NUM_THREADS"] == expected, own


def test_threads_that_a_program_sets_between_two_launchers_are_its_own(needs: Any):
    first, _ = two_cpus(needs)
    inner = (*XLAUNCH, "--cpus", str(first), SHOW)
    told = xlaunch("--", "env", "OMP_NUM_THREADS=5", *inner).only()
    assert told["env"]["OMP_NUM_THREADS"] == "5"
    told = xlaunch("--env", "OMP_NUM_THREADS=5", "--", *inner).only()
    assert told["env"]["OMP_NUM_THREADS"] == "5"


def test_cpus_of_a_list_are_those_of_the_mask():
    told = show()
    assert list(parse_cpu_list(told["env"]["XLAUNCH_INSTANCE_CPUS"])) == told["cpus"]
