# SPDX-License-Identifier: Apache-2.0
"""What is read and planned for captured machines, as text that was read by people.

They are the fewest captures that notice each change of planning (`tests.mutations`) which no other test
of planning notices. A new machine gets an empty file in `golden` if its plans show what no other's do.

``XLAUNCH_UPDATE_GOLDEN=1 pytest -m "long or not long" FILE``, with this file, rewrites the golden
files; read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.captures import OTHERS, among_others, other_captures, own_captures, read_capture
from tests.golden import check_golden
from tests.launcher.options.settings import layout_of

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.planning import plan
from xlaunch.planning.drawing import draw_machine
from xlaunch.planning.rendering import render_plan

GOLDEN = Path(__file__).with_name("golden")
NAMES = sorted(path.stem for path in GOLDEN.glob("*.txt"))

EXPLAINED = ("", "--ncores 2 --smt")
REQUESTS = (
    *EXPLAINED,
    "--instances 2",
    "--instances 3",
    "--instances max --ncores 4",
    "--instances 2 --ncores 1 --place scatter",
    "--mode throughput --mem-policy bind",
    "--mode latency --reserve-cores 1",
    "--mem-policy interleave",
    "--instances 5 --ncores 7",
)
HYBRID_REQUESTS = ("--ecores include", "--instances 2 --ecores only")


def planned(options: str, machine: Machine) -> str:
    try:
        made = plan(layout_of(options), machine)
    except UsageError as error:
        return f"error: {error}"
    return render_plan(made, machine, explain=options in EXPLAINED)


def golden_text(machine: Machine) -> str:
    requests = REQUESTS + (HYBRID_REQUESTS if machine.topology.core_kinds else ())
    parts = [f"$ xlaunch topology\n{draw_machine(machine)}".rstrip()]
    parts += [
        f"$ xlaunch plan {options}".rstrip() + "\n" + planned(options, machine)
        for options in requests
    ]
    return "\n\n".join(parts) + "\n"


def test_each_golden_file_has_a_capture() -> None:
    if OTHERS.is_dir():
        assert set(NAMES) <= {*own_captures(), *other_captures()}


@pytest.mark.parametrize(
    "name",
    [
        *[name for name in NAMES if name in own_captures()],
        *among_others([name for name in NAMES if name not in own_captures()]),
    ],
)
def test_plans_of_a_captured_machine_are_as_reviewed(name: str) -> None:
    check_golden(GOLDEN / f"{name}.txt", golden_text(read_capture(name)))
