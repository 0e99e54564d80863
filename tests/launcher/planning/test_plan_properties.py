# SPDX-License-Identifier: Apache-2.0
"""What holds for every plan: of any captured machine or one made up, for any request."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.captures import other_captures, own_captures, read_capture
from tests.launcher.planning.shapes import make_machine

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning import MAX, ECores, LayoutRequest, MemoryPolicy, Mode, Place, Plan, plan
from xlaunch.planning.pool import efficiency_cpus
from xlaunch.planning.rendering import plan_to_dict, render_plan

COUNTS = st.one_of(st.none(), st.just(MAX), st.integers(-1, 40))


@st.composite
def made_up_machines(draw: st.DrawFn) -> Machine:
    """Up to 24 cores in equal domains, with any limits."""
    packages, nodes, l3, cores = (draw(st.integers(1, high)) for high in (2, 2, 2, 3))
    smt = draw(st.integers(1, 3))
    count = packages * nodes * l3 * cores
    allowed = draw(
        st.one_of(st.none(), st.sets(st.integers(0, count * smt - 1), min_size=1).map(sorted))
    )
    return make_machine(
        packages=(nodes * l3 * cores,) * packages,
        nodes=draw(st.sampled_from(((), (l3 * cores,) * (packages * nodes)))),
        l3=draw(st.sampled_from(((), (cores,) * (packages * nodes * l3)))),
        smt=smt,
        adjacent_siblings=draw(st.booleans()),
        memory_only_nodes=draw(st.integers(0, 1)),
        allowed=allowed,
        narrowed_by=() if allowed is None else ("cpuset",),
        quota=draw(st.one_of(st.none(), st.floats(0.1, 30))),
    )


MACHINES = made_up_machines() | st.sampled_from(own_captures()).map(read_capture)
EVERY_MACHINE = MACHINES | st.sampled_from(other_captures() or own_captures()).map(read_capture)
SETTINGS = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def requests(draw: st.DrawFn, machine: Machine) -> LayoutRequest:
    """Four of five such that they may be had, the others with slips of every sort."""
    request = LayoutRequest(
        reserve_cores=draw(st.sampled_from((0, 0, 0, 1, 2))),
        place=draw(st.sampled_from(Place)),
        smt=draw(st.booleans()),
        oversubscribe=draw(st.booleans()),
        mem_policy=draw(st.sampled_from(MemoryPolicy)),
    )
    if draw(st.integers(0, 4)) == 0:
        return draw(wild(request, machine))
    allowed = machine.limits.allowed_cpus
    if draw(st.integers(0, 3)) == 0:
        request = request._replace(mode=draw(st.sampled_from(Mode)))
    else:
        instances = draw(st.one_of(st.none(), st.just(MAX), st.integers(1, 6)))
        ncores = st.one_of(st.none(), st.none(), st.integers(1, 6))
        request = request._replace(instances=instances, ncores=draw(ncores))
    where = draw(st.integers(0, 5))
    if where == 0:
        cpus = draw(st.sets(st.sampled_from(allowed), min_size=1))
        request = request._replace(cpus=tuple(sorted(cpus)))
    usable = [n.id for n in machine.topology.numa_nodes if not set(allowed).isdisjoint(n.cpus)]
    if where == 1 and usable:
        nodes = draw(st.sets(st.sampled_from(usable), min_size=1))
        request = request._replace(numa_nodes=tuple(sorted(nodes)))
    if machine.topology.core_kinds:
        request = request._replace(ecores=draw(st.sampled_from((None, *ECores))))
    return request


@st.composite
def wild(draw: st.DrawFn, request: LayoutRequest, machine: Machine) -> LayoutRequest:
    """The request with numbers that may be anything."""
    any_cpu = st.integers(0, max(machine.topology.online_cpus) + 2)
    any_node = st.integers(0, len(machine.topology.numa_nodes))
    return request._replace(
        instances=draw(COUNTS),
        ncores=draw(COUNTS),
        mode=draw(st.sampled_from((None, None, *Mode))),
        reserve_cores=draw(st.integers(-1, 20)),
        cpus=draw(st.one_of(st.none(), st.sets(any_cpu, max_size=3).map(sorted).map(tuple))),
        numa_nodes=draw(st.one_of(st.none(), st.sets(any_node, max_size=3).map(sorted).map(tuple))),
        instance_index=draw(st.one_of(st.none(), st.sets(st.integers(-1, 3)).map(tuple))),
        ecores=draw(st.sampled_from((None, *ECores))),
    )


@settings(SETTINGS, max_examples=200)
@given(machine=MACHINES, data=st.data())
def test_any_request_makes_a_plan_that_keeps_its_promises_or_one_line_of_error(
    machine: Machine, data: st.DataObject
) -> None:
    check_a_request(machine, data)


@pytest.mark.long
@settings(SETTINGS, max_examples=700)
@given(machine=EVERY_MACHINE, data=st.data())
def test_any_request_of_any_machine(machine: Machine, data: st.DataObject) -> None:
    check_a_request(machine, data)


def check_a_request(machine: Machine, data: st.DataObject) -> None:
    request = data.draw(requests(machine), label="request")
    try:
        made = plan(request, machine)
    except UsageError as error:
        assert_readable(error)
        return
    assert made == plan(request, machine), "equal requests give equal plans"
    assert_count_as_asked(request, made)
    assert_inside_what_is_allowed(request, machine, made)
    if made.bound:
        assert_whole_cores(request, machine, made)
        assert_sum(request, machine, made)
    assert_touched_domains(machine, made)
    assert_threads(request, machine, made)
    assert_memory(machine, made)
    assert all(line and "\n" not in line for line in made.warnings)
    assert len(render_plan(made, machine, explain=True).splitlines()) > len(made.instances)
    assert plan_to_dict(made)["instance_count"] == made.count


def assert_readable(error: UsageError) -> None:
    text = str(error)
    assert text.strip() == text
    assert text
    assert "\n" not in text


def assert_count_as_asked(request: LayoutRequest, made: Plan) -> None:
    assert made.count >= len(made.instances) >= 1
    if request.instance_index is None:
        assert [i.index for i in made.instances] == list(range(made.count))
    else:
        assert [i.index for i in made.instances] == sorted(set(request.instance_index))
    if isinstance(request.instances, int):
        assert made.count == request.instances
    if isinstance(request.ncores, int):
        fair = [i.ncores == request.ncores for i in made.instances]
        assert all(fair) or request.oversubscribe, "K cores each, or all there are"
    sizes = {i.ncores for i in made.instances}
    assert len(sizes) == 1 or request.mode is Mode.THROUGHPUT


def assert_inside_what_is_allowed(request: LayoutRequest, machine: Machine, made: Plan) -> None:
    allowed = set(machine.limits.allowed_cpus)
    if made.bound:
        if request.cpus is not None:
            allowed &= set(request.cpus)
        if request.numa_nodes is not None:
            nodes = [n for n in machine.topology.numa_nodes if n.id in request.numa_nodes]
            allowed &= {cpu for node in nodes for cpu in node.cpus}
        if request.ecores is ECores.EXCLUDE:
            allowed -= efficiency_cpus(machine.topology)
    assert set(made.allowed_cpus) <= allowed
    for instance in made.instances:
        assert instance.cpus
        assert list(instance.cpus) == sorted(set(instance.cpus))
        assert set(instance.cpus) <= set(made.allowed_cpus)


def pool_cores(machine: Machine, made: Plan) -> list[CPUs]:
    pool = set(made.allowed_cpus)
    cores = [tuple(cpu for cpu in core if cpu in pool) for core in machine.topology.cores]
    return [core for core in cores if core]


def assert_whole_cores(request: LayoutRequest, machine: Machine, made: Plan) -> None:
    for instance in made.instances:
        cpus = set(instance.cpus)
        cores = [core for core in pool_cores(machine, made) if not cpus.isdisjoint(core)]
        assert len(cores) == instance.ncores
        wanted = [cpu for core in cores for cpu in (core if request.smt else core[:1])]
        assert cpus == set(wanted)


def assert_sum(request: LayoutRequest, machine: Machine, made: Plan) -> None:
    """Every core of the pool is used or idle, and used once unless sharing was asked for."""
    uses = Counter(cpu for instance in made.instances for cpu in instance.cpus)
    idle = set(made.idle_cpus)
    cores = pool_cores(machine, made)
    assert idle.isdisjoint(uses)
    if not request.oversubscribe:
        assert max(uses.values()) == 1
    for core in cores:
        if core[0] in idle:
            assert idle.issuperset(core)
        elif request.instance_index is None:
            assert core[0] in uses
    idle_cores = sum(core[0] in idle for core in cores)
    assert idle_cores >= request.reserve_cores


def assert_touched_domains(machine: Machine, made: Plan) -> None:
    topology = machine.topology
    for instance in made.instances:
        cpus = set(instance.cpus)
        nodes = [n.id for n in topology.numa_nodes if not cpus.isdisjoint(n.cpus)]
        assert list(instance.nodes) == nodes
        assert instance.nodes_touched == len(nodes)
        assert instance.packages_touched == sum(
            not cpus.isdisjoint(package.cpus) for package in topology.packages
        )
        assert instance.l3_touched == sum(not cpus.isdisjoint(g) for g in topology.l3_groups)


def assert_threads(request: LayoutRequest, machine: Machine, made: Plan) -> None:
    quota = machine.limits.cpu_quota
    for instance in made.instances:
        assert instance.threads >= 1
        if quota is None and not request.oversubscribe and made.bound:
            assert instance.threads == len(instance.cpus)
    if quota is not None and not request.oversubscribe:
        most = max(math.floor(quota), made.count, 1)
        assert sum(instance.threads for instance in made.instances) <= most


def assert_memory(machine: Machine, made: Plan) -> None:
    allowed = set(machine.limits.allowed_nodes)
    for instance in made.instances:
        assert instance.memory is not MemoryPolicy.AUTO
        assert set(instance.memory_nodes) <= allowed
        named = instance.memory not in (MemoryPolicy.NONE, MemoryPolicy.LOCAL)
        assert bool(instance.memory_nodes) == named
