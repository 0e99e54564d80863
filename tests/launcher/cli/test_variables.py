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
from tests.golden import Golden
from tests.launcher.cli.commands import (
    SHOW,
    XLAUNCH,
    ask,
    clean_environment,
    run,
    two_cpus,
    xlaunch,
)

from xlaunch.text import format_cpu_list

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
SEVERAL = (*TWO, "-q", "--no-tag")
INSTANCE_NAMES = ("XLAUNCH_INSTANCE_INDEX", "XLAUNCH_INSTANCE_COUNT", "XLAUNCH_INSTANCE_CPUS", "XLAUNCH_INSTANCE_NODES")  # fmt: skip


def narrowed(cpus: list[int], *words: Any, **options: Any) -> Any:
    """Run a command under a narrower mask, as `taskset` would."""
    return run(("taskset", "--cpu-list", format_cpu_list(cpus), *words), **options)


# What instances get


def test_instances_have_what_the_plan_shows_all_or_one_alone():
    instances = json.loads(ask("plan", "--json", *TWO).out)["instances"]
    words = (*SEVERAL, "--env", b"A=\xff\n\xc3\xbc ", SHOW)
    both = xlaunch(*words).shown()
    alone = [xlaunch("--instance-index", str(index), *words).only() for index in (0, 1)]
    for told in (both, alone):
        for index, (one, instance) in enumerate(zip(told, instances, strict=True)):
            assert "OMP_NUM_THREADS" not in one["env"]  # the mask says it
            assert [one["env"][name] for name in INSTANCE_NAMES] == [
                str(index),
                "2",
                format_cpu_list(instance["cpus"]),
                format_cpu_list(instance["numa_nodes"]),
            ]
            assert os.fsencode(one["env"]["A"]) == b"\xff\n\xc3\xbc "
            assert one["cpus"] == instance["cpus"]


@pytest.mark.parametrize("options", [(), ("--supervise",), SEVERAL])
def test_variable_without_a_name_is_left_out_as_by_a_shell(options: tuple[str, ...]):
    words = (
        "env",
        "=x",
        *XLAUNCH,
        "--quiet",
        *options,
        "sh",
        "-c",
        "tr '\\0' '\\n' < /proc/$$/environ",
    )
    done = run(words)
    assert (done.code, done.err) == (0, "")
    assert b"\nXLAUNCH_INSTANCE_INDEX=" in done.out
    assert b"\n=x\n" not in done.out


def test_flag_wins_over_the_inherited_number_of_threads_and_says_so():
    env = clean_environment(OMP_NUM_THREADS="7")
    done = xlaunch("--ncores", "1", "sh", "-c", "echo $OMP_NUM_THREADS", env=env)
    line = "--ncores 1 replaces the inherited OMP_NUM_THREADS=7 (now not set)"
    assert (done.out, done.err) == (b"\n", f"xlaunch: warning: {line}\n")
    assert f"warning: {line}\n" in ask("plan", "--ncores", "1", "true", env=env).out.decode()
    assert xlaunch("-v", "--ncores", "1", "true", env=env).err.count(line) == 1


def test_cache_size_that_cannot_be_read_is_reported(golden: Golden, tmp_path: Path):
    """The pruner that a launch starts has no terminal."""
    env = clean_environment(XLAUNCH_CACHE_MAX_SIZE="3 parsecs")
    done = xlaunch("--cache-dir", tmp_path, SHOW, env=env)
    assert done.code == 0
    golden(done.err)
    assert "pruned" not in xlaunch("--no-cache", SHOW, env=env).err


@pytest.mark.long
def test_torchrun_shares_the_cpus_among_its_ranks(needs: Any):
    needs(find_spec("torch"), "torch")
    env = clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    told = xlaunch("-q", "torchrun", "--nproc-per-node", "2", SHOW, env=env)
    assert [one["env"]["OMP_NUM_THREADS"] for one in told.shown()] == ["1", "1"]


def test_narrower_mask_is_the_machine(needs: Any):
    first, second = two_cpus(needs)
    told = narrowed([first], *XLAUNCH, SHOW).only()
    assert told["cpus"] == [first]
    assert told["env"]["XLAUNCH_INSTANCE_CPUS"] == str(first)
    line = narrowed([first], *XLAUNCH, "--cpus", str(second), SHOW).refused()
    assert f"{second} " in line
    assert "not allowed" in line


# Options from variables


def test_options_come_from_variables_and_a_launch_within_does_not_inherit_them():
    layout = {
        "XLAUNCH_OPT_INSTANCES": "2",
        "XLAUNCH_OPT_NCORES": "1",
        "XLAUNCH_OPT_OVERSUBSCRIBE": "1",
        "XLAUNCH_OPT_QUIET": "true",
        "XLAUNCH_OPT_TAG": "0",
        "XLAUNCH_OPT_INSTANCE_INDEX": "1",
        "XLAUNCH_OPT_ENV": "A=1 B=2",
    }
    env = clean_environment(**layout)
    told = xlaunch(SHOW, env=env).only()["env"]
    assert [told[name] for name in (*INSTANCE_NAMES[:2], "A", "B")] == ["1", "2", "1", "2"]
    within = xlaunch("--", *XLAUNCH, SHOW, env=env).only()["env"]
    assert [within[name] for name in INSTANCE_NAMES[:2]] == ["0", "1"]
    assert not [name for name in within if name.startswith("XLAUNCH_OPT_")]


# Launchers inside instances


def test_launcher_inside_an_instance_takes_its_mask_as_the_machine(needs: Any):
    _, second = two_cpus(needs)
    outer = (*XLAUNCH, "--cpus", str(second), "-q")
    for how in ((), ("--supervise",)):
        told = run((*outer, *how, "--", *XLAUNCH, "--instances", "max", "-q", SHOW)).only()
        assert told["cpus"] == [second]
        assert told["env"]["XLAUNCH_INSTANCE_CPUS"] == str(second)


def test_variable_that_is_unset_is_neither_inherited_nor_set(golden: Golden):
    env = clean_environment(A="1", OMP_NUM_THREADS="3", LD_PRELOAD="")
    names = ("A", "OMP_NUM_THREADS", "TRITON_CACHE_DIR", "B")
    options = [word for name in names for word in ("--unset", name)]
    told = xlaunch(*options, "--env", "B2=", SHOW, env=env).only()["env"]
    assert not set(names) & set(told)
    assert told["B2"] == ""  # --env NAME= sets an empty variable
    shown = ask("plan", "--explain", *options, SHOW, env=env).out.decode()
    assert "\n  --unset:\n    A not set\n    OMP_NUM_THREADS not set" in shown
    assert "unset A" in ask("env", *options, env=env).out.decode().splitlines()
    both = ask("plan", "--unset", "A", "--env", "A=1", SHOW)
    golden(ask("plan", "--unset", "A=1").refused(), both.refused())
    within = ("--unset", "A", *XLAUNCH, SHOW)
    assert "A" not in xlaunch(*within, env=env).only()["env"]
