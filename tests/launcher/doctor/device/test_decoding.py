# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device`: what is said of the decoding of language models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.captures import read_capture
from tests.golden import Golden
from tests.launcher.cli.commands import xlaunch

from xlaunch.doctor.decode_probe import DIRECTORY, VARIABLE
from xlaunch.doctor.decoding import (
    MIN_BYTES,
    MIN_WEIGHT_BYTES,
    Decoding,
    DecodingWatch,
    causes_of,
    read_speed,
)
from xlaunch.machine import read_machine
from xlaunch.planning.planner import plan
from xlaunch.planning.request import Request

DECODING = Decoding(
    model="LlamaForCausalLM",
    batch=1,
    steps=64,
    token_s=0.095,
    model_s=0.09,
    weight_bytes={"float32": 1_980_000_000},
    cache_bytes=1_000_000,
    threads=32,
    autocast=False,
    gradients=False,
    native=False,
    read_bytes_per_s=100e9,
)


def test_line_of_the_figures(golden: Golden):
    golden(DECODING.lines())
    several = DECODING._replace(batch=4, cache_bytes=990_000_000, causes=("a",), next_steps=("b",))
    figures, *others = several.lines()
    golden(figures)
    assert others == ["  likely cause: a", "  next step: b"]
    assert several.as_dict()["share"] == pytest.approx(2.97 / 9.5)


@pytest.mark.parametrize(
    ("changes", "slow", "told"),
    [
        ({}, True, "(21 % of"),
        ({"token_s": 0.039}, False, "(51 % of"),
        ({"cache_bytes": 3_000_000_000}, False, "(52 % of"),
        ({"batch": 9}, False, "so many sequences is not limited by memory"),
        ({"weight_bytes": {"float32": MIN_WEIGHT_BYTES - 1}}, False, "so small a model is not"),
        ({"weight_bytes": None}, False, "is not known"),
        ({"read_bytes_per_s": None}, False, "weights read in each step"),
    ],
)
def test_only_decoding_far_below_the_limit_is_a_finding(
    changes: dict[str, Any], slow: bool, told: str
):
    decoding = DECODING._replace(**changes)
    assert (decoding.is_slow, decoding.as_dict()["slow"]) == (slow, slow)
    assert told in decoding.lines()[0]


@pytest.mark.parametrize(
    ("changes", "flags", "causes", "next_steps"),
    [
        ({}, "amx_bf16", ["float32, twice as much", "torch's linears"], ["=torch.bfloat16", "xlaunch --optimize"]),
        ({}, "avx2", ["float32, twice as much", "torch's linears"], ["without instructions", "xlaunch --optimize"]),
        ({"autocast": True, "native": True}, "bf16", ["autocast converts"], ["=torch.bfloat16"]),
        ({"weight_bytes": {"bfloat16": 1 << 30}}, "avx2", ["slower in it", "torch's linears"], ["xlaunch --optimize"]),
        ({"weight_bytes": {"bfloat16": 1 << 30}, "native": True}, "avx2", [], []),
        ({"weight_bytes": {"bfloat16": 9, "uint8": 8}, "native": True, "threads": 1}, "bf16", ["one thread on 32"], []),
        ({"weight_bytes": {"float16": 9}, "threads": 4}, "bf16", ["are float16", "4 of 32 threads", "torch's linears"], ["bfloat16", "xlaunch"]),
        ({"model_s": 0.05, "native": True, "gradients": True, "weight_bytes": {"bfloat16": 9}}, "bf16", ["45 ms a token pass outside", "gradients"], ["inference_mode"]),
    ],
)  # fmt: skip
def test_likely_causes(
    changes: dict[str, Any], flags: str, causes: list[str], next_steps: list[str]
):
    pairs = list(
        causes_of(DECODING._replace(**changes), read_capture("xeon-vm-32-cpus"), frozenset([flags]))
    )
    *told, (others, look) = pairs
    assert ("other programs" in others, "xlaunch doctor" in look) == (True, True)
    assert [want in cause for (cause, _), want in zip(told, causes, strict=True)] == [True] * len(
        causes
    )
    steps = [step for _, step in told if step]
    assert [want in step for step, want in zip(steps, next_steps, strict=True)] == [True] * len(
        next_steps
    )


def test_other_work_on_the_cpus_is_the_first_cause():
    pairs = list(causes_of(DECODING, read_capture("epyc-vm-2-cpus"), frozenset(), shared=True))
    assert "other work on these CPUs" in pairs[0][0]
    assert not any("other programs" in cause for cause, _ in pairs)


def test_memory_nodes_are_a_cause():
    machine = read_capture("2-packages-2-nodes-smt")
    native = DECODING._replace(native=True, threads=16)
    told = [cause for cause, _ in causes_of(native, machine, frozenset())]
    assert any("2 memory nodes" in cause for cause in told)
    quota = machine._replace(limits=machine.limits._replace(cpu_quota=2.0))
    told = [cause for cause, _ in causes_of(DECODING._replace(threads=2), quota, frozenset())]
    assert any("a CPU quota of 2 for" in cause for cause in told)
    assert not any("OMP_NUM_THREADS" in cause for cause in told)


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        ({"words": (__file__,)}, True),
        ({"words": ("python3", "x.py")}, True),
        ({"words": ("python3", "-I", "x.py")}, False),
        ({"words": ("sleep", "1")}, False),
        ({"words": (__file__,), "unset": ("PYTHONPATH",)}, False),
    ],
)
def test_programs_that_load_the_probe(
    options: dict[str, Any], reached: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    request = Request.of("x.py", env=(("A", "1"),)).replace(**options)
    watched = DecodingWatch("/directory").watched(request)
    if not reached:
        assert watched == request
        return
    expected = {
        "A": "1",
        "PYTHONPATH": f"{DIRECTORY}:/mine",
        VARIABLE: "/directory/decoding.json",
    }
    assert dict(watched.program.env) == expected


def test_speed_of_memory():
    whole_plan = plan(Request.of("x.py", ncores=1).layout, read_machine())
    instance, bound = whole_plan.instances[0], whole_plan.bound
    before = os.sched_getaffinity(0)
    speed = read_speed(instance, bound=bound, free_bytes=2 * MIN_BYTES)
    assert speed is not None
    assert 1e7 < speed < 1e13
    assert os.sched_getaffinity(0) == before
    assert read_speed(instance, bound=bound, free_bytes=2 * MIN_BYTES - 1) is None


def test_program_without_transformers(tmp_path: Path):
    script = tmp_path / "plain.py"
    script.write_text("import sys; print(any('Finder' in repr(it) for it in sys.meta_path))")
    done = xlaunch("doctor", "--device", "-v", "--", script)
    assert (done.code, done.out) == (0, b"True\n")
    assert "decoding" not in done.err
