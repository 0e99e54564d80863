# SPDX-License-Identifier: Apache-2.0
"""Whatever is typed: an exit code that is documented, one line at most, and never a traceback."""

from __future__ import annotations

import os
import re
import string
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tests.launcher.cli.commands import SHOW, ask, clean_environment, one_error_line

from xlaunch.cli.launch import command as launch
from xlaunch.cli.plan import command as plan
from xlaunch.cli.topology import command as topology
from xlaunch.errors import UsageError
from xlaunch.options import definitions

pytestmark = pytest.mark.usefixtures("no_program_starts", "elsewhere")

COMMAND_LINES = settings(
    max_examples=400,
    # The fixture only forbids; it holds nothing that an example could change.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES_ALONE = settings(COMMAND_LINES, max_examples=200)
MISSING = "no-such-program-anywhere"

# What a command line can hold: any bytes but zero, seen as Python shows them.
JUNK = st.binary(max_size=12).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
DIGITS = st.text("0123456789", min_size=1, max_size=8)
LISTS = st.text("0123456789,-: ", max_size=8)
TIMES = st.builds(str.__add__, st.text("0123456789.-e", max_size=6), st.sampled_from(("", "s", "m", "ms", "d", "x")))  # fmt: skip
NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=4)
VALUES = st.one_of(
    JUNK,
    DIGITS,
    LISTS,
    TIMES,
    st.integers(-2, 5).map(str),
    st.builds("{}={}".format, NAMES, JUNK),
    st.sampled_from(
        ("max", "latency", "throughput", "scatter", "include", "only", "bind", "interleave", "none",
         "continue", "stop", "auto", "1", "0", "0-1", "core:4", "package:2 core:2 pu:2", "/", ".",
         "--", "-", "")
    ),
)  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of this directory is read as options."""
    monkeypatch.chdir(tmp_path)


def options_of(command: click.Command) -> list[str]:
    return sorted(
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    )


def words(command: click.Command, *, without: frozenset[str] = frozenset()) -> st.SearchStrategy:
    """Command lines of real options with fitting and unfitting values, and of slips."""
    without |= {"--save-preset", "--capture"}  # these write where they are told to
    option = st.sampled_from([name for name in options_of(command) if name not in without])
    slip = st.builds(lambda name, cut: name[:cut], option, st.integers(1, 12))
    pieces = st.one_of(
        option.map(lambda name: (name,)),
        st.tuples(option, VALUES),
        st.builds("{}={}".format, option, VALUES).map(lambda word: (word,)),
        st.one_of(slip, JUNK.map("--{}".format)).map(lambda word: (word,)),
    )
    return st.lists(pieces, max_size=5).map(lambda parts: tuple(w for part in parts for w in part))


def check(command_line: tuple[str, ...], allowed: tuple[int, ...], **variables: str) -> None:
    code, out, err = ask(*command_line, env=clean_environment(**variables))
    assert type(code) is int
    assert code in allowed, err
    if code == 0:
        assert out
        assert "Traceback" not in err
    else:
        assert out == b""
        one_error_line(err)


@settings(COMMAND_LINES, max_examples=100)
@given(words(launch), JUNK)
@example(("--report", "", "--log-dir", ""), "")
@example(("--version",), "x")
def test_launches_of_nothing(options: tuple[str, ...], argument: str):
    check(("--dry-run", *options, "--", MISSING, argument), (0, 2, 126, 127))


@pytest.mark.long
@COMMAND_LINES
@given(words(launch), JUNK)
def test_many_launches_of_nothing(options: tuple[str, ...], argument: str):
    check(("--dry-run", *options, "--", MISSING, argument), (0, 2, 126, 127))


@pytest.mark.long
# Options that would leave files even where the program is missing are not among these.
@settings(COMMAND_LINES, max_examples=200)
@given(words(launch, without=frozenset(("--log-dir", "--cache-dir", "-m", "--module"))))
def test_launches_of_a_missing_program(options: tuple[str, ...]):
    assume(not any(re.match("-[a-zA-Z]*m", word) for word in options))  # a module is not looked for
    # A value may become the program: `ed`.
    check((*options, MISSING), (0, 2, 126, 127), PATH="/no/such/directory")


@pytest.mark.long
@settings(COMMAND_LINES, max_examples=200)
@given(words(plan), st.sampled_from(((), ("true",), (MISSING,), ("-m", "json"), ("--", str(SHOW)))))
def test_plans(options: tuple[str, ...], program: tuple[str, ...]):
    check(("plan", *options, *program), (0, 2, 126, 127))


@pytest.mark.long
@settings(COMMAND_LINES, max_examples=100)
@given(words(topology))
def test_topologies(options: tuple[str, ...]):
    check(("topology", *options), (0, 2))


@pytest.mark.long
@settings(COMMAND_LINES, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "XLAUNCH_OPT_" + option.lstrip("-").replace("-", "_").upper()
                for option in options_of(plan)
                if option.startswith("--") and option != "--save-preset"
            ]
        ),
        VALUES,
        max_size=3,
    )
)
def test_options_from_variables(values: dict[str, str]):
    check(("plan", "true"), (0, 2), **values)


@pytest.mark.long
@settings(COMMAND_LINES, max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(
            ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "OMP_NUM_THREADS", "XLAUNCH_SET", "HOME",
             "XDG_CACHE_HOME", "GLIBC_TUNABLES", "LD_PRELOAD", "XLAUNCH_INSTANCE_INDEX",
             "PYTHONUNBUFFERED", "TMPDIR")
        ),
        JUNK,
        max_size=4,
    )
)  # fmt: skip
def test_inherited_variables_of_any_content(values: dict[str, str]):
    check(("plan", "--explain", str(SHOW)), (0, 2, 126, 127), **values)


# Values, one kind each


def convert(kind: definitions.OptionKind, text: str) -> object:
    """The value, or None where it was refused as a user's mistake."""
    try:
        return kind.parse(text)
    except UsageError:
        return None


@VALUES_ALONE
@given(st.one_of(JUNK, DIGITS))
def test_counts(text: str):
    count, whole = convert(definitions.COUNT, text), convert(definitions.WHOLE_NUMBER, text)
    if text.isascii() and text.isdigit() and int(text) <= 1 << 20:
        assert whole == int(text)
        assert count == (int(text) or None)
    else:
        assert whole is None
        assert count is None


@VALUES_ALONE
@given(st.one_of(JUNK, TIMES))
def test_durations(text: str):
    positive, any_time = (
        convert(definitions.POSITIVE_DURATION, text),
        convert(definitions.DURATION, text),
    )
    assert positive == any_time or (positive is None and any_time == 0)
    assert any_time is None or 0 <= any_time < float("inf")
