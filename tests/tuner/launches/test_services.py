# SPDX-License-Identifier: Apache-2.0
"""Real services under a real load generator: what is measured, and that nothing is left running."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.golden import Golden
from tests.launcher.launching import is_alive, wait_until
from tests.tuner.launches.conftest import MakeRunner

from xlaunch.machine import read_machine
from xlaunch.planning import Request
from xtune.launches import services
from xtune.launches.highest_load import LoadRange
from xtune.launches.launch import Goal, Launch, Limits, Objective, Outcome
from xtune.launches.requirements import parse_requirement
from xtune.launches.services import Service, cores_beside, cores_kept_free, free_ports, with_ports
from xtune.space.parameters import BARE, Configuration, Parameter, Target

DEFAULT, TWO = Configuration({}), Configuration({"layout": "2x1"})

SERVER = """
import http.server, json, os, signal, subprocess, sys, time
name, port = sys.argv[1:3]
if name == "broken":
    print("no such model", file=sys.stderr)
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/die": os._exit(7)
        self.send_response(500 if self.path == "/bad" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
with open(f"{name}-{port}.json", "w") as file:
    json.dump(sorted(os.sched_getaffinity(0)), file)
if name == "parent":
    subprocess.Popen(["sleep", "1000.25"], start_new_session=True)
if name == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("now serving", port, flush=True)
server.serve_forever()
"""

GENERATOR = """
import http.client, os, sys, time
port, path = int(sys.argv[1]), sys.argv[2]
connection, ends, count = http.client.HTTPConnection("127.0.0.1", port), time.monotonic() + 0.2, 0
while time.monotonic() < ends:
    connection.request("GET", path)
    status = connection.getresponse().read()
    count += 1
print(f"  {count} requests in 0.20s, 1.00KB read")
print(f"Requests/sec: {count / 0.2}")
print("  99%  1.50ms")
print("generator cpus:", len(os.sched_getaffinity(0)))
if path == "/bad": print("  Non-2xx or 3xx responses:", count)
"""

Measure = Callable[..., Launch]


@pytest.fixture
def measure(make_runner: MakeRunner, tmp_path: Path) -> Measure:
    """Measures a service of that name once."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "generate.py").write_text(GENERATOR)

    def once(
        name: str = "plain",
        configuration: Configuration = DEFAULT,
        *,
        ready: str = "http://127.0.0.1:{port}/",
        path: str = "/",
        command: str | None = None,
        ready_timeout_s: float = 60.0,
        limit_s: float | None = None,
        warmup_s: float = 0.0,
        told: Callable[[str], None] = print,
        asked: dict[str, object] | None = None,
        **options: object,
    ) -> Launch:
        program = (sys.executable, "server.py", name, "{port}")
        generate = command or f"{sys.executable} generate.py {{port}} {path}"
        base = with_ports(Request.of(*program))
        runner = make_runner(
            "",
            "requests/sec",
            program=base.program.words,
            asked={"substitute": True, **(asked or {})},
            service=Service(ready, generate, ready_timeout_s, warmup_s),
            **options,
        )
        runner.load_tried = told
        return runner.measure(configuration, Limits(limit_s=limit_s))

    yield once
    running = [one.info for one in psutil.process_iter(["cmdline", "cwd"])]
    here = [one["cmdline"] for one in running if one["cwd"] == str(tmp_path)]
    left = [words for words in here if is_ours(words)]
    assert left == []


def is_ours(command: list[str] | None) -> bool:
    words = command or []
    return "1000.25" in words or any(word in ("server.py", "generate.py") for word in words)


@pytest.mark.parametrize(
    ("ready", "configuration"),
    [
        ("http://127.0.0.1:{port}/", BARE),
        ("{port}", DEFAULT),
        ("now serving", DEFAULT),
    ],
)
def test_a_service_is_measured_when_it_is_ready(
    measure: Measure, ready: str, configuration: Configuration
) -> None:
    launch = measure(
        "plain", configuration, ready=ready, requirements=["p99 <= 20 ms", "requests/sec >= 1"]
    )
    assert launch.outcome is Outcome.MEASURED, launch
    assert launch.value >= 5
    seen = dict(launch.requirements)
    assert seen == {"p99 <= 20 ms": 0.0015, "requests/sec >= 1": launch.value}
    assert ("latency p99", 0.0015) not in launch.metrics  # one value has no spread
    assert launch.secondary.wall_s > 0.2


@pytest.mark.usefixtures("two_cpus")
def test_each_instance_has_a_port_and_a_generator_and_its_share_of_the_load(
    measure: Measure, tmp_path: Path
) -> None:
    show = "import sys; print('Requests/sec:', 10 + int(sys.argv[1]))"
    command = f'{sys.executable} -c "{show}" {{64/count}} {{port}}'
    launch = measure("plain", TWO, command=command)
    assert (launch.outcome, launch.value) == (Outcome.MEASURED, 2 * (10 + 32)), launch
    ports = [int(path.stem.partition("-")[2]) for path in tmp_path.glob("plain-*.json")]
    assert len(set(ports)) == 2


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("configuration", [BARE, Configuration({"layout": "1x1"})])
def test_the_generator_runs_beside_the_service(
    measure: Measure, tmp_path: Path, configuration: Configuration
) -> None:
    machine = read_machine()
    first, *others = machine.limits.allowed_cpus
    free = cores_beside(machine, (first,))
    launch = measure("plain", configuration, asked={"cpus": (first,)}, metrics=["generator cpus"])
    assert dict(launch.metrics)["generator cpus"] == (len(free) or len(others) + 1)
    (used,) = [path.read_text() for path in tmp_path.glob("plain-*.json")]
    if free:
        assert used == f"[{first}]"
    assert cores_kept_free(Request.of("x", cpus=(first,)), machine) == free
    assert cores_kept_free(Request.of("x"), machine) == ()


def test_the_highest_load_within_a_bound_is_measured(measure: Measure) -> None:
    told: list[str] = []
    launch = measure(
        command="printf 'Requests/sec: %s\\n  99%% %s.00ms\\n' {c} {c}",
        requirements=["p99<=40ms"],
        loads=LoadRange("c", 1, 512),
        told=told.append,
    )
    level = dict(launch.metrics)["load c"]
    assert launch.value == level
    assert 38 <= level <= 40
    assert told[0] == "c=23: 23 requests/sec, p99 23 ms: holds"


def test_a_warm_up_under_load_is_not_measured(measure: Measure, tmp_path: Path) -> None:
    count = "echo x >> runs; echo Requests/sec: $(wc -l < runs); sleep 0.02"
    launch = measure(command=f"sh -c '{count}'", warmup_s=1)
    made = (tmp_path / "runs").read_text().count("x")
    assert launch.value == made > 1


@pytest.mark.parametrize("configuration", [BARE, Configuration({"n": 7})])
def test_parameters_may_stand_in_every_command(
    measure: Measure, tmp_path: Path, configuration: Configuration
) -> None:
    launch = measure(
        "plain",
        configuration,
        command="echo Requests/sec: {n}",
        parameters=[Parameter("n", (3, 7), 3, Target.PROGRAM)],
        prepare="touch before-{n}",
        cleanup="touch after-{n}",
    )
    n = 3 if configuration == BARE else configuration["n"]
    assert launch.value == n
    assert (tmp_path / f"before-{n}").exists()
    assert (tmp_path / f"after-{n}").exists()


FAILS = """
import sys
print('Requests/sec: 50')
print('Status code distribution:', '  [200] 95 responses', '  [503] 3 responses', sep=chr(10))
print('Error distribution:', '  [2] Get: EOF', sep=chr(10))
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("requirements", "outcome", "feasible"),
    [
        pytest.param((), Outcome.CRASHED, False, marks=pytest.mark.long),
        (("errors<=5%",), Outcome.CRASHED, False),  # 3 % were rejected
        (("errors<=5%", "rejected<=5%"), Outcome.MEASURED, True),
        pytest.param(
            ("errors<=1%", "rejected<=5%"), Outcome.MEASURED, False, marks=pytest.mark.long
        ),
    ],
)
def test_failed_requests_are_allowed_by_requirements(
    measure: Measure, tmp_path: Path, requirements, outcome: Outcome, feasible: bool
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    launch = measure(command=f"{sys.executable} fails.py", requirements=requirements)
    assert launch.outcome is outcome
    if outcome is Outcome.CRASHED:
        assert launch.notes[0].startswith(
            "2 of 100 requests failed, 3 were rejected (429, 503); allow"
        )
    else:
        assert dict(launch.requirements) == {requirements[0]: 2.0, "rejected<=5%": 3.0}
        bounds = tuple(map(parse_requirement, requirements))
        assert Objective("requests/sec", Goal.MAXIMIZE, bounds).is_feasible(launch) == feasible


def test_a_percentile_that_the_generator_does_not_print_is_named(
    golden: Golden, measure: Measure
) -> None:
    launch = measure(requirements=["p95<=5ms"])
    assert launch.requirements == (("p95<=5ms", None),)
    golden(launch.notes)


def test_an_unknown_generator_s_errors_are_said_to_be_unseen(measure: Measure) -> None:
    launch = measure(command="echo Requests/sec: 12")
    assert launch.outcome is Outcome.MEASURED
    assert any("failed requests are not seen" in note and "wrk" in note for note in launch.notes)


@pytest.mark.usefixtures("two_cpus")
def test_a_generator_that_uses_up_its_cpus_measures_nothing(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = read_machine()
    first = machine.limits.allowed_cpus[0]
    beside = len(cores_beside(machine, (first,)))
    spin = "import time\nwhile time.process_time() < 1: pass\nprint('Requests/sec: 12')"
    Path("spin.py").write_text(spin)
    # Other work may take most of a CPU, and one process does not keep all of many busy.
    monkeypatch.setattr(services, "MAX_BUSY", 0.2 / max(1, beside))
    launch = measure(command=f"{sys.executable} spin.py", asked={"cpus": (first,)})
    assert launch.outcome is (Outcome.SATURATED if beside else Outcome.MEASURED)
    assert not beside or "% of their CPUs" in launch.notes[0]


# What goes wrong is one clear line, and nothing is left running (see the fixture).


def test_a_preparation_that_hangs_is_killed_with_what_it_started(
    golden: Golden, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    text = f"sh -c 'sleep 300 & echo $! $$ > {note}; wait'"
    told = services.run_command(text, "--prepare", 2.0)
    golden(told)
    pids = [int(pid) for pid in note.read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), "its processes end")


@pytest.mark.parametrize(
    ("options", "outcome", "said"),
    [
        (
            {"ready": "no such line", "ready_timeout_s": 0.5},
            Outcome.TIMED_OUT,
            "the service was not ready (no such line) after 0.5 s: see --ready-timeout",
        ),
        (
            {"name": "broken"},
            Outcome.CRASHED,
            "the service ended before it was ready: instance 0 failed with exit code 3",
        ),
        (
            {"path": "/die"},
            Outcome.CRASHED,
            "the service ended while it was measured: instance 0 failed with exit code 7",
        ),
        (
            {"path": "/bad"},
            Outcome.CRASHED,
            " requests failed; allow a share of them with --require 'errors<=1%' or 'rejected<=1%'",
        ),
        (
            {"command": "sleep 1000.25", "limit_s": 1.0},
            Outcome.TIMED_OUT,
            "the generator took longer than the time limit",
        ),
        (
            {"command": "echo Requests per second: 12"},
            Outcome.NO_METRIC,
            "the generator printed no 'requests/sec'; its last lines: Requests per second: 12",
        ),
        (
            {"command": "ls /no/such/file"},
            Outcome.NO_METRIC,
            "the generator failed with exit code 2: ls: ",
        ),
    ],
    ids=["not ready", "broken", "dies", "bad requests", "no end", "no metric", "no generator"],
)
def test_what_goes_wrong_is_named(
    measure: Measure,
    options: dict[str, Any],
    outcome: Outcome,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "the generator failed" in said:  # the service does not end
        monkeypatch.setattr(services, "ANSWER_S", 0.1)
    elif "while it was measured" in said:  # on a busy machine its end takes long
        monkeypatch.setattr(services, "ANSWER_S", 20.0)
    launch = measure(**options)
    while "limit_s" in options and "generator" not in launch.notes[0]:  # it was not ready by then
        options = {**options, "limit_s": 2.0 * options["limit_s"]}
        launch = measure(**options)
    assert (launch.outcome, launch.value) == (outcome, None), launch
    note, *others = launch.notes
    if said.startswith(" requests failed"):
        count, _, note = note.partition(" requests failed")
        failed, _, made = count.partition(" of ")
        assert failed == made
        said = said.removeprefix(" requests failed")
    assert note == said or (said.endswith(": ") and note.startswith(said))
    assert "\n" not in note
    assert launch.stderr_tail == ("no such model" if "name" in options else "")
    if "not ready" in said:
        assert (launch.exit_code, others) == (None, [])


def test_a_service_with_children_that_does_not_end_when_asked(measure: Measure) -> None:
    for name in ("parent", "stubborn"):
        assert measure(name, asked={"grace_s": 0.1}).outcome is Outcome.MEASURED


def test_commands_before_and_after_each_launch(make_runner: MakeRunner, tmp_path: Path) -> None:
    log = tmp_path / "log"
    note = f"{sys.executable} -c \"import sys; open('log', 'a').write(sys.argv[1])\""
    code = "open('log', 'a').write('2'); tell('1 x/s'); tell('2 x/s')"
    runner = make_runner(code, prepare=f"{note} 1", cleanup=f"{note} 3")
    assert runner.measure(DEFAULT).outcome is Outcome.MEASURED
    assert runner.measure(BARE).outcome is Outcome.MEASURED
    assert log.read_text() == "123123"
    broken = make_runner(code, prepare="ls /no/such/file", cleanup=f"{note} 3").measure(DEFAULT)
    assert broken.outcome is Outcome.NOT_STARTED
    assert broken.notes[0].startswith("--prepare 'ls /no/such/file' failed with exit code 2: ls: ")
    assert log.read_text() == "1231233"


def test_free_ports_are_free() -> None:
    first = free_ports(4)
    assert 20_000 <= first < 32_000
    for port in range(first, first + 4):
        with socket.socket() as place:
            place.bind(("", port))
