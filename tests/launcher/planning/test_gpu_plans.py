# SPDX-License-Identifier: Apache-2.0
"""GPUs divided among instances: a machine, a request, and the exact plan."""

from __future__ import annotations

import itertools

import pytest
from tests.captures import read_capture
from tests.golden import Golden
from tests.launcher.options.settings import layout_of
from tests.launcher.planning.shapes import make_machine, ranks, with_gpus

from xlaunch.errors import UsageError
from xlaunch.machine.gpus import usable_gpus
from xlaunch.machine.topology import Gpu, Machine, Vendor
from xlaunch.planning import MAX, LayoutRequest, MemoryPolicy, Place, Plan, plan
from xlaunch.planning.ranks import Rank, share_of_rank
from xlaunch.planning.rendering import plan_to_dict, render_plan
from xlaunch.planning.request import RankMode, Request
from xlaunch.text import format_cpu_list, parse_cpu_list

TWO_PACKAGES = make_machine(packages=(16, 16), nodes=(16, 16), l3=(16, 16))
EIGHT_GPUS = with_gpus(TWO_PACKAGES, [0] * 4 + [1] * 4)
DGX = with_gpus(
    make_machine(packages=(64, 64), nodes=(16,) * 8, l3=(4,) * 32, smt=2),
    [3, 3, 1, 1, 7, 7, 5, 5],
)
"""The nodes of the GPUs of an NVIDIA DGX A100."""
UNKNOWN = with_gpus(make_machine(packages=(8,), nodes=(8,)), [None, None])


def two_gpus(choice: str) -> Machine:
    return with_gpus(TWO_PACKAGES, [0, 1], CUDA_VISIBLE_DEVICES=choice)


def request(**options: object) -> LayoutRequest:
    return LayoutRequest(**{"gpus_per_instance": 1, **options})  # type: ignore[arg-type]


def places(made: Plan) -> list[tuple[str, str]]:
    """The GPUs and CPUs of each instance. **Ex.:** ``[("0,1", "0-7")]``."""
    return [
        (",".join([gpu.name for gpu in instance.gpus]), format_cpu_list(instance.cpus))
        for instance in made.instances
    ]


def test_an_instance_for_each_gpu_next_to_it():
    made = plan(request(), EIGHT_GPUS)
    assert places(made) == [(str(i), f"{4 * i}-{4 * i + 3}") for i in range(8)]
    assert [i.memory_nodes for i in made.instances] == [(0,)] * 4 + [(1,)] * 4
    assert {i.memory for i in made.instances} == {MemoryPolicy.PREFERRED}
    assert (made.idle_cpus, made.warnings) == ((), ())
    assert plan(request(instances=MAX), EIGHT_GPUS).instances == made.instances
    assert plan(request(instances=8), EIGHT_GPUS).instances == made.instances


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        # As many cores each as there can be: one instance in each package.
        (EIGHT_GPUS, {"instances": 2}, [("0", "0-15"), ("4", "16-31")]),
        (EIGHT_GPUS, {"instances": 3}, [("0", "0-7"), ("1", "8-15"), ("4", "16-23")]),
        (EIGHT_GPUS, {"instances": 1}, [("0", "0-15")]),
        (EIGHT_GPUS, {"instances": 2, "ncores": 2}, [("0", "0-1"), ("1", "2-3")]),
        (EIGHT_GPUS, {"instances": 2, "ncores": 2, "place": Place.SCATTER},
         [("0", "0-1"), ("4", "16-17")]),
        (EIGHT_GPUS, {"instances": 3, "ncores": 6}, [("0", "0-5"), ("1", "6-11"), ("4", "16-21")]),
        (EIGHT_GPUS, {"ncores": 12}, [("0", "0-11"), ("4", "16-27")]),
        (EIGHT_GPUS, {"instances": 1, "ncores": MAX}, [("0", "0-31")]),
        (EIGHT_GPUS, {"gpus_per_instance": 2, "instances": 2}, [("0,1", "0-15"), ("4,5", "16-31")]),
        (EIGHT_GPUS, {"gpus_per_instance": 3}, [("0,1,2", "0-15"), ("4,5,6", "16-31")]),
        (EIGHT_GPUS, {"gpus_per_instance": 8}, [("0,1,2,3,4,5,6,7", "0-31")]),
        (EIGHT_GPUS, {"numa_nodes": (1,), "instances": 4},
         [(str(i), f"{i * 4}-{i * 4 + 3}") for i in range(4, 8)]),
        # Those of one instance are of one node where they can be.
        (with_gpus(TWO_PACKAGES, [0, 1, 0, 1]), {"gpus_per_instance": 2},
         [("0,2", "0-15"), ("1,3", "16-31")]),
        # The order of an inherited variable is kept.
        (two_gpus("1,0"), {}, [("1", "16-31"), ("0", "0-15")]),
    ],
)  # fmt: skip
def test_the_gpus_and_cores_of_each_instance(
    machine: Machine, options: dict[str, object], expected: list[tuple[str, str]]
):
    assert places(plan(request(**options), machine)) == expected


def test_nodes_without_a_gpu_serve_their_package():
    """Eight nodes, GPUs at four: each instance has its share of its GPU's node and a neighbour's."""
    made = plan(request(), DGX)
    assert [instance.ncores for instance in made.instances] == [16] * 8
    for instance in made.instances:
        node = instance.gpus[0].numa_node
        assert instance.packages_touched == 1
        own = set(DGX.topology.numa_nodes[node or 0].cpus)
        assert len(own.intersection(instance.cpus)) == 8
    small = plan(request(ncores=8), DGX)
    assert [i.nodes for i in small.instances] == [(n,) for n in (3, 3, 1, 1, 7, 7, 5, 5)]


def test_gpus_without_a_known_place_are_divided_all_the_same():
    assert places(plan(request(), UNKNOWN)) == [("0", "0-3"), ("1", "4-7")]
    captured = read_capture("xeon-vm-32-cpus")
    assert places(plan(request(), captured)) == [("0", "0-15"), ("1", "16-31")]


def test_pairs_of_an_odd_number_cross_once():
    pairs = plan(request(gpus_per_instance=2), with_gpus(TWO_PACKAGES, [0, 0, 0, 1, 1, 1]))
    assert [gpus for gpus, _ in places(pairs)] == ["0,1", "2,5", "3,4"]


def test_a_quota_binds_to_no_cpu_and_gives_gpus(golden: Golden):
    machine = with_gpus(make_machine(packages=(8,), quota=3.5), [None] * 4)
    made = plan(request(), machine)
    assert places(made) == [("0", "0-7"), ("1", "0-7"), ("2", "0-7")]
    assert [i.threads for i in made.instances] == [1, 1, 1]
    golden(made.warnings)
    both = plan(request(gpus_per_instance=2), machine)
    assert [gpus for gpus, _ in places(both)] == ["0,1", "2,3"]


def test_fewer_cores_than_gpus(golden: Golden):
    machine = with_gpus(make_machine(packages=(2,)), [None] * 3)
    made = plan(request(), machine)
    assert places(made) == [("0", "0"), ("1", "1")]
    golden(made.warnings)
    with pytest.raises(UsageError, match=r"^3 instances x 1 core need 3 cores and 2"):
        plan(request(instances=3), machine)
    shared = plan(request(instances=3, oversubscribe=True), machine)
    assert [gpus for gpus, _ in places(shared)] == ["0", "1", "2"]


def test_a_gpu_far_from_all_allowed_cpus_comes_last_and_is_named(golden: Golden):
    machine = make_machine(packages=(4, 4), nodes=(4, 4), allowed=(0, 1, 2, 3))
    machine = with_gpus(machine, [1, 0])
    made = plan(request(), machine)
    assert places(made) == [("0", "2-3"), ("1", "0-1")]
    golden(made.warnings)
    one = plan(request(instances=1, ncores=2), machine)
    assert [gpus for gpus, _ in places(one)] == ["1"]


def test_what_does_not_fit_is_one_line_that_says_what_would(golden: Golden):
    said = []
    for machine, options in (
        (two_gpus("0,1"), "1 --instances 3"), (EIGHT_GPUS, "4 --instances 3"), (EIGHT_GPUS, "9"),
        (EIGHT_GPUS, "0"), (EIGHT_GPUS, "1 --mode latency"), (EIGHT_GPUS, "1 --instances 2 --ncores 20"),
        (TWO_PACKAGES, "1"), (two_gpus(""), "1"), (two_gpus("0,0"), "1"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as raised:
            plan(layout_of(f"--gpus-per-instance {options}"), machine)
        said += [f"$ xlaunch --gpus-per-instance {options}", str(raised.value)]
    golden(said)


def test_every_plan_is_disjoint_and_whole():
    for machine in (EIGHT_GPUS, DGX, UNKNOWN, with_gpus(TWO_PACKAGES, [0, 0, 1, None, 1, 0])):
        for each, instances, ncores, place in itertools.product(
            (1, 2, 3), (None, 1, 2), (None, 3), Place
        ):
            wanted = request(
                gpus_per_instance=each, instances=instances, ncores=ncores, place=place
            )
            try:
                made = plan(wanted, machine)
            except UsageError:
                assert each * (instances or 1) > len(machine.gpus.usable)
                continue
            gpus = [gpu for i in made.instances for gpu in i.gpus]
            cpus = [cpu for i in made.instances for cpu in i.cpus]
            assert len(set(gpus)) == len(gpus) == each * made.count
            assert len(set(cpus)) == len(cpus)
            assert len({i.ncores for i in made.instances}) == 1
            assert ncores is None or made.instances[0].ncores == ncores
            assert plan(wanted, machine) == made


def test_gpus_of_other_launches_come_last():
    taken = {gpu.identity for gpu in EIGHT_GPUS.gpus.usable[:3]}
    made = plan(request(instances=1, ncores=2), EIGHT_GPUS, taken_gpus=taken)
    assert places(made) == [("3", "0-1")]
    made = plan(request(instances=6, ncores=2), EIGHT_GPUS, taken_gpus=taken)
    assert [gpus for gpus, _ in places(made)] == ["0", "3", "4", "5", "6", "7"]


def test_ranks_have_gpus_of_their_own_only_if_asked():
    def of_rank(number: int, **options: object) -> Plan:
        wanted = Request.of("train.py", **options)
        share = share_of_rank(wanted, EIGHT_GPUS, ranks(4)[number], launcher_cpus=None)
        return plan(share.request.layout, share.machine)

    assert [places(of_rank(n)) for n in (0, 3)] == [[("", "0-7")], [("", "24-31")]]
    own = [places(of_rank(n, gpus_per_instance=1)) for n in range(4)]
    assert own == [[("0", "0-7")], [("1", "8-15")], [("4", "16-23")], [("5", "24-31")]]
    with pytest.raises(
        UsageError, match="4 instances x 3 GPUs need 12 GPUs, and 8 GPUs may be used"
    ):
        of_rank(0, gpus_per_instance=3)


def shares_of_ranks(machine: Machine, size: int) -> list[tuple[str, str]]:
    """The CPUs of each rank's share, and why they are allowed."""
    shares = [
        share_of_rank(Request(), machine, rank, launcher_cpus=None).machine for rank in ranks(size)
    ]
    assert all(share.gpus == machine.gpus for share in shares), "each rank sees all GPUs"
    return [
        (format_cpu_list(share.limits.allowed_cpus), share.limits.narrowed_by[0].partition(", ")[2])
        for share in shares
    ]


def test_each_rank_is_near_the_gpu_of_its_number():
    turned = with_gpus(TWO_PACKAGES, [1, 0, 1, 0])
    assert shares_of_ranks(turned, 4) == [
        ("16-23", "near GPU 0"),
        ("0-7", "near GPU 1"),
        ("24-31", "near GPU 2"),
        ("8-15", "near GPU 3"),
    ]
    assert shares_of_ranks(two_gpus("1,0"), 2) == [("16-31", "near GPU 1"), ("0-15", "near GPU 0")]
    for share, node in zip(shares_of_ranks(DGX, 8), [3, 3, 1, 1, 7, 7, 5, 5], strict=True):
        own = set(DGX.topology.numa_nodes[node].cpus)
        assert len(own.intersection(parse_cpu_list(share[0]))) == 16, "8 cores and their siblings"


def test_ranks_near_their_gpus_have_as_many_cores_as_without():
    one_side = with_gpus(TWO_PACKAGES, [1, 1])
    assert shares_of_ranks(one_side, 2) == [("16-31", "near GPU 0"), ("0-15", "")]


@pytest.mark.parametrize(
    "machine",
    [
        TWO_PACKAGES,
        with_gpus(TWO_PACKAGES, [1]),
        with_gpus(TWO_PACKAGES, [1, None]),
        with_gpus(TWO_PACKAGES, [1, 0], CUDA_VISIBLE_DEVICES=""),
        with_gpus(TWO_PACKAGES, [1, 0], CUDA_VISIBLE_DEVICES="MIG-1,MIG-2"),
        TWO_PACKAGES._replace(
            gpus=usable_gpus(
                (
                    Gpu(Vendor.NVIDIA, "10de:2330", "0000:00:00.0", 1),
                    Gpu(Vendor.NVIDIA, "10de:1eb8", "0000:01:00.0", 0),
                ),
                {},
            )
        ),
    ],
    ids=["none", "fewer than ranks", "unknown node", "hidden", "MIG", "several models"],
)
def test_ranks_are_placed_as_ever_where_their_gpus_are_not_known(machine: Machine):
    assert shares_of_ranks(machine, 2) == [("0-15", ""), ("16-31", "")]


def test_ranks_with_masks_of_their_own_divide_the_gpus_in_order():
    inside = EIGHT_GPUS._replace(limits=EIGHT_GPUS.limits._replace(allowed_cpus=(8, 9, 10, 11)))
    rank = Rank(RankMode.MPI, 2, 4, 2, "OMPI_COMM_WORLD_LOCAL_RANK")
    wanted = Request.of("train.py", gpus_per_instance=2)
    share = share_of_rank(wanted, inside, rank, launcher_cpus=range(32))
    assert [gpu.name for gpu in share.machine.gpus.usable] == ["4", "5"]


def test_a_plan_shows_the_gpus(golden: Golden):
    made = plan(request(instances=2, gpus_per_instance=2), EIGHT_GPUS)
    golden(render_plan(made, EIGHT_GPUS, explain=True))
    assert plan_to_dict(made)["instances"][1]["gpus"][0] == {
        "name": "4",
        "vendor": "NVIDIA",
        "model": "10de:2330",
        "pci_address": "0000:04:00.0",
        "numa_node": 1,
    }


def test_other_vendors_gpus_are_left_alone(golden: Golden):
    found = (*EIGHT_GPUS.gpus.found, Gpu(Vendor.INTEL, "8086:4680", "0000:ff:02.0"))
    machine = EIGHT_GPUS._replace(gpus=usable_gpus(found, {}))
    golden(render_plan(plan(request(), machine), machine, explain=True))
