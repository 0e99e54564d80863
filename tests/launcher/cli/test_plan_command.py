# SPDX-License-Identifier: Apache-2.0
"""`xlaunch plan` and `--dry-run` show what a launch would do, and do nothing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tests.launcher.cli.commands import ask
from tests.launcher.machine.trees import CPU, write_files

import xlaunch
from xlaunch.cache.table import CACHES
from xlaunch.options.definitions import OPTIONS, OptionGroup

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")


@pytest.fixture
def other_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tree of a machine with three CPUs."""
    root = tmp_path_factory.mktemp("machine")
    return write_files(root, {f"{CPU}/online": "0-2", f"{CPU}/cpu0/": ""})


def instances_of(text: str) -> list[int]:
    """The instances in a plan's table."""
    lines = text.splitlines()
    table = lines[lines.index(next(x for x in lines if x.startswith("instance  cores"))) + 1 :]
    return [
        int(line.split()[0]) for line in table if line.startswith(" ") and line.strip()[0].isdigit()
    ]


def test_dry_run_is_plan(other_machine: str):
    for options in (
        (*TWO, "--explain"),
        ("--sysroot", other_machine, "--instances", "3"),
        ("--timeout", "1h", "--tag", "--on-failure", "continue", "--supervise", "--env", "A=1"),
    ):
        words = (*options, "echo", "a b")
        dry, planned = ask("--dry-run", *words), ask("plan", *words)
        assert dry == planned
        assert (dry.code, dry.err) == (0, "")
        assert "program: echo 'a b'" in dry.out.decode()


@pytest.mark.parametrize(
    "words", [("-v",), ("--verbose",), ("-q",), ("--quiet", "--dry-run"), ("-n", "2")]
)
def test_a_plan_takes_the_flags_that_ask_for_one(words: tuple[str, ...]):
    planned = ask("plan", *TWO, "true")
    assert planned.code == 0
    assert ask("plan", *words, *TWO, "true") == planned
    assert ask("--dry-run", *words, *TWO, "true") == planned


def test_quiet_plan_has_no_notes(tmp_path: Path):
    (tmp_path / "lat.toml").write_text('mode = "latency"\n')
    words = ("--preset", "lat.toml", *TWO, "true")
    told, quiet = (ask("plan", *more, *words, cwd=tmp_path) for more in ((), ("-q",)))
    assert "is ignored: " in told.err
    assert quiet == told._replace(err="")


@pytest.mark.parametrize("words", [("plan",), ("--dry-run",)])
def test_nothing_is_written(tmp_path: Path, words: tuple[str, ...]):
    outputs = ("--log-dir", "logs", "--report", "report.json")
    done = ask(*words, *TWO, *outputs, "echo", cwd=tmp_path)
    assert (done.code, done.err, list(tmp_path.iterdir())) == (0, "", [])


def test_program_of_a_plan_must_be_there_if_there_is_one():
    for words in (("plan",), ("--dry-run",)):
        ask(*words, "no-such-program").refused(127)
        ask(*words, "/").refused(126)
    ask("--dry-run", "--python", "no-such-python", "x.py").refused(127)
    out = ask("plan", *TWO).out.decode()
    assert instances_of(out) == [0, 1]
    assert "program" not in out
    assert instances_of(ask("plan", *TWO, "--instance-index", "1").out.decode()) == [1]


def test_plan_as_values():
    words = ("--json", *TWO, "echo", "a b")
    done = ask("plan", *words)
    values = json.loads(done.out)
    assert [one["index"] for one in values["instances"]] == [0, 1]
    assert values["instance_count"] == 2
    assert values["program"] == ["echo", "a b"]
    assert done.err == ""
    assert ask("--dry-run", *words) == done
    message = ask(*words).refused()
    assert message.startswith("--json prints a plan: it goes with --dry-run or xlaunch plan")


def test_explain_gives_variables_of_one_reason_together(tmp_path: Path):
    out = ask("plan", "--cache-dir", tmp_path, "--explain", "true").out.decode().splitlines()
    reason = "  compiled code is kept in a private directory for this hardware and these versions; "
    start = out.index(f"{reason}cold: it is empty:")
    everywhere = [it for it in CACHES if it.vendor is None and not it.changes_behaviour]
    lines = out[start + 1 : start + 1 + len(everywhere)]
    assert [line.strip().partition("=")[0] for line in lines] == [it.variable for it in everywhere]
    assert all(line.startswith("    ") for line in lines)


def test_explain_gives_a_reason_for_every_decision():
    brief, full = (ask("plan", *more, "true").out.decode() for more in ((), ("--explain",)))
    assert len(full.splitlines()) > len(brief.splitlines())
    values = json.loads(ask("plan", "--json", "true").out)
    for decision in values["decisions"]:
        assert decision["reason"] in " ".join(full.split())


def test_other_machines_are_for_plans_only(other_machine: str):
    out = ask("plan", "--sysroot", other_machine, "--instances", "3").out.decode()
    assert instances_of(out) == [0, 1, 2]
    assert "--dry-run" in ask("--sysroot", other_machine, "true").refused()


def test_sysroot_that_holds_no_machine(tmp_path: Path):
    for root in (tmp_path, tmp_path / "gone", "", "/dev/null"):
        assert "sysroot" in ask("plan", "--sysroot", root).refused()


def test_help_and_version():
    for words in (("--help",), ("-h",), ("help",)):
        done = ask(*words)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(b"Usage: xlaunch [OPTIONS]")
    for words in (("--version",), ("version",), ("--version", "no-such-program")):
        assert ask(*words) == (0, f"xlaunch {xlaunch.__version__}\n".encode(), "")


def test_help_shows_every_option_in_its_group_within_80_columns():
    text = ask("--help").out.decode()
    titles = [group.value for group in OptionGroup] + ["Other"]
    starts = [text.index(f"\n{title}:\n") for title in titles]
    assert starts == sorted(starts)
    parts = dict(zip(titles, itertools.pairwise([*starts, len(text)]), strict=True))
    for option in OPTIONS:
        start, end = parts[option.group.value]
        assert f"--{option.name} " in text[start:end]
        assert f" {option.help} " in " ".join(text[start:end].split()) + " "
    assert max(len(line) for line in text.splitlines()) <= 80


def test_words_are_taken_in_any_case_and_shown_in_lower_case():
    for words in (("--mode", "THROUGHPUT"), ("--instances", "MAX"), ("--place", "Scatter")):
        made = ask("plan", "--json", *words)
        assert made.code == 0, made.err
        assert made == ask("plan", "--json", words[0], words[1].lower())
    text = ask("--help").out.decode()
    for shown in ("--mode latency|throughput", "--instances N|max", "--on-failure stop|continue"):
        assert shown in text


@pytest.mark.parametrize("command", ["plan", "env"])
def test_usage_shows_whether_a_program_is_needed(command: str):
    assert b"[OPTIONS] [[--] PROGRAM [ARGS...]]\n" in ask(command, "--help").out
    assert b"[OPTIONS] [--] PROGRAM [ARGS...]\n" in ask("--help").out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--frobnicate", None), ("--ncore", "--ncores"), ("--no-smtt", "--no-smt")],
)
def test_opposite_of_a_flag_is_suggested_to_who_means_one(typed: str, meant: str | None):
    message = ask(typed, "true").refused()
    assert ("did you mean" in message) == (meant is not None)
    assert (meant or "--help") in message
    assert ("--no-" in message) == typed.startswith("--no-")
