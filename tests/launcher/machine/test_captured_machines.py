# SPDX-License-Identifier: Apache-2.0
"""Captured machines: what is read from them, against the expected answers that lie beside others'.

The README of ``../shared/topologies`` defines the answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.captures import (
    OTHERS,
    WITHOUT_OTHERS,
    among_others,
    capture_path,
    other_captures,
    own_captures,
    read_capture,
)

from xlaunch.machine import read_machine
from xlaunch.machine.capture import unpacked, write_capture
from xlaunch.machine.description import describe_machine
from xlaunch.planning.drawing import draw_machine

ABOUT_THE_CAPTURE = {
    "name", "description", "origin", "source", "alternatives", "uncertain", "notes"
}  # fmt: skip
RICH = "2-packages-4-dies-5-nodes-smt"
"""The capture of our own that has most to be read."""
OTHERWISE_RICH = (
    "1-package-4-cores-smt-3-cpus-offline",
    "2-packages-4-dies-5-nodes-smt-container",
    "3-packages-node-without-memory-isolated-cpu",
    "epyc-vm-2-cpus",
    "xeon-vm-32-cpus",
)
"""With it, they have every kind of file that is in a capture of our own."""
ODD = (
    "hwloc-16amd64-8n2c-cpusets",
    "hwloc-fakeheteromemtiers",
    "libvirt-test6",
    "lscpu-arm-A510-A710-A715-X3",
    "vm-x86-cg1quota",
)
"""Captures of other projects with files that few machines have."""
MAY_BE_EXTRA = {"isolated_cpus", "notes", "gpus"}
"""The answers have isolated CPUs "only where it matters" and no GPUs; our notes are our own."""


@pytest.mark.machine
def test_the_captures_are_there() -> None:
    assert len(own_captures()) >= 12
    if not OTHERS.is_dir():
        pytest.skip(WITHOUT_OTHERS)
    assert len(other_captures()) >= 83


@pytest.mark.parametrize("name", among_others(other_captures()))
def test_reads_as_expected(name: str) -> None:
    answer = json.loads((OTHERS / f"{name}.json").read_text())
    machine = read_capture(name)
    found = json.loads(json.dumps(describe_machine(machine)))

    keys = (answer.keys() | found.keys()) - ABOUT_THE_CAPTURE - set(answer.get("uncertain", []))
    differences = {
        key: {"found": found.get(key), "expected": answer.get(key)}
        for key in keys
        if not (key not in answer and key in MAY_BE_EXTRA)
        and not any(
            agrees(key, found.get(key), good, found)
            for good in [answer.get(key), *answer.get("alternatives", {}).get(key, [])]
        )
    }
    assert differences == {}

    drawing = str(draw_machine(machine))
    assert drawing.isascii()
    assert max(map(len, drawing.splitlines())) <= 80


@pytest.mark.parametrize(
    "name",
    [
        RICH,
        *(pytest.param(one, marks=pytest.mark.long) for one in OTHERWISE_RICH),
        *among_others(ODD),
    ],
)
def test_captured_again_it_reads_the_same(name: str, tmp_path: Path) -> None:
    with unpacked(capture_path(name)) as root:
        write_capture(str(tmp_path / "again.tar.xz"), root)
        once = describe_machine(read_machine(root))
    with unpacked(str(tmp_path / "again.tar.xz")) as root:
        assert describe_machine(read_machine(root)) == once


def agrees(key: str, found: Any, good: Any, everything: dict[str, Any]) -> bool:
    """Whether what was found is as good as an answer."""
    if key == "numa_nodes":
        # No nodes, or one with all CPUs, are the same.
        whole = {"id": 0, "cpus": everything["online_cpus"]}
        if not good and len(found) == 1:
            return {name: found[0][name] for name in whole} == whole
        optional = [node["id"] for node in good if node.get("optional")]
        present = {node["id"] for node in found}
        kept = [
            {name: value for name, value in node.items() if name != "optional"}
            for node in good
            if node["id"] in present or node["id"] not in optional
        ]
        return bool(found == kept)
    if key == "core_kinds":
        # Softly: the partition into kinds, and their ranking where both have one. The attributes
        # that told the kinds apart are for display.
        if not found or not good:
            return bool(found == good)
        mine = {tuple(kind["cpus"]): kind["efficiency"] for kind in found}
        theirs = {tuple(kind["cpus"]): kind["efficiency"] for kind in good}
        ranked = -1 not in mine.values() and -1 not in theirs.values()
        return mine.keys() == theirs.keys() and (not ranked or mine == theirs)
    if key == "allowed_cpus" and good is None:
        return found is None
    if key == "allowed_via":
        # Free text: the place must be named, the words are ours.
        return found is None or good is None or place(good) in found
    return bool(found == good)


def place(text: str) -> str:
    return next(word.rstrip(",") for word in text.split() if word.startswith("/"))
