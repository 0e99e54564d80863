# SPDX-License-Identifier: Apache-2.0
"""Real searches of tiny programs whose truth is known."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tuner.cli.commands import RATE, XTUNE, Desk
from tests.tuner.conftest import Needs

from xlaunch.files import runtime_directory
from xtune.launches.launch import Launch
from xtune.launches.runner import Runner
from xtune.launches.suspension import Suspended
from xtune.search.workers import host_locked

KEYS = ["verdict", "gain", "interval", "compared_by", "best", "baseline", "launches", "noise"]
KEYS += ["smallest_gain", "command"]


def test_finds_the_shortest_nap(desk: Desk) -> None:
    for nap in ("0.2", "0.8", "3.2"):  # the first that the noise of this machine does not hide
        words = ("--only-params", "--param", f"t={nap},0.01", "--budget", "24 launches")
        done = desk.xtune("--json", *words, "--study", nap, "nap.py", "{t}")
        assert done.code == 0, done.err
        found = done.found
        if found["verdict"] == "gain":
            break
    assert list(found) == KEYS
    assert found["verdict"] == "gain"
    assert found["best"] == {"t": 0.01}
    low, high = found["interval"]
    assert 1.0 < low < found["gain"] < high
    assert found["baseline"]["settings"] == {"t": float(nap)}
    assert found["baseline"]["value"] > float(nap)
    assert found["launches"] <= 24
    assert shlex.split(found["command"])[-2:] == ["nap.py", "0.01"]
    assert "xtune: to search: 2 configurations" in done.err
    assert "the search will take" in done.err


@pytest.mark.long
def test_what_won_is_launched_without_each_of_its_changes(desk: Desk) -> None:
    desk.write(
        "product.py", 'import math, sys; print(f"{math.prod(map(int, sys.argv[1:]))} items/s")\n'
    )
    # Of 216 configurations more than the search launches.
    names = ("n", "m", "k")
    values = [word for name in names for word in ("--param", f"{name}=10,14,18,22,26,30")]
    done = desk.xtune(
        "--metric", "items/s", "--only-params", *values, "--budget", "30", "--study", "product",
        "product.py", "{n}", "{m}", "{k}",
    )  # fmt: skip
    assert done.code == 0, done.err
    # It prints the product of its arguments, 30, 30 and 30 at best, without any noise.
    lines = [line.strip() for line in done.out.splitlines()]
    assert lines[0].startswith("gain: ")
    assert lines[2] == "best: n=30, m=30, k=30"
    told = [line.split(": ") for line in lines if line.startswith("without its ")]
    assert sorted(setting for setting, _ in told) == [f"without its {n}=30" for n in sorted(names)]
    assert all(shown.startswith("0.33") for _, shown in told)
    assert "xtune: the best without some of its changes" in done.err
    exported = json.loads(desk.xtune("export", "product").out)
    assert "ablation" in {launch["stage"] for launch in exported["launches"]}


@pytest.mark.long
def test_the_preset_runs_and_the_study_is_kept(desk: Desk) -> None:
    done = desk.xtune(
        "--metric", "items/s", "--param", "n=1,4", "--instances", "1", "--allocator", "glibc",
        "--omp", "none", "--thp", "never", "--budget", "30", "--study", "rates",
        "--save-preset", "mine.toml", "rate.py", "{n}",
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("gain: 4.00 times as good as the bare command")
    (_, searched) = [
        line for line in done.err.splitlines() if "to search" in line or "n=1|4" in line
    ]
    assert "allocator" not in searched
    assert "  run it: xlaunch --preset mine.toml rate.py 4" in lines
    assert 'allocator = "glibc"' in (desk.directory / "mine.toml").read_text()
    run = desk.run(sys.executable, "-m", "xlaunch", "--preset", "mine.toml", "rate.py", "4")
    assert run.code == 0, run.err
    assert "400 items/s" in run.out

    # Optuna's own tables, which its dashboard reads.
    database = sqlite3.connect(desk.directory / "state" / "xtune" / "studies.db")
    rows = database.execute("select state from trials").fetchall()
    database.close()
    assert {state for (state,) in rows} == {"COMPLETE"}

    (listed,) = desk.xtune("list", "--json").found
    assert (listed["study"], listed["verdict"]) == ("rates", "gain")
    report = desk.xtune("report", "rates", "--json").found
    assert list(report) == KEYS
    assert report["verdict"] == "gain"
    assert report["best"]["n"] == 4
    assert report["launches"] == listed["launches"] <= 30
    exported = desk.xtune("export", "rates").found
    assert len(exported["launches"]) == report["launches"]
    first = exported["launches"][0]
    assert (first["stage"], first["outcome"]) == ("baseline", "measured")
    assert len(first["series"][0]["values"]) == 8

    other = desk.xtune("--study", "rates", "--only-params", "--param", "t=0.1,0.2", "nap.py", "{t}")
    assert (other.code, other.message.partition(":")[0]) == (2, "study 'rates' cannot be continued")


@pytest.mark.long
def test_nothing_to_gain_is_a_good_answer(desk: Desk) -> None:
    # Both print the same rate, so every pair has the ratio 1.
    desk.write("same.py", "print('100 items/s')\n" * 3)
    done = desk.search("same.py", "--json", "-q")
    assert done.err == ""
    found = done.found
    assert (found["verdict"], found["gain"]) == ("no-gain", None)
    assert found["best"] == found["baseline"]["settings"] == {"n": 1}
    assert found["interval"] == pytest.approx([1.0, 1.0])
    command = shlex.split(found["command"])
    assert command[-2:] == ["same.py", "1"]
    assert "xlaunch" not in command
    assert not list(desk.directory.glob("*.toml"))


@pytest.mark.long
def test_work_of_others_on_the_same_cpus_is_told(desk: Desk) -> None:
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    try:
        done = desk.xtune("--only-params", "--param", "t=0.9,0.8", "--budget", "2", "nap.py", "{t}")
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert done.code == 0, done.err
    assert done.err.count("warning: CPU") == 1, done.err
    # Where the machine is busy anyway, it may be other processes that are named.
    assert re.search(r"busy with other work \(\d+% on average\): \S+ \(PID \d+\)", done.err)
    (told,) = [line for line in done.out.splitlines() if "warning: " in line]
    assert told.startswith("  warning: 2 launches of 2 (1, 2) shared their CPUs with other work")


@pytest.mark.long
def test_what_is_not_kept_is_told_with_the_reason(desk: Desk) -> None:
    memory = "b'much' * (1 << 25)"  # far above what a launch takes before its program runs
    desk.write("steps.py", f"for number in range(3): {memory}; print(f'step_ms: {{5 + number}}')\n")
    bounds = ("--require", "p99(step_ms)<=20ms", "--require", "rss<=1MiB")
    done = desk.search("steps.py", *bounds, metric="step_ms", budget="3")
    why = (
        r"rss<=1MiB \(measured: [0-9.]+ MiB\);"
        r" --require 'p99\(step_ms\)<=20ms': p99 takes 100 values and there are 2: run longer"
    )
    (bare,) = [line for line in done.err.splitlines() if "a launch took" in line]
    assert re.search(f"; breaks a requirement: {why}", bare), bare
    (told,) = [line for line in done.out.splitlines() if " broke requirements" in line]
    assert re.match(f"  3 of 3 launches broke requirements; the last: {why}", told), told


@pytest.mark.machine
def test_what_rates_and_second_metrics_mean_is_told_before_the_first_launch(
    desk: Desk, needs: Needs
) -> None:
    needs(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    desk.write("both.py", "print('10 items/s')\nprint('score: 3')\n")
    metrics = "--metric", "items/s", "--metric", "score"
    told = desk.xtune(*metrics, "--budget", "2", "both.py").err
    assert "runs the whole program in each of them, and their rates are added" in told
    assert "note: 'score' is only recorded: for a Pareto front, give each --metric its" in told
    assert (
        "their rates are added"
        not in desk.xtune("--metric", "latency:score", "--budget", "2", "both.py").err
    )
    goals = "--goal", "maximize", "--goal", "minimize"
    told = desk.xtune(*metrics, *goals, "--instances", "1", "--budget", "2", "both.py").err
    assert "note: " not in told


@pytest.mark.long
def test_what_hypertune_announces(desk: Desk) -> None:
    desk.write(
        "tuned.py",
        "import os\n"
        "open('launches', 'a').write('x')\n"
        "cores = len(os.sched_getaffinity(0))\n"
        "print(\"@hypertune {'name': 'latency (ms)'}\")\n"
        "print(2.0 if 'XLAUNCH_SET' not in os.environ else 126.4 / cores)\n",
    )
    desk.write(
        "conf.yaml",
        "tuning: {strategy: grid, max_trials: 3}\n"
        "hyperparams:\n"
        "  launcher:\n"
        "    hp: ['ncores_per_instance']\n"
        "    ncores_per_instance: [1]\n",
    )
    words = ["--conf-file", "conf.yaml", "tuned.py"]
    done = desk.xtune(*words)
    assert done.code == 0, done.err
    assert "@hypertune latency (ms), minimize" in done.err
    made = desk.xtune("export").found["launches"]
    # The launch that told what is measured is the first of the study.
    assert len((desk.directory / "launches").read_text()) == len(made) == 3
    assert [one["stage"] for one in made][:2] == ["baseline", "seed"]
    assert made[1]["configuration"] == {"layout": "1xall"}
    assert "to try it" not in done.out
    assert "nothing is ahead of the bare command so far" in done.out

    # Its study says what is measured, and the program does not have to.
    assert desk.xtune(*words).code == 0
    assert len((desk.directory / "launches").read_text()) == 5
    desk.write("tuned.py", (desk.directory / "tuned.py").read_text() + "# edited\n")
    assert desk.xtune(*words).code == 0
    made = desk.xtune("export").found["launches"]
    assert len((desk.directory / "launches").read_text()) == len(made)


def test_the_launch_that_tells_what_is_measured_is_made_again_after_ctrl_z(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(
        "tuned.py",
        "open('launches', 'a').write('x')\nprint(\"@hypertune {'name': 'x'}\")\nprint(1)\n",
    )
    run = Runner._run

    def press(self: Runner, *arguments: Any) -> Launch:
        launch = run(self, *arguments)
        if len((desk.directory / "launches").read_text()) == 1:
            raise Suspended
        return launch

    monkeypatch.setattr(Runner, "_run", press)
    monkeypatch.setattr("xtune.launches.suspension.suspend", lambda: None)
    searched = ("--metric", "@hypertune", "--only-params", "--param", "n=1,2", "--budget", "2")
    done = desk.xtune(*searched, "tuned.py", "{n}")
    assert "the launch that Ctrl-Z ended does not count and is made again" in done.err
    assert len((desk.directory / "launches").read_text()) == 3


@pytest.mark.long
def test_the_launch_that_tells_what_is_measured_waits_for_its_turn(desk: Desk) -> None:
    desk.write("tuned.py", "open('launches', 'a')\nprint(\"@hypertune {'name': 'x'}\")\nprint(1)\n")
    directory = Path(runtime_directory("xtune", desk.environment))
    with contextlib.ExitStack() as held:
        held.enter_context(host_locked(directory=directory))
        process = held.enter_context(
            subprocess.Popen(
                [*XTUNE, "--metric", "@hypertune", "--budget", "2", "--only-params", "--param",
                 "n=1,2", "tuned.py", "{n}"],
                cwd=desk.directory, env=desk.environment, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        assert "another search is using this host" in process.stderr.readline()
        assert not (desk.directory / "launches").exists()
        process.kill()


def test_a_metric_that_is_not_printed(desk: Desk) -> None:
    done = desk.search("rate.py", metric="images/s", may_fail=True)
    assert (done.code, done.out) == (125, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("xtune: error: no value of 'images/s' was found; the last lines")
    assert "100 items/s" in last


@pytest.mark.long
def test_a_service_that_never_ends(desk: Desk) -> None:
    desk.write("serve.py", f"{RATE.replace('range(8)', 'range(40)')}time.sleep(500)\n")
    for timeout in ("1s", "4s", "16s"):  # the shortest by which this machine has printed enough
        words = ("--timeout", timeout, "--study", timeout)
        done = desk.search("serve.py", *words, budget="2", may_fail=True)
        made = [] if done.code else desk.xtune("export", timeout).found["launches"]
        if {one["outcome"] for one in made} == {"measured"}:
            break
    assert [one["outcome"] for one in made] == ["measured", "measured"]
    assert made[0]["value"] == 100


def test_a_program_that_fails_by_itself(desk: Desk) -> None:
    desk.write("broken.py", "raise SystemExit('no model here')\n")
    done = desk.xtune("--only-params", "--param", "n=1,2", "broken.py", "{n}")
    assert (done.code, done.out) == (125, "")
    last = done.err.splitlines()[-1]
    assert "cannot be measured as it is" in last
    assert "no model here" in last
    done = desk.xtune("--prepare", "ls /none", "--only-params", "--param", "n=1,2", "nap.py", "{n}")
    assert "it was not started (--prepare 'ls /none' failed with exit code 2: ls:" in done.err


@pytest.mark.long
def test_the_front_of_two_goals(desk: Desk) -> None:
    # Rate and latency both rise with n, but 3 is worse than 2 in both.
    desk.write(
        "both.py",
        "import sys\n"
        "rate, ms = {'1': (100, 5), '2': (200, 9), '3': (150, 10)}[sys.argv[1]]\n"
        "for turn in range(3): print(rate, 'items/s', flush=True); print('latency', ms, 'ms')\n",
    )
    done = desk.search("both.py", "--metric", "latency", n="1,2,3", budget="8")
    lines = done.out.splitlines()
    head = next(at for at, line in enumerate(lines) if "front of items/s and latency" in line)
    front = [line.strip().partition(":")[0] for line in lines[head + 1 : head + 4]]
    assert front[0] == "n=2"
    assert {"the bare command", "xlaunch's defaults"} >= {front[1]}
    assert not any(line.startswith("    n=3") for line in lines)


SLOW_SERVICE = """\
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(float(sys.argv[2]))
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

ASK = """\
import http.client, sys, time
began, connection = time.monotonic(), http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for _ in range(6):
    connection.request("GET", "/")
    connection.getresponse().read()
print(f"Requests/sec: {6 / (time.monotonic() - began):.2f}")
"""


@pytest.mark.long
def test_a_service_is_tuned_by_what_a_generator_prints(desk: Desk) -> None:
    desk.write("slow.py", SLOW_SERVICE)
    desk.write("ask.py", ASK)
    measure = f"{shlex.quote(sys.executable)} ask.py {{port}}"
    words = ["--ready", "{port}", "--measure", measure, "--metric", "requests/sec"]
    done = desk.xtune(
        "--json", *words, "--only-params", "--param", "t=0.1,0.01", "--budget", "30",
        "--study", "service", "slow.py", "{port}", "{t}",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.found
    assert (found["verdict"], found["best"]) == ("gain", {"t": 0.01})
    assert 5.0 < found["baseline"]["value"] < 10.0
    assert shlex.split(found["command"])[-3:] == ["slow.py", "{8000+index}", "0.01"]
    assert "substitute = true" in (desk.directory / "best.toml").read_text()
    assert shlex.split(found["baseline"]["command"])[-2:] == ["8000", "0.1"]
    assert "xtune: note: the load generator has cores of its own only where" in done.err
    # Another load is another study; the same one goes on.
    other = [word.replace("ask.py", "./ask.py") for word in words]
    mixed = desk.xtune(
        *other, "--only-params", "--param", "t=0.1,0.01", "--study", "service", "slow.py", "{port}", "{t}"
    )  # fmt: skip
    assert (mixed.code, mixed.message.partition(":")[0]) == (
        2,
        "study 'service' cannot be continued",
    )
    assert desk.xtune("report", "service", "--json").found["gain"] == found["gain"]
