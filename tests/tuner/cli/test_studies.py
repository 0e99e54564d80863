# SPDX-License-Identifier: Apache-2.0
"""Studies that real searches continue: with presets to try, after edits, on other CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys

import pytest
from tests.tuner.cli.commands import RATE, Desk, Done
from tests.tuner.conftest import Needs


@pytest.mark.long
def test_presets_of_the_user_come_first(desk: Desk) -> None:
    desk.write("mine.toml", 'allocator = "glibc"\nthp = "never"\ntimeout = "1h"\n')
    done = desk.xtune(
        "--metric", "items/s", "--param", "n=1,2", "--omp", "none", "--try", "mine.toml",
        "--budget", "3", "rate.py", "{n}",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "note: mine.toml is tried without options that are not searched: timeout" in done.err
    made = desk.xtune("export").found["launches"]
    assert [one["stage"] for one in made] == ["baseline", "seed", "seed"]
    assert made[2]["origin"] == "preset mine.toml"
    assert made[2]["configuration"] == {
        **made[1]["configuration"], "allocator": "glibc", "thp": "never",
    }  # fmt: skip

    quiet = desk.xtune(
        "-q", "--metric", "items/s", "--param", "n=1,3", "--omp", "none", "--try", "mine.toml",
        "--budget", "2", "--study", "quiet", "rate.py", "{n}",
    )  # fmt: skip
    assert (quiet.code, quiet.err) == (0, "")

    # A study keeps what it is to try; the file may change or go.
    (desk.directory / "mine.toml").unlink()
    (first,) = [s["study"] for s in desk.xtune("list", "--json").found if s["study"] != "quiet"]
    assert desk.xtune("resume", first, "--budget", "2").code == 0
    later = desk.xtune("export", first, "-o", "-").found["launches"][3:]
    assert not (desk.directory / "-").exists()
    # What follows depends on the machine: where an instance can have more CPUs there are more seeds.
    assert len(later) == 2
    assert "preset mine.toml" not in [one["origin"] for one in later]


def warnings_of(told: str) -> list[str]:
    """But for those of what others do on this machine's CPUs meanwhile."""
    lines = [line for line in told.splitlines() if "warning" in line]
    others = ("busy with other work", "steal in /proc/stat")
    return [line for line in lines if not any(text in line for text in others)]


@pytest.mark.long
def test_a_study_is_gone_on_with_and_an_edit_between_is_told(desk: Desk) -> None:
    first = desk.search("rate.py", budget="2")
    assert first.out.startswith("inconclusive: neither a gain nor its absence is established\n")
    assert "to continue: xtune resume --budget '11 launches' 'rate.py" in first.out
    assert not warnings_of(first.err)
    unchanged = desk.search("rate.py", budget="2").err
    assert "continuing study 'rate.py" in unchanged
    assert not warnings_of(unchanged)
    desk.write("rate.py", f"# edited\n{RATE}")
    told = "4 launches of this study were made with the program as it was before an edit"
    warned = f"xtune: warning: {told}; if that affects speed"
    assert warned in desk.search("rate.py", budget="2").err
    # Each of the two was launched; two launches are too few for a final, and nothing else is left.
    quiet = desk.search("rate.py", "-q", budget="2")
    assert quiet.err == ""
    assert "the budget was too small for a final; 9 more launches are enough for one" in quiet.out
    resumed = desk.xtune("resume", "--budget", "30", "--json")
    assert resumed.code == 0, resumed.err
    assert told in resumed.err
    assert "5 launches of earlier searches count" in resumed.err
    assert resumed.found["verdict"] == "gain"
    assert resumed.found["best"] == {"n": 2}
    assert 5 < resumed.found["launches"] <= 35
    assert desk.xtune("report", "--html", "page.html").code == 0
    page = (desk.directory / "page.html").read_text()
    assert "4 of the launches (1 to 4) ran with the program as it was before an edit" in page


@pytest.mark.long
def test_launches_under_other_variables_or_on_other_cpus_do_not_count(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, needs: Needs
) -> None:
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    needs(cpus[1:], "two CPUs")

    def search(cpu: str) -> Done:
        return desk.search("rate.py", "--cpus", cpu, budget="3")

    assert "count" not in search(cpus[0]).err
    monkeypatch.setenv("BATCH", "64")
    told = "xtune: 3 launches of this study do not count: "
    other = search(cpus[0])
    assert f"{told}the inherited BATCH has changed" in other.err
    assert "  3 launches, " in other.out
    monkeypatch.delenv("BATCH")
    assert f"{told}the inherited BATCH has changed" in desk.xtune("resume", "--budget", "2").err
    report = desk.xtune("report", "--json")
    assert f"{told}they were started in another way" in report.err
    assert report.found["launches"] == 5
    # Only the bare command is not bound to CPUs.
    changed = "do not count: --cpus, --python, caches, the inherited BATCH or libraries"
    assert changed in search(cpus[1]).err


@pytest.mark.long
def test_a_study_looks_the_same_in_every_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.search("rate.py")
    report = desk.xtune("report")
    assert report.out.startswith("gain: 2.00 times as good")
    assert report.err == ""
    made = desk.xtune("report", "--json").found["launches"]
    with monkeypatch.context() as patch:
        patch.setenv("BATCH", "64")
        patch.setenv("OMP_NUM_THREADS", "1")
        assert desk.xtune("report") == report
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert desk.xtune("report") == report
    finally:
        os.sched_setaffinity(0, before)
    # What xlaunch itself sets makes no difference to a search, either.
    evaluated = 'eval "$("$0" -m xlaunch env)"; exec "$0" -m xtune resume --budget 2'
    done = desk.run("sh", "-c", evaluated, sys.executable)
    assert done.code == 0, done.err
    assert "do not count" not in done.err
    assert f"{made} launches of earlier searches count" in done.err


@pytest.mark.long
def test_an_edit_during_a_search_is_told(desk: Desk) -> None:
    edit = """
import os
with open("launches", "a") as made:
    made.write("x")
if os.path.getsize("launches") == 3:
    with open(__file__, "a") as program:
        program.write("# edited")
"""
    desk.write("rate.py", f"{RATE}{edit}")
    done = desk.search("rate.py", budget="6")
    assert done.err.count("warning: the program was edited during the search") == 1
    assert desk.xtune("report", "--html", "page.html").code == 0
    page = (desk.directory / "page.html").read_text()
    assert "3 of the launches (1 to 3) ran with the program as it was before an edit" in page


def test_a_damaged_launch_is_named_and_left_out(desk: Desk) -> None:
    def rows() -> list[object]:
        with contextlib.closing(sqlite3.connect(desk.directory / "s.db")) as database, database:
            database.execute(
                "UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'stage' AND trial_id IN"
                " (SELECT trial_id FROM trials WHERE study_id = 1 AND number = 1)"
            )
            return list(
                database.execute(
                    "SELECT * FROM trial_user_attributes WHERE trial_id IN"
                    " (SELECT trial_id FROM trials WHERE study_id = 1 AND number < 3)"
                )
            )

    desk.search("rate.py", "--storage", "s.db", "--study", "mine", "--quiet", budget="3")
    before = rows()
    told = (
        "xtune: warning: trial 1 of study 'mine' is damaged and left out: Expecting property name"
    )
    for words, launches in (
        (["list", "--json"], lambda found: found[0]["launches"]),
        (["report", "--json"], lambda found: found["launches"]),
        (["export"], lambda found: len(found["launches"])),
    ):
        done = desk.xtune(*words, "--storage", "s.db")
        assert done.code == 0, done.err
        assert done.err.count(told) == done.err.count("warning") == 1
        assert launches(done.found) == 2
    resumed = desk.xtune("resume", "--storage", "s.db", "--budget", "2")
    assert resumed.code == 0, resumed.err
    assert resumed.err.count(told) == 1
    assert "2 launches of earlier searches count" in resumed.err
    assert rows() == before


def test_a_study_whose_directory_is_gone_can_only_be_exported(desk: Desk) -> None:
    gone = Desk(desk.directory / "gone")
    gone.directory.mkdir()
    gone.write("rate.py", RATE)
    gone.search("rate.py", "-q", "--storage", "../s.db", budget="2")
    shutil.rmtree(gone.directory)
    for command in ("report", "resume"):
        done = desk.xtune(command, "--storage", "s.db")
        assert done.code == 2
        assert done.message.startswith(f"the study was begun in {gone.directory}, which cannot be")
    assert len(desk.xtune("export", "--storage", "s.db").found["launches"]) == 2


@pytest.mark.long
def test_an_export_replaces_exports_only(desk: Desk) -> None:
    assert desk.search("rate.py", budget="2").code == 0
    desk.write("other.json", '{"argv": []}\n')
    refused = desk.xtune("export", "-o", "other.json").message
    assert "--output 'other.json' exists and is not an export of xtune; choose" in refused
    assert (desk.directory / "other.json").read_text() == '{"argv": []}\n'
    for force in (("--force",), ()):
        assert desk.xtune("export", "-o", "other.json", *force).code == 0
    assert len(json.loads((desk.directory / "other.json").read_text())["launches"]) == 2
