# SPDX-License-Identifier: Apache-2.0
"""The spaces of machines: of captured ones as text that was read by people, and what decides them.

``XLAUNCH_UPDATE_GOLDEN=1 pytest -m "long or not long" FILE``, with this file, rewrites the golden
files; read the difference before it is committed.
"""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest
from tests.captures import among_others, own_captures, read_capture
from tests.golden import Golden, check_golden
from tests.launcher.planning.shapes import make_machine, with_gpus

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Machine
from xlaunch.planning import MAX, MemoryPolicy, Mode, Place, Request
from xlaunch.planning.request import HugePages
from xtune.errors import SpaceError
from xtune.space.machine_space import MadeSpace, make_space
from xtune.space.offers import SWITCHES, Offers
from xtune.space.parameters import Configuration, Target
from xtune.space.user_parameters import parse_parameters

GOLDEN = Path(__file__).with_name("golden")

OWN = ("1-cpu", "2-packages-4-dies-5-nodes-smt-container", "4-packages-8-nodes")
OTHERS = (
    "ghw-linux-amd64-accel-nvidia",
    "hwloc-20em64t-hybrid-1p6c2t+2ca4co1t",
    "hwloc-256ppc-8n8s4t",
    "hwloc-2arm-2c",
    "hwloc-fakeheteromemtiers",
    "lscpu-ppc-qemu",
    "lscpu-s390-lpar",
    "lscpu-x86_64-64cpu",
    "nri-server",
    "ocp-bm-worker1",
    "vm-x86-cg1quota",
)

TYPICAL = Offers(
    allocators=("auto", "glibc", "glibc-one-arena", "glibc-frugal", "jemalloc", "tcmalloc"),
    runtimes=("auto", "auto+active", "auto+passive", "intel", "intel+active"),
    huge_pages=("auto", "always", "never"),
    switches=SWITCHES,
)
"""What a machine with torch, a few libraries and AMX offers."""

INFER = Request.of("infer.py", "{threads}", "{streams}")


OFFERED = ("allocator", "omp", "thp", *[switch.name for switch in SWITCHES])
"""Parameters that depend on what is installed, not on the machine."""


def text_of(made: MadeSpace, *, whole: bool) -> str:
    lines = [f"size {made.space.size}"]
    for parameter in made.space.parameters:
        if not whole and parameter.name in OFFERED:
            continue
        values = " ".join([str(value) for value in parameter.values])
        flag = " (changes results)" if parameter.changes_results else ""
        lines += textwrap.wrap(
            f"{parameter.name}{flag}: {values}",
            98,
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        lines += [f"  {parameter.reason}"] if whole else []
    lines += [f"not {left.name}: {left.reason}" for left in made.left_out]
    for one in made.space.derived:
        if one.parameter:
            values = " ".join(map(str, one.values))
            lines += textwrap.wrap(
                f"{one.name} by {one.parameter}: {values}", 98, subsequent_indent="    "
            )
    return "\n".join(lines) + "\n"


def golden_text(machine: Machine, *, whole: bool) -> str:
    """The spaces with everything and with nothing installed; unless `whole`, only what differs by machine."""
    everything = make_space(Request(), machine, TYPICAL, allow_numerics=True)
    single = make_space(Request(), machine, Offers(), one_instance=True)
    return (
        "$ everything\n"
        + text_of(everything, whole=whole)
        + "\n$ one instance, nothing installed\n"
        + text_of(single, whole=whole)
    )


def test_each_capture_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert set(OWN) <= set(own_captures())
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*OWN, *OTHERS}


@pytest.mark.parametrize("name", [*OWN, *among_others(OTHERS)])
def test_spaces_of_a_captured_machine_are_as_reviewed(name: str) -> None:
    check_golden(GOLDEN / f"{name}.txt", golden_text(read_capture(name), whole=name in OWN))


TWO_NODES = make_machine(packages=(8, 8), nodes=(8, 8), l3=(4,) * 4, smt=2)
ONE_NODE = make_machine(packages=(4,), nodes=(4,), l3=(4,))


def names(made: MadeSpace) -> list[str]:
    return [parameter.name for parameter in made.space.parameters]


def left(made: MadeSpace) -> dict[str, str]:
    return dict(made.left_out)


def test_a_machine_with_everything_has_every_parameter() -> None:
    made = make_space(Request(), TWO_NODES, TYPICAL, allow_numerics=True)
    switches = [switch.name for switch in SWITCHES]
    launch = ["layout", "smt", "place", "allocator", "omp", "memory", "thp"]
    assert names(made) == launch + switches
    assert made.left_out == ()
    assert all(parameter.reason for parameter in made.space.parameters)
    assert all(parameter.default == parameter.values[0] for parameter in made.space.parameters)
    assert {p.name for p in made.space.parameters if p.where is Target.VARIABLE} == set(switches)


def test_what_makes_no_difference_is_left_out_with_its_reason() -> None:
    made = make_space(Request(), ONE_NODE, Offers())
    assert names(made) == ["layout"]
    assert left(made)["smt"] == "each core that may be used has one hardware thread"
    assert left(made)["memory"] == "there is one NUMA node to take memory from"
    alone = make_space(Request(), make_machine(packages=(1,)), Offers())
    assert names(alone) == []
    assert left(alone)["layout"] == "there is one core to use"
    assert left(alone)["place"] == "no layout leaves a choice of cores"
    with pytest.raises(SpaceError, match="nothing to search"):
        alone.space.require_choice()


def test_results_change_only_where_that_is_allowed() -> None:
    made = make_space(Request(), TWO_NODES, TYPICAL)
    changing = {switch.name for switch in SWITCHES if switch.changes_results}
    assert "ONEDNN_DEFAULT_FPMATH_MODE" in changing
    assert not changing & set(names(made))
    assert all("--allow-numerics" in left(made)[name] for name in changing)
    allowed = make_space(Request(), TWO_NODES, TYPICAL, allow_numerics=True).space
    assert {p.name for p in allowed.parameters if p.changes_results} == changing
    assert allowed.parameter("ONEDNN_DEFAULT_FPMATH_MODE").values == ("unset", "BF16")


def test_several_instances_are_tried_only_where_they_can_be_compared(golden: Golden) -> None:
    made = make_space(Request(), TWO_NODES, Offers(), one_instance=True)
    layouts = made.space.parameter("layout").values
    assert layouts == ("1xall", "1x1", "1x2", "1x4", "1x8")
    golden(left(made)["layout: several instances"])


@pytest.mark.parametrize(
    ("fixed", "name", "reason"),
    [
        ({"instances": 2}, "layout", "given: --instances"),
        ({"ncores": 2, "instances": MAX}, "layout", "given: --instances, --ncores"),
        ({"mode": Mode.LATENCY}, "layout", "given: --mode"),
        ({"smt": True}, "smt", "given: --smt"),
        ({"place": Place.SCATTER, "ncores": 2}, "place", "given: --place"),
        ({"allocator": "jemalloc"}, "allocator", "given: --allocator"),
        ({"omp": "intel"}, "omp", "given: --omp"),
        ({"thp": HugePages.NEVER}, "thp", "given: --thp"),
        ({"mem_policy": MemoryPolicy.BIND}, "memory", "given: --mem-policy"),
    ],
)
def test_what_the_user_has_fixed_is_not_searched(
    fixed: dict[str, object], name: str, reason: str
) -> None:
    made = make_space(Request().replace(**fixed), TWO_NODES, TYPICAL)  # type: ignore[arg-type]
    assert name not in names(made)
    assert left(made)[name] == reason
    assert len(names(made)) > 3


def test_gpus_of_instances_fix_the_layout() -> None:
    machine = with_gpus(TWO_NODES, [0, 1])
    made = make_space(Request().replace(gpus_per_instance=1), machine, TYPICAL)
    assert left(made)["layout"] == "given: --gpus-per-instance"
    assert len(names(made)) > 3


def test_conditions_speak_of_layouts_and_of_what_is_fixed() -> None:
    own = parse_parameters(["threads=1..16", "streams=1,2"], INFER)
    made = make_space(
        INFER,
        TWO_NODES,
        TYPICAL,
        own=own,
        when=["threads<=ncores", "streams==1 if instances>1", "allocator!=mimalloc or thp==auto"],
    )
    space = made.space
    assert names(made)[-2:] == ["threads", "streams"]
    assert Configuration({"layout": "2x8", "threads": 8}) in space
    assert Configuration({"layout": "2x8", "threads": 16}) not in space
    assert Configuration({"layout": "2x8", "streams": 2}) not in space
    assert Configuration({"layout": "1xall", "threads": 16, "streams": 2}) in space
    fixed = make_space(
        INFER.replace(instances=2), TWO_NODES, TYPICAL, own=own, when=["threads<=ncores"]
    )
    assert fixed.space.parameter("threads").values == (1, 2, 4, 8, 16)
    assert {one["threads"] for one in itertools.islice(fixed.space, 0, None, 97)} <= {1, 2, 4, 8}


def test_only_the_users_parameters() -> None:
    own = parse_parameters(["threads=1..32", "streams=1,2"], INFER)
    made = make_space(
        INFER,
        TWO_NODES,
        TYPICAL,
        own=own,
        when=["threads<=ncores", "instances==1", "smt==false", "allocator==auto"],
        only_parameters=True,
    )
    assert names(made) == ["threads", "streams"]
    assert made.left_out == ()
    assert {one["threads"] for one in made.space} == {1, 2, 4, 8, 16}
    assert made.space.size == 10


def test_a_quota_is_shared_out_and_nothing_is_bound() -> None:
    machine = make_machine(packages=(16,), nodes=(8, 8), smt=2, quota=4.0)
    made = make_space(Request(), machine, Offers())
    assert made.space.parameter("layout").values == ("1xall", "1x1", "1x2", "2x1", "2x2", "4x1")
    assert "place" not in names(made)


def test_what_cannot_be_planned_is_one_line() -> None:
    with pytest.raises(UsageError, match="--reserve-cores 16: nothing would be left") as caught:
        make_space(Request.of(reserve_cores=16), TWO_NODES, TYPICAL)
    assert len(str(caught.value).splitlines()) == 1


def test_the_same_machine_has_the_same_space() -> None:
    one = make_space(Request(), TWO_NODES, TYPICAL).space
    other = make_space(Request(), TWO_NODES, TYPICAL).space
    assert one == other
    assert one.name == other.name
    assert one.name != make_space(Request(), ONE_NODE, TYPICAL).space.name
