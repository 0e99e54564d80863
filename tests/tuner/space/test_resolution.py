# SPDX-License-Identifier: Apache-2.0
"""What configurations come to: equal hashes are equal starts, and what cannot be had says why."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.captures import own_captures, read_capture
from tests.golden import Golden
from tests.launcher.cli.commands import clean_environment
from tests.launcher.planning.shapes import GIB, make_machine

import xlaunch
from xlaunch.errors import ProgramNotFoundError, UsageError, XLaunchError
from xlaunch.machine.topology import Machine
from xlaunch.planning import MemoryPolicy, Request
from xlaunch.planning.request import HugePages
from xtune.errors import SpaceError
from xtune.space.machine_space import make_space
from xtune.space.offers import SWITCHES, Offers
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space
from xtune.space.user_parameters import parse_parameters

NOTHING_INSTALLED = Offers(
    allocators=("auto", "glibc", "glibc-tuned", "glibc-frugal"),
    runtimes=("auto", "auto+active", "none"),
    huge_pages=("auto", "always", "madvise", "never"),
    switches=SWITCHES[:1],
)
"""With values that come to the same on many machines: they are to be seen through."""

WORK = Request.of(
    sys.executable, "-c", "print({batch})", "{mode}", env=(("RATE", "{batch}/{index}"),)
)
LIGHT = WORK.replace(words=("true", "{batch}", "{mode}"), no_cache=True)
"""The same without Python and caches, which are looked up for each configuration."""
TWO_NODES = make_machine(packages=(4, 4), nodes=(4, 4), l3=(2,) * 4, smt=2)


def refusal_of(resolver: Resolver, configuration: Configuration) -> str | None:
    try:
        resolver.resolve(configuration)
    except XLaunchError as error:
        return str(error)
    return None


def resolver_of(
    machine: Machine, offers: Offers = NOTHING_INSTALLED, request: Request = WORK
) -> Resolver:
    own = parse_parameters(["batch=1,2", "mode=a,b"], request)
    space = make_space(request, machine, offers, own=own).space
    # If the user sets tunables, auto is glibc-tuned, whatever is installed.
    environment = clean_environment(GLIBC_TUNABLES="glibc.malloc.perturb=0")
    return Resolver(space, request, environment, machine)


def resolver_in(space: Space, request: Request = WORK) -> Resolver:
    return Resolver(space, request, clean_environment(), TWO_NODES)


SMALL = NOTHING_INSTALLED._replace(
    allocators=("auto", "glibc-tuned"),
    runtimes=("auto", "none"),
    huge_pages=("auto", "always", "never"),
    switches=(),
)


def started_as(resolver: Resolver, configuration: Configuration) -> object:
    """Everything that a start is made of, in the launcher's own terms."""
    plan = resolver.resolve(configuration).plan
    environment = resolver.environment(configuration)
    instances = []
    for instance, program, variables in zip(
        plan.instances, environment.programs, environment.variables, strict=True
    ):
        policy = instance.memory
        if policy is MemoryPolicy.INTERLEAVE and len(instance.memory_nodes) == 1:
            policy = MemoryPolicy.PREFERRED
        kept = {name: value for name, value in variables.items() if name != "XLAUNCH_SET"}
        instances.append(
            (
                instance.cpus if plan.bound else None,
                policy,
                instance.memory_nodes,
                program.executable,
                program.argv,
                sorted(kept.items()),
            )
        )
    return str((plan.count, instances, environment.forbids_huge_pages))


@pytest.mark.parametrize(
    "machine",
    [make_machine(packages=(1,)), make_machine(packages=(2,), nodes=(1, 1), smt=2)],
    ids=["one core", "two nodes"],
)
def test_equal_hashes_are_equal_starts_throughout_a_space(machine: Machine) -> None:
    resolver = resolver_of(machine, SMALL, LIGHT)
    starts: dict[str, object] = {}
    for configuration in resolver.space:
        plan_hash = resolver.plan_hash(configuration)
        assert plan_hash is not None
        start = started_as(resolver, configuration)
        assert starts.setdefault(plan_hash, start) == start
    assert len(set(map(str, starts.values()))) == len(starts)
    assert len(starts) < resolver.space.size


MACHINES = st.one_of(
    st.sampled_from(
        [
            TWO_NODES,
            make_machine(packages=(43,), nodes=(15, 14, 14)),
            make_machine(packages=(6,), l3=(3, 3), allowed=[1, 2, 4], narrowed_by=["cpuset"]),
            make_machine(packages=(8,), nodes=(8,), quota=3.5),
        ]
    ),
    st.sampled_from(own_captures()).map(read_capture),
)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(MACHINES, st.randoms(use_true_random=False))
def test_any_configuration_comes_to_a_plan_or_a_reason(machine: Machine, rng: object) -> None:
    resolver = resolver_of(machine, request=LIGHT)
    space = resolver.space
    one = space.random(rng)  # type: ignore[arg-type]
    for other in (one, *space.neighbours(one)[:6], space.random(rng)):  # type: ignore[arg-type]
        plan_hash, refusal = resolver.plan_hash(other), refusal_of(resolver, other)
        assert (plan_hash is None) is (refusal is not None)
        if refusal is not None:
            assert len(refusal.splitlines()) == 1
            continue
        if resolver.plan_hash(one) is not None:
            same = started_as(resolver, one) == started_as(resolver, other)
            assert (plan_hash == resolver.plan_hash(one)) is same


def test_what_comes_to_the_same_has_one_hash() -> None:
    resolver = resolver_of(TWO_NODES)

    def same(one: Mapping[str, str | bool], other: Mapping[str, str | bool]) -> bool:
        hashes = {resolver.plan_hash(Configuration(values)) for values in (one, other)}
        assert None not in hashes
        return len(hashes) == 1

    assert same({}, {"layout": "1xall"})
    assert same({}, {"place": "scatter"})
    assert same({}, {"allocator": "glibc-tuned"})
    assert same({}, {"omp": "none"})
    assert not same({}, {"smt": True})
    assert not same({}, {"memory": "interleave"})
    assert not same({}, {"thp": "never"})
    assert not same({}, {"mode": "b"})
    assert not same({}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384"})
    assert same({"layout": "2x4"}, {"layout": "2x4", "memory": "interleave"})
    assert same({"layout": "2x4"}, {"layout": "2x4", "place": "scatter"})
    assert not same({"layout": "2x2"}, {"layout": "2x2", "place": "scatter"})
    assert not same({"layout": "2x2"}, {"layout": "4x2"})


def test_a_little_more_memory_is_the_same_machine() -> None:
    def hash_with(total_bytes: int) -> str | None:
        limits = TWO_NODES.limits._replace(memory_total_bytes=total_bytes)
        return resolver_of(TWO_NODES._replace(limits=limits)).plan_hash(Configuration({}))

    assert hash_with(15 * GIB + (600 << 20)) == hash_with(15 * GIB + (593 << 20))
    assert hash_with(16 * GIB) != hash_with(32 * GIB)


@pytest.mark.parametrize("configuration", [Configuration({}), BARE])
def test_inherited_variables_are_part_of_the_hash_but_for_those_of_a_session(
    configuration: Configuration,
) -> None:
    space = resolver_of(TWO_NODES).space
    plain = clean_environment()

    def hash_under(**more: str) -> str | None:
        return Resolver(space, WORK, {**plain, **more}, TWO_NODES).plan_hash(configuration)

    assert hash_under() == hash_under(SSH_TTY="/dev/pts/7", TERM="dumb", XDG_SESSION_ID="4")
    assert hash_under() != hash_under(TRITON_CACHE_DIR="/elsewhere")
    assert hash_under() == hash_under(XLAUNCH_OPT_NCORES="3")
    assert hash_under() != hash_under(OMP_NUM_THREADS="3")
    assert hash_under(OMP_NUM_THREADS="2") != hash_under(OMP_NUM_THREADS="3")
    assert hash_under() != hash_under(BATCH="64")


def test_cpus_interpreter_and_caches_are_part_of_the_hash(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    script = str(tmp_path / "work.py")
    Path(script).touch()
    made = [
        resolver_in(Space([]), request).plan_hash(Configuration({}))
        for request in (
            WORK,
            WORK.replace(cpus=(0, 1)),
            WORK.replace(words=(script,), python=sys.executable),
            WORK.replace(words=(script,), python=str(tmp_path / "python")),
            WORK.replace(cache_dir=str(tmp_path)),
            WORK.replace(no_cache=True),
        )
    ]
    assert None not in made
    assert len(set(made)) == len(made)


def test_the_bare_command_is_no_configuration() -> None:
    resolver = resolver_of(TWO_NODES)
    bare = resolver.plan_hash(BARE)
    assert bare is not None
    assert bare not in {resolver.plan_hash(one) for one in itertools.islice(resolver.space, 40)}
    assert resolver.command(BARE) == [sys.executable, "-c", "print(1)", "a"]
    assert resolver.request(BARE).program.env == (("RATE", "1/{index}"),)
    other = resolver_in(resolver.space, WORK.replace(env=()))
    assert other.plan_hash(BARE) != bare


def test_a_script_alone_is_run_by_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.touch()
    resolver = resolver_in(Space([]), Request.of(str(script), "x"))
    assert resolver.command(BARE) == [sys.executable, str(script), "x"]
    assert resolver.command(Configuration({})) == ["xlaunch", str(script), "x"]


def test_a_request_is_the_configuration_over_what_was_asked() -> None:
    request = WORK.replace(reserve_cores=1)
    space = make_space(
        request, TWO_NODES, NOTHING_INSTALLED, own=parse_parameters(["batch=1,2"], request)
    ).space
    resolver = resolver_in(space, request)
    configuration = Configuration(
        {
            "layout": "3x2",
            "smt": True,
            "allocator": "glibc",
            "omp": "auto+active",
            "thp": "never",
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",
            "batch": 2,
        }
    )
    assert resolver.request(configuration) == request.replace(
        words=(sys.executable, "-c", "print(2)", "{mode}"),
        instances=3,
        ncores=2,
        smt=True,
        allocator="glibc",
        thp=HugePages.NEVER,
        env=(
            ("RATE", "2/{index}"),
            ("OMP_WAIT_POLICY", "active"),
            ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384"),
        ),
    )
    resolved = resolver.resolve(configuration)
    assert resolved.plan == xlaunch.plan(resolved.request.layout, TWO_NODES)
    variables = resolver.environment(configuration).variables
    assert [one["RATE"] for one in variables] == ["2/0", "2/1", "2/2"]
    assert variables[0]["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("name", "default", "value", "said"),
    [
        ("allocator", "auto", "/no/such/lib.so", "--allocator /no/such/lib.so: cannot be read"),
        ("omp", "auto", "fast", "'fast' is not an OpenMP profile"),
        ("layout", "1xall", "3x3", "3 instances x 3 cores need 9 cores and 8 are allowed"),
    ],
)
def test_what_cannot_be_carried_out_says_why(
    name: str, default: str, value: str, said: str
) -> None:
    resolver = resolver_in(Space([Parameter(name, (default, value), default, Target.OPTION)]))
    configuration = Configuration({name: value})
    assert resolver.plan_hash(configuration) is None
    with pytest.raises(UsageError, match=said):
        resolver.resolve(configuration)
    assert refusal_of(resolver, Configuration({})) is None


def test_a_program_that_is_not_there_is_refused() -> None:
    resolver = resolver_in(Space([]), Request.of("/no/such/program"))
    assert resolver.plan_hash(Configuration({})) is None
    assert resolver.plan_hash(BARE) is None
    with pytest.raises(ProgramNotFoundError, match="program '/no/such/program' does not exist"):
        resolver.resolve(Configuration({}))


def test_what_is_not_in_the_space_is_an_error() -> None:
    resolver = resolver_of(TWO_NODES)
    for configuration in (Configuration({"speed": 1}), Configuration({"batch": 3})):
        for ask in (resolver.plan_hash, resolver.resolve, resolver.command):
            with pytest.raises(SpaceError):
                ask(configuration)


def test_a_value_that_no_option_takes_is_an_error(golden: Golden) -> None:
    wrong = (
        ("place", "everywhere"), ("omp", "none+active"), ("smt", "yes"), ("tag", "x"), ("layout", "big"),
    )  # fmt: skip
    spaces = [Space([Parameter(name, (value,), value, Target.OPTION)]) for name, value in wrong]
    golden.errors(*[partial(resolver_in(space).request, space.default) for space in spaces])
