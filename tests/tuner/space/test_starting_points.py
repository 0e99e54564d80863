# SPDX-License-Identifier: Apache-2.0
"""Presets as points of a space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tuner.space.test_presets_of_configurations import (
    CONFIGURATIONS,
    MACHINE,
    UNEVEN,
    WORK,
    resolver_of,
)

from xlaunch.machine import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.planning import Request
from xtune.space.parameters import Configuration, Value
from xtune.space.resolution import starting_point

PROGRAM_PARAMETERS = {"batch", "text"}


@pytest.fixture
def machine() -> Iterator[Machine]:
    with machine_of(None, MACHINE) as made:
        yield made


def point_of(
    text: str, machine: Machine, directory: Path, request: Request = WORK
) -> tuple[Configuration, tuple[str, ...]]:
    file = directory / "mine.toml"
    file.write_text(text)
    return starting_point(str(file), resolver_of(machine, request))


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=["default", "2x4", "1x2", "all", "16x1"])
def test_what_was_written_is_read_back(
    values: dict[str, Value], machine: Machine, tmp_path: Path
) -> None:
    resolver = resolver_of(machine)
    configuration, left_out = point_of(resolver.preset(Configuration(values)), machine, tmp_path)
    expected = {name: value for name, value in values.items() if name not in PROGRAM_PARAMETERS}
    assert configuration == resolver.space.complete(expected)
    assert left_out == ()


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("instances = 4", {"layout": "4x4"}),
        ('ncores = 8\ninstances = "max"', {"layout": "2x8"}),
        ('mode = "latency"', {"layout": "4x4"}),
        ('mode = "throughput"', {"layout": "2x8"}),
        ('omp = "auto"\n[env]\nOMP_WAIT_POLICY = "active"', {"omp": "auto+active"}),
        ('smt = true\nallocator = "glibc"', {"smt": True, "allocator": "glibc"}),
    ],
)
def test_what_is_written_by_hand(
    text: str, changes: dict[str, Value], machine: Machine, tmp_path: Path
) -> None:
    configuration, left_out = point_of(text, machine, tmp_path)
    space = resolver_of(machine).space
    assert space.changes(configuration) == changes
    assert left_out == ()


def test_one_instance_a_node_where_nodes_differ(tmp_path: Path) -> None:
    with machine_of(None, UNEVEN) as uneven:
        configuration, _ = point_of('mode = "throughput"', uneven, tmp_path)
        resolver = resolver_of(uneven)
        assert resolver.request(configuration).layout.instances == 3


def test_what_is_not_searched_is_told(machine: Machine, tmp_path: Path) -> None:
    text = 'thp = "never"\nreserve-cores = 2\nlog-dir = "logs"\n[env]\nMODE = "fast"\nRATE = "9"\n'
    configuration, left_out = point_of(text, machine, tmp_path)
    assert resolver_of(machine).space.changes(configuration) == {"thp": "never"}
    # RATE is the request's own, with {batch} in it.
    assert sorted(left_out) == ["env MODE", "log-dir", "reserve-cores"]


def test_a_value_that_the_space_has_not_is_told(machine: Machine, tmp_path: Path) -> None:
    configuration, left_out = point_of('allocator = "jemalloc"\nsmt = true', machine, tmp_path)
    assert resolver_of(machine).space.changes(configuration) == {"smt": True}
    assert left_out == ("allocator",)


def test_what_xtune_was_given_counts_more(machine: Machine, tmp_path: Path) -> None:
    fixed = WORK.replace(allocator="glibc")
    configuration, left_out = point_of(
        'allocator = "glibc-frugal"\nthp = "never"', machine, tmp_path, fixed
    )
    resolver = resolver_of(machine, fixed)
    assert resolver.space.changes(configuration) == {"thp": "never"}
    assert left_out == ()
