# SPDX-License-Identifier: Apache-2.0
"""Machines of other shapes drawn: what lies in what, and whose core is whose."""

from __future__ import annotations

import pytest
from tests.tuner.page.pages import Element, read

from xlaunch.cli.topology import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.planning import Plan, Request, plan
from xtune.page.machine_picture import MOST_CORES, machine_picture


def drawn(machine: Machine, made: Plan | None) -> Element:
    picture = machine_picture(machine, made)
    assert picture is not None
    return read(str(picture))


def labels(root: Element) -> list[str]:
    return [one.text for one in root.all("span") if one.attributes.get("class") == "label"]


def cores(root: Element) -> list[tuple[str, str]]:
    """Of each core its class and its text."""
    return [
        (str(one.attributes["class"]), one.text)
        for one in root.all("span")
        if str(one.attributes.get("class")).startswith("core")
    ]


def test_two_packages_of_two_nodes() -> None:
    with machine_of(None, "package:2 node:2 l3:2 core:2 pu:2") as machine:
        made = plan(Request(program=("x",), instances=3), machine)
        root = drawn(machine, made)
    assert labels(root)[:5] == [
        "package 0", "NUMA node 0, 16.0 GiB", "L3 cache", "L3 cache", "NUMA node 1, 16.0 GiB",
    ]  # fmt: skip
    found = cores(root)
    assert len(found) == 16
    # Every CPU of every instance, and no other, says whose it is.
    for instance in made.instances:
        mine = [text for _, text in found if text.startswith(f"#{instance.index}")]
        cpus = " ".join(text.removeprefix(f"#{instance.index}") for text in mine).split()
        assert sorted(map(int, cpus)) == sorted(
            cpu for core in machine.topology.cores for cpu in core if set(core) & set(instance.cpus)
        )
    free = [text for kind, text in found if kind == "core free"]
    assert len(free) == 16 - sum(instance.ncores for instance in made.instances)


def test_without_a_plan_nobody_is_anywhere() -> None:
    with machine_of(None, "package:1 core:4") as machine:
        assert cores(drawn(machine, None)) == [
            ("core free", "0"), ("core free", "1"), ("core free", "2"), ("core free", "3"),
        ]  # fmt: skip


def test_what_may_not_be_used_is_in_parentheses() -> None:
    with machine_of(None, "package:1 core:4") as machine:
        limits = machine.limits._replace(allowed_cpus=(1, 2))
        found = cores(drawn(machine._replace(limits=limits), None))
    assert [kind for kind, _ in found] == ["core barred", "core free", "core free", "core barred"]
    assert [text for _, text in found] == ["(0)", "1", "2", "(3)"]


@pytest.mark.parametrize("count", [MOST_CORES, MOST_CORES + 1])
def test_very_many_cores_are_left_to_the_text(count: int) -> None:
    with machine_of(None, f"package:1 core:{count}") as machine:
        assert (machine_picture(machine, None) is None) == (count > MOST_CORES)
