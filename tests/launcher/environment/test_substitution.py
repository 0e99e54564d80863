# SPDX-License-Identifier: Apache-2.0
"""Braces in arguments and variables: what is replaced, what is left alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.launcher.cli.commands import SHOW, arguments_of, ask, clean_environment, program, xlaunch

from xlaunch.environment.variables import substitute
from xlaunch.errors import UsageError

WORDS = {"index": "3", "count": "8", "cpus": "4-7,12", "ncores": "5", "node": "0-1"}
TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q", "--no-tag")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{index}", "3"),
        ("{count}{index}", "83"),
        ("a{cpus}b", "a4-7,12b"),
        ("{ncores}", "5"),
        ("{node}", "0-1"),
        ("--port={8000+index}", "--port=8003"),
        ("{8000+2*index}", "8006"),
        ("{index*2+8000}", "8006"),
        ("{count-index-1}", "4"),
        ("{index-count}", "-5"),
        ("{2*index*count-ncores*2}", "38"),
        ("{007+index}", "10"),
        ('{"port":{8000+index}}', '{"port":8003}'),
        ("{index}}", "3}"),
        ("{{index}", "{3"),
        ("{{index}}", "{index}"),
        ("{{8000+index}}", "{8000+index}"),
        ("${{{index}}}", "${{index}}"),
    ],
)
def test_what_is_replaced(text: str, expected: str):
    assert substitute(text, WORDS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "{", "}", "index", "{3}", "{2*3}", "{1,3}", "{{3}}", "{{}}", "${HOME}", "{other}",
        "{{other}}", "{ index }", "{index+}", "{+index}", "{index+other}", "{index/2}", "{index**2}",
        "{index:>3}", "{index!r}", "{INDEX}", "{index.real}", "{__import__}", '{"index": 1}',
        "{index + 1}", "{index+1.5}", "{(index)}", "{\n}", "{índex}", "{٣+index}",
        "{index+" + "9" * 19 + "}", "{index" + "+1" * 10 + "}",
    ],
)  # fmt: skip
def test_what_is_left_alone(text: str):
    assert substitute(text, WORDS) == text


@pytest.mark.parametrize("text", ["{cpus+1}", "{2*node}", "{index+cpus}"])
def test_sum_with_a_list_is_a_mistake(text: str):
    with pytest.raises(UsageError, match="no number to calculate with"):
        substitute(text, WORDS)


@given(st.text())
@example("{{{index}")
def test_text_without_a_known_name_stays(text: str):
    assert substitute(text.replace("index", ""), {"index": "1"}) == text.replace("index", "")


@given(
    st.lists(
        st.tuples(st.sampled_from("+-*"), st.integers(0, 10**18 - 1) | st.just("index")),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 10**6),
)
def test_sums_are_python_s(terms: list, index: int):
    expression = "index" + "".join(f"{sign}{term}" for sign, term in terms)
    expected = eval(expression, {"index": index})
    assert substitute(f"{{{expression}}}", {"index": str(index)}) == str(expected)


# The command


def test_each_instance_gets_its_own_arguments():
    words = (
        "--port={8000+2*index}",
        "{index}/{count}",
        "{cpus}",
        "{ncores}",
        "{x}",
        b"\xff{index}",
    )
    told = xlaunch(*TWO, "--substitute", SHOW, *words).shown()
    for index, one in enumerate(told):
        assert arguments_of(one) == [
            f"--port={8000 + 2 * index}".encode(),
            f"{index}/2".encode(),
            one["env"]["XLAUNCH_INSTANCE_CPUS"].encode(),
            b"1",
            b"{x}",
            b"\xff%d" % index,
        ]


def test_single_instance_in_place_gets_them_too():
    assert xlaunch("--substitute", "echo", "{index} of {count}").out == b"0 of 1\n"


def test_program_s_name_is_never_replaced(tmp_path):
    program(tmp_path / "{index}", "#!/bin/sh\necho $0 $1\n")
    done = xlaunch("--substitute", "./{index}", "{index}", cwd=tmp_path)
    assert done.out == b"./{index} 0\n"


def test_variables_are_always_replaced_and_inherited_ones_never():
    """Also the part of a variable that is added to; arguments stay without the option."""
    tunables = "GLIBC_TUNABLES=glibc.malloc.perturb={index}"
    words = ("--allocator", "glibc-tuned", "--env", tunables, "--env", "PORT={8000+index}")
    env = clean_environment(OWN="{index}")
    done = xlaunch(*TWO, *words, SHOW, "{8000+index}", env=env)
    for index, one in enumerate(done.shown()):
        assert arguments_of(one) == [b"{8000+index}"]
        assert (one["env"]["OWN"], one["env"]["PORT"]) == ("{index}", f"{8000 + index}")
        assert f"glibc.malloc.perturb={index}" in one["env"]["GLIBC_TUNABLES"].split(":")


def test_sum_with_a_list_starts_nothing():
    message = ask("--substitute", "echo", "{cpus*2}").refused()
    assert message.startswith("--substitute: {cpus*2}: cpus is ")
    assert ask("--env", "A={cpus*2}", "echo").refused().startswith("--env A: {cpus*2}: cpus is ")


def test_plan_shows_what_each_instance_gets():
    words = (*TWO, "--substitute", "echo", "{8000+index}")
    out = ask("plan", *words).out.decode()
    assert (
        "program: echo '{8000+index}'\n  of instance 0: echo 8000\n  of instance 1: echo 8001"
    ) in out
    values = json.loads(ask("plan", "--json", *words).out)
    assert values["program"] == ["echo", "{8000+index}"]
    assert [one["program"] for one in values["instances"]] == [["echo", "8000"], ["echo", "8001"]]
