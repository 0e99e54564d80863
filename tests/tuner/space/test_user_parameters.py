# SPDX-License-Identifier: Apache-2.0
"""The user's own parameters: how they are written, and what becomes of ``{name}``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden
from tests.launcher.planning.shapes import make_machine

from xlaunch.environment.variables import words_of
from xlaunch.machine.topology import Machine
from xlaunch.planning import Request, plan
from xtune.errors import SpaceError
from xtune.space.launch_options import OPTIONS
from xtune.space.parameters import Target, Value
from xtune.space.user_parameters import (
    LAUNCHER_WORDS,
    fill,
    parse_parameter,
    parse_parameters,
    replace,
)

INFER = Request.of(
    "infer.py",
    "--batch-size",
    "{batch}",
    "--name={mode}-{batch}.json",
    env=(("RATE", "{rate}"), ("CPUS", "{cpus}")),
)


@pytest.mark.parametrize(
    ("text", "values", "default"),
    [
        ("batch=1,2,4,8", (1, 2, 4, 8), 1),
        ("batch=8,2,4", (2, 4, 8), 8),
        ("batch=8", (8,), 8),
        ("batch= 1, 2 ,4 ", (1, 2, 4), 1),
        ("threads=4..64", (4, 8, 16, 32, 64), 4),
        ("threads=4..48", (4, 8, 16, 32, 48), 4),
        ("threads=4..64:20", (4, 24, 44, 64), 4),
        ("threads=1..10:4", (1, 5, 9, 10), 1),
        ("offset=-4..4:4", (-4, 0, 4), -4),
        ("rate=0.1..0.4:0.1", (0.1, 0.2, 0.3, 0.4), 0.1),
        ("rate=1.5,1e-05,2", (1e-05, 1.5, 2), 1.5),
        ("size=1,10..40:10,100", (1, 10, 20, 30, 40, 100), 1),
    ],
)
def test_numbers_ascend_and_the_first_is_the_default(
    text: str, values: tuple[Value, ...], default: Value
) -> None:
    parameter = parse_parameter(text)
    assert (parameter.values, parameter.default) == (values, default)
    assert [type(value) for value in parameter.values] == [type(value) for value in values]
    assert parameter.ordered
    assert parameter.where is Target.PROGRAM
    assert parameter.reason == f"asked for: --param {text}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("mode=eager,compile", ("eager", "compile")),
        ("mode=1,auto", ("1", "auto")),
        ("mode='8','4'", ("8", "4")),
        ("rate=1e-3,1e-4", ("1e-3", "1e-4")),
        ("seed=007,8", ("007", "8")),
        ("seed=+1,2", ("+1", "2")),
        ("x=nan,inf,-inf", ("nan", "inf", "-inf")),
        ("stop='a,b',\"c d\"", ("a,b", "c d")),
        ('stop=\'it\'\'s\',"say ""x"""', ("it's", 'say "x"')),
        ("flag='',--fast", ("", "--fast")),
        ("path=../a,../b=c", ("../a", "../b=c")),
        ("path='4..8',x", ("4..8", "x")),
        ("text=größer,🐍", ("größer", "🐍")),
        ("two=a b,c", ("a b", "c")),
    ],
)
def test_anything_else_is_text_as_it_was_written(text: str, values: tuple[str, ...]) -> None:
    parameter = parse_parameter(text)
    assert parameter.values == values
    assert parameter.default == values[0]
    assert not parameter.ordered


@given(
    st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1, max_size=5, unique=True)
)
def test_quotes_keep_any_text(texts: list[str]) -> None:
    quoted = ",".join("'" + text.replace("'", "''") + "'" for text in texts)
    assert parse_parameter(f"x={quoted}").values == tuple(texts)


def test_bad_input_is_one_line(golden: Golden) -> None:
    said = []
    for text in (
        "batch", "=1,2", "batch-size=1,2", "if=1,2", "count=1,2", "layout=1,2", "xlaunch=1,2", "batch=",
        "batch=1,2,", "batch=1,1.0", "batch=1..8,4", "mode=a,'a'", "batch=8..1", "batch=8..8", "batch=0..64",
        "batch=-1..4", "batch=1..8:0", "batch=1..x", "batch=1..9999999:1",
        "batch=" + ",".join(map(str, range(1001))), "mode='a", "mode='a'b", "mode=a\0b",
    ):  # fmt: skip
        with pytest.raises(SpaceError) as caught:
            parse_parameter(text)
        said.append(str(caught.value))
        assert said[-1].startswith("--param ")
        assert "\n" not in said[-1]
    golden(said)


@pytest.mark.parametrize("name", [*LAUNCHER_WORDS, *OPTIONS])
def test_names_of_the_launcher_cannot_be_taken(name: str) -> None:
    with pytest.raises(SpaceError, match="choose another name"):
        parse_parameter(f"{name}=1,2")


def test_the_launcher_substitutes_no_other_words() -> None:
    machine: Machine = make_machine(packages=(2,))
    made = plan(Request().layout, machine)
    assert set(words_of(made, made.instances[0])) == set(LAUNCHER_WORDS)


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("{batch}", "8"),
        ("--b={batch}x{batch}", "--b=8x8"),
        ('{"a":{"b":{batch}}}', '{"a":{"b":8}}'),
        ("{{{batch}}}", "{{batch}}"),
        ("{{batch}", "{8"),
        ("{batch}}", "8}"),
        ("{mode}", "eager {batch}"),
        ("{batches} {Batch} { batch } {batch+1} {index} ${HOME} {} {0} {{", None),
        ("", None),
    ],
)
def test_exactly_the_name_in_braces_is_replaced(text: str, replaced: str | None) -> None:
    values: dict[str, Value] = {"batch": 8, "mode": "eager {batch}"}
    assert replace(text, values) == (text if replaced is None else replaced)


def test_arguments_and_variables_are_filled_and_nothing_else_is() -> None:
    filled = fill(INFER, {"batch": 4, "mode": "a b", "rate": 0.5})
    assert filled.program.words == ("infer.py", "--batch-size", "4", "--name=a b-4.json")
    assert filled.program.env == (("RATE", "0.5"), ("CPUS", "{cpus}"))
    assert filled == INFER.replace(words=filled.program.words, env=filled.program.env)
    assert fill(INFER, {}) == INFER
    named = Request.of("{batch}", "{batch}")
    assert fill(named, {"batch": 4}).program.words == ("{batch}", "4")


def test_each_needs_a_place() -> None:
    batch, mode, rate = parse_parameters(["batch=1,2", "mode=a,b", "rate=1..4"], INFER)
    assert (batch.name, mode.name, rate.name) == ("batch", "mode", "rate")
    assert parse_parameters([], INFER) == ()
    other = Request.of("{x}", "{{x}}")
    for texts, request, said in (
        (["bach=1,2"], INFER, r"^--param bach: \{bach\} occurs neither in the program's "),
        (
            ["bach=1,2"],
            INFER,
            r"nor in --env, --measure, --prepare, --cleanup or --ready; there is \{batch\}$",
        ),
        (["n_q=1,2"], INFER, r"write \{n_q\} where the value goes, as in --n-q \{n_q\}$"),
        (["x=1,2"], other, "occurs neither"),
        (["batch=1,2", "batch=4"], INFER, "'batch' is given twice; join the values"),
    ):
        with pytest.raises(SpaceError, match=said):
            parse_parameters(texts, request)
