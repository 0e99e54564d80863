# SPDX-License-Identifier: Apache-2.0
"""What is read and planned for every captured machine, as text that was read by people.

``XLAUNCH_UPDATE_GOLDEN=1 pytest -m "long or not long" FILE``, with this file, rewrites the golden
files; read the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.captures import OTHERS, each_capture, other_captures, own_captures, read_capture

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.planning import MAX, ECores, LayoutRequest, MemoryPolicy, Mode, Place, plan
from xlaunch.planning.drawing import draw_machine
from xlaunch.planning.rendering import render_plan

GOLDEN = Path(__file__).with_name("golden")

EXPLAINED = {
    "": LayoutRequest(),
    "--ncores 2 --smt": LayoutRequest(ncores=2, smt=True),
}
REQUESTS = {
    "--instances 2": LayoutRequest(instances=2),
    "--instances 3": LayoutRequest(instances=3),
    "--instances max --ncores 4": LayoutRequest(instances=MAX, ncores=4),
    "--instances 2 --ncores 1 --place scatter": LayoutRequest(
        instances=2, ncores=1, place=Place.SCATTER
    ),
    "--mode throughput --mem-policy bind": LayoutRequest(
        mode=Mode.THROUGHPUT, mem_policy=MemoryPolicy.BIND
    ),
    "--mode latency --reserve-cores 1": LayoutRequest(mode=Mode.LATENCY, reserve_cores=1),
    "--mem-policy interleave": LayoutRequest(mem_policy=MemoryPolicy.INTERLEAVE),
    "--instances 5 --ncores 7": LayoutRequest(instances=5, ncores=7),
}
HYBRID_REQUESTS = {
    "--ecores include": LayoutRequest(ecores=ECores.INCLUDE),
    "--instances 2 --ecores only": LayoutRequest(instances=2, ecores=ECores.ONLY),
}


def planned(request: LayoutRequest, machine: Machine, *, explain: bool) -> str:
    try:
        return render_plan(plan(request, machine), machine, explain=explain)
    except UsageError as error:
        return f"error: {error}"


def golden_text(machine: Machine) -> str:
    requests = {**EXPLAINED, **REQUESTS}
    if machine.topology.core_kinds:
        requests |= HYBRID_REQUESTS
    parts = [f"$ xlaunch topology\n{draw_machine(machine)}".rstrip()]
    parts += [
        f"$ xlaunch plan {options}".rstrip()
        + "\n"
        + planned(request, machine, explain=options in EXPLAINED)
        for options, request in requests.items()
    ]
    return "\n\n".join(parts) + "\n"


def test_each_capture_has_a_golden_file_and_no_file_is_left_over() -> None:
    golden = {path.stem for path in GOLDEN.glob("*.txt")}
    own = set(own_captures())
    assert own <= golden
    if OTHERS.is_dir():
        assert golden - own == set(other_captures())


@pytest.mark.parametrize("name", each_capture())
def test_plans_of_a_captured_machine_are_as_reviewed(name: str) -> None:
    text = golden_text(read_capture(name))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("XLAUNCH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
