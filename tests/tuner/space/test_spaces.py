# SPDX-License-Identifier: Apache-2.0
"""Spaces: exact counts, order, neighbours, places, and what is kept of them."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from math import dist, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import Golden

from xtune.errors import SpaceError
from xtune.space.conditions import parse_condition
from xtune.space.parameters import BARE, Configuration, Parameter, Target
from xtune.space.spaces import MAX_COUNTED, DerivedValue, Space

LAYOUT = Parameter(
    "layout", ("1xall", "1x1", "1x2", "2x1", "2x2", "4x1"), "1xall", Target.OPTION, reason="why not"
)
SMT = Parameter("smt", (False, True), False, Target.OPTION)
ALLOCATOR = Parameter("allocator", ("auto", "glibc", "tcmalloc"), "auto", Target.OPTION)
THREADS = Parameter("threads", (1, 2, 4, 8), 4, Target.PROGRAM, ordered=True)
DERIVED = (
    DerivedValue("instances", "layout", (1, 1, 1, 2, 2, 4)),
    DerivedValue("ncores", "layout", (4, 1, 2, 1, 2, 1)),
    DerivedValue("thp", "", ("auto",)),
)
PARAMETERS = (LAYOUT, SMT, ALLOCATOR, THREADS)
CONDITIONS = ("threads<=ncores", "allocator!=tcmalloc if smt", "thp==auto")
SPACE = Space(PARAMETERS, CONDITIONS, DERIVED)


def brute_force() -> list[Configuration]:
    """What is admissible, by the meaning of `CONDITIONS` written out."""
    found = []
    for layout, smt, allocator, threads in itertools.product(*[p.values for p in PARAMETERS]):
        ncores = DERIVED[1].values[LAYOUT.values.index(layout)]
        assert isinstance(ncores, int)
        assert isinstance(threads, int)
        if threads <= ncores and not (smt and allocator == "tcmalloc"):
            values = {"layout": layout, "smt": smt, "allocator": allocator, "threads": threads}
            found.append(Configuration(values))
    return found


def test_holds_what_keeps_every_condition_in_the_order_of_the_parameters() -> None:
    assert list(SPACE) == brute_force()
    assert SPACE.size == len(brute_force()) == 50
    assert (
        repr(SPACE)
        == "Space(layout (6) x smt (2) x allocator (3) x threads (4): 50 configurations)"
    )


def test_what_is_not_named_has_its_default() -> None:
    assert SPACE.default == Configuration(
        {"layout": "1xall", "smt": False, "allocator": "auto", "threads": 4}
    )
    assert SPACE.complete({"smt": True}) == SPACE.default.with_value("smt", True)
    assert Configuration({}) in SPACE
    assert SPACE.changes({"smt": True, "allocator": "auto"}) == {"smt": True}
    assert SPACE.changes({}) == {}


def test_what_breaks_a_condition_or_is_unknown_is_outside() -> None:
    outside = Configuration({"layout": "1x1", "threads": 2})
    assert outside not in SPACE
    assert Configuration({"threads": 3}) not in SPACE
    assert BARE not in SPACE
    assert "layout" not in SPACE
    with pytest.raises(SpaceError, match=r"^threads=3: the space has 1, 2, 4, 8$"):
        SPACE.complete({"threads": 3})
    with pytest.raises(SpaceError, match="no parameter 'batch' in this space; there are layout,"):
        SPACE.complete({"batch": 3})


def test_a_default_that_conditions_rule_out_gives_way_by_the_least_change() -> None:
    space = Space(PARAMETERS, ["threads<ncores", "ncores<=2 or smt"], DERIVED)
    assert SPACE.default not in space
    assert space.default == SPACE.default.with_value("smt", True).with_value("threads", 2)
    eight = Space([THREADS._replace(default=8)], ["threads<5"])
    assert eight.default == Configuration({"threads": 4})


def test_neighbours_are_one_step_away() -> None:
    start = Configuration({"layout": "1x2", "smt": False, "allocator": "auto", "threads": 1})
    steps = [
        (name, configuration[name])
        for configuration in SPACE.neighbours(start)
        for name in configuration
        if configuration[name] != start[name]
    ]
    assert steps == [
        ("layout", "1xall"),
        ("layout", "1x1"),
        ("layout", "2x1"),
        ("layout", "2x2"),
        ("layout", "4x1"),
        ("smt", True),
        ("allocator", "glibc"),
        ("allocator", "tcmalloc"),
        ("threads", 2),
    ]


def test_a_gap_in_the_numbers_is_stepped_over() -> None:
    space = Space([THREADS], ["threads!=2"])
    (step,) = space.neighbours(Configuration({"threads": 1}))
    assert step["threads"] == 4


def test_neighbours_are_symmetric_and_lead_everywhere() -> None:
    reached, waiting = {SPACE.default}, [SPACE.default]
    while waiting:
        one = waiting.pop()
        for other in SPACE.neighbours(one):
            assert other in SPACE
            assert one in SPACE.neighbours(other)
            assert sum(one[name] != other[name] for name in one) == 1
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    assert reached == set(SPACE)


def test_every_configuration_is_drawn_as_often_as_any_other() -> None:
    rng = random.Random(1)
    drawn = Counter(SPACE.random(rng) for _ in range(10_000))
    assert set(drawn) == set(SPACE)
    # 200 each on average; four standard deviations of a binomial count to either side.
    assert all(abs(count - 200) < 4 * sqrt(200) for count in drawn.values())


def test_distances_of_places_say_how_alike_two_values_are() -> None:
    threads, layouts = SPACE.places("threads"), SPACE.places("layout")
    assert layouts is not None
    assert dist(threads[0], threads[1]) == pytest.approx(1 / 3)
    assert dist(threads[0], threads[3]) == pytest.approx(1)
    # 1xall, 1x1, 1x2, 2x1, 2x2 and 4x1, by the logarithms of instances and cores.
    assert layouts == ((0, 1), (0, 0), (0, 0.5), (0.5, 0), (0.5, 0.5), (1, 0))
    assert SPACE.places("allocator") is None
    assert SPACE.places("smt") is None


def test_a_parameter_of_one_value_has_no_places() -> None:
    space = Space([THREADS, Parameter("batch", (8,), 8, Target.PROGRAM, ordered=True)])
    assert space.places("batch") is None
    assert space.size == 4
    assert space.default["batch"] == 8


def test_kept_as_json_it_comes_back_as_it_was() -> None:
    space = Space(PARAMETERS, CONDITIONS, DERIVED, words={"mimalloc", "jemalloc"})
    plain = json.loads(json.dumps(space.to_plain()))
    assert plain["schema_version"] == 1
    back = Space.from_plain(plain)
    assert back == space
    assert back.parameters == space.parameters
    assert list(back) == list(space)
    assert hash(back) == hash(space)
    assert type(next(iter(back))["smt"]) is bool


def test_the_name_says_what_is_searched_and_no_more() -> None:
    other_reason = Space([LAYOUT._replace(reason="because"), *PARAMETERS[1:]], CONDITIONS, DERIVED)
    assert other_reason.name == SPACE.name
    assert Space(PARAMETERS, CONDITIONS, DERIVED, words={"x"}).name == SPACE.name
    names = {
        SPACE.name,
        Space(PARAMETERS, CONDITIONS[:2], DERIVED).name,
        Space(PARAMETERS[:3], derived=DERIVED).name,
        Space([*PARAMETERS[:3], THREADS._replace(default=1)], CONDITIONS, DERIVED).name,
        Space([*PARAMETERS[:3], THREADS._replace(values=(1, 2, 4))], CONDITIONS, DERIVED).name,
        Space(PARAMETERS, CONDITIONS, [*DERIVED, DerivedValue("memory", "", ("auto",))]).name,
    }
    assert len(names) == 6
    assert all(len(name) == 16 for name in names)


def test_what_is_no_space_is_not_read(golden: Golden) -> None:
    golden.errors(
        lambda: Space.from_plain({"schema_version": 2}),
        lambda: Space.from_plain({}),
        lambda: Space.from_plain({**SPACE.to_plain(), "conditions": ["speed>1"]}),
    )


def test_two_parameters_of_a_name_are_refused() -> None:
    with pytest.raises(SpaceError, match="there are two parameters named 'smt'"):
        Space([SMT, SMT])


def test_conditions_that_nothing_keeps_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"^--when 'threads>8': no configuration meets it$"):
        Space(PARAMETERS, ["threads>8"], DERIVED)
    with pytest.raises(SpaceError, match=r"^--when 'thp==always': no configuration meets it$"):
        Space(PARAMETERS, ["thp==always"], DERIVED, words={"always"})
    with pytest.raises(SpaceError, match=r"meets every --when: 'threads>4', 'threads<=ncores'$"):
        Space(PARAMETERS, ["threads>4", "threads<=ncores"], DERIVED)


def test_one_configuration_is_nothing_to_choose_from() -> None:
    with pytest.raises(SpaceError, match="only one configuration, so nothing to search: give"):
        Space([SMT], ["smt"]).require_choice()
    with pytest.raises(SpaceError, match="nothing to search"):
        Space([]).require_choice()
    Space([SMT]).require_choice()
    assert list(Space([])) == [Configuration({})]


TWELVE = [Parameter(f"p{i}", tuple(range(20)), 0, Target.PROGRAM, True) for i in range(12)]


def test_a_large_space_without_conditions_is_counted() -> None:
    space = Space(TWELVE)
    assert (space.size, space.is_counted) == (20**12, True)


@pytest.mark.parametrize(
    "conditions", [["p0 < p11", "p3 + p4 <= p5"], [" + ".join(f"p{i}" for i in range(6)) + " < 50"]]
)
def test_of_a_large_space_with_conditions_only_a_number_is_known(conditions: list[str]) -> None:
    space = Space(TWELVE, conditions)
    assert (space.size, space.is_counted) == (MAX_COUNTED, False)
    assert repr(space).endswith(f": more than {MAX_COUNTED} configurations)")
    assert space.default in space
    assert sum(space.default.values()) <= 1
    rng = random.Random(0)
    drawn = [space.random(rng) for _ in range(100)]
    assert all(one in space for one in drawn)
    assert len(set(drawn)) == 100


def test_of_a_large_space_that_hardly_anything_is_in_the_first_ones_are_drawn() -> None:
    space = Space(TWELVE, [f"p{i} == p{i + 1}" for i in range(4)])
    assert not space.is_counted
    rng = random.Random(0)
    assert all(space.random(rng) in space for _ in range(3))


def test_conditions_that_take_too_long_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xtune.space.spaces.MAX_CHECKS", 20_000)
    impossible = [" + ".join(f"p{i}" for i in range(12)) + " == 228", "p0 == 0"]
    with pytest.raises(SpaceError, match="combine too many parameters"):
        Space(TWELVE, impossible)


NUMBERED = [
    Parameter(name, tuple(range(count)), 0, Target.PROGRAM, ordered=count != 3)
    for name, count in (("a", 3), ("b", 2), ("c", 4), ("d", 3))
]
SOME_CONDITIONS = st.lists(
    st.builds(
        "{} {} {} {}".format,
        st.sampled_from("abcd"),
        st.sampled_from(["<=", "!=", "<", "=="]),
        st.sampled_from("abcd"),
        st.sampled_from(["", "+ 1", "+ d", "if b == 1", "or c > 1", "if a*c == 2"]),
    ),
    max_size=3,
)


@settings(max_examples=40)
@given(SOME_CONDITIONS)
def test_any_space_agrees_with_going_through_all(texts: list[str]) -> None:
    names = [parameter.name for parameter in NUMBERED]
    everything = [
        Configuration(dict(zip(names, values, strict=True)))
        for values in itertools.product(*[parameter.values for parameter in NUMBERED])
    ]
    free = Space(NUMBERED)
    known = {parameter.name: parameter.values for parameter in NUMBERED}
    conditions = [parse_condition(text, known) for text in texts]
    expected = [one for one in everything if all(c.holds(one) for c in conditions)]
    assert list(free) == everything
    if not expected:
        with pytest.raises(SpaceError, match="no configuration meets"):
            Space(NUMBERED, texts)
        return
    space = Space(NUMBERED, texts)
    assert list(space) == expected
    assert space.size == len(expected)
    changed = [sum(one[name] != 0 for name in names) for one in expected]
    assert sum(space.default[name] != 0 for name in names) == min(changed)
    neighbours = {one: space.neighbours(one) for one in expected}
    assert all(one in neighbours[other] for one in expected for other in neighbours[one])
