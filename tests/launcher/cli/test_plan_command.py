# SPDX-License-Identifier: Apache-2.0
"""`xlaunch plan` and `--dry-run` show what a launch would do, and do nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask
from tests.launcher.machine.trees import CPU, write_files

from xlaunch.cache.table import CACHES

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")


@pytest.fixture
def other_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tree of a machine with three CPUs."""
    root = tmp_path_factory.mktemp("machine")
    return write_files(root, {f"{CPU}/online": "0-2", f"{CPU}/cpu0/": ""})


def instances_of(text: str) -> list[int]:
    """The instances in a plan's table."""
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("instance  cores"))
    return [int(found[1]) for line in lines[begin:] if (found := re.match(r" +(\d+)", line))]


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


def test_a_plan_takes_the_flags_that_ask_for_one():
    planned = ask("plan", *TWO, "true")
    assert planned.code == 0
    for words in (("-v",), ("--verbose",), ("-q",), ("--quiet", "--dry-run"), ("-n", "2")):
        assert ask("plan", *words, *TWO, "true") == planned
        assert ask("--dry-run", *words, *TWO, "true") == planned


def test_quiet_plan_has_no_notes(golden: Golden, tmp_path: Path):
    (tmp_path / "lat.toml").write_text('mode = "latency"\n')
    words = ("--preset", "lat.toml", *TWO, "true")
    told, quiet = (ask("plan", *more, *words, cwd=tmp_path) for more in ((), ("-q",)))
    golden(told.err)
    assert quiet == told._replace(err="")


def test_nothing_is_written(tmp_path: Path):
    outputs = ("--log-dir", "logs", "--report", "report.json")
    for command in ("plan", "--dry-run"):
        done = ask(command, *TWO, *outputs, "echo", cwd=tmp_path)
        assert (done.code, done.err, list(tmp_path.iterdir())) == (0, "", [])


def test_program_of_a_plan_must_be_there_if_there_is_one():
    ask("--dry-run", "no-such-program").refused(127)
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


def test_sysroot(golden: Golden, tmp_path: Path, other_machine: str):
    out = ask("plan", "--sysroot", other_machine, "--instances", "3").out.decode()
    assert instances_of(out) == [0, 1, 2]
    for root in (tmp_path, tmp_path / "gone", ""):
        assert "sysroot" in ask("plan", "--sysroot", root).refused()
    golden(ask("plan", "--sysroot", "/dev/null").refused())


def test_words_are_taken_in_any_case_and_shown_in_lower_case():
    for words in (("--mode", "THROUGHPUT"), ("--instances", "MAX"), ("--place", "Scatter")):
        made = ask("plan", "--json", *words)
        assert made.code == 0, made.err
        assert made == ask("plan", "--json", words[0], words[1].lower())
