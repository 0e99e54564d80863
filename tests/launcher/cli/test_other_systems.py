# SPDX-License-Identifier: Apache-2.0
"""Where there is no Linux, instances run unbound with thread counts, and the launcher says so."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.launching import is_alive, wait_until

from launcher.cli.commands import (
    AWKWARD,
    SHOW,
    Done,
    Word,
    allowed_cpus,
    arguments_of,
    clean_environment,
    program,
    run,
)
from xlaunch.supervision.syscalls import memory_policy_calls

OTHER = Path(__file__).with_name("other_system.py")
TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
SEVERAL = (*TWO, "-q", "--no-tag")

Launch = Callable[..., Done]


@pytest.fixture(params=["darwin", "win32"])
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def command(system: str) -> tuple[str, ...]:
    return (sys.executable, str(OTHER), system)


@pytest.fixture
def launch(command: tuple[str, ...]) -> Launch:
    def launch_there(*words: Word, **options: object) -> Done:
        return run((*command, *words), **options)

    return launch_there


def test_other_system_is_one(command: tuple[str, ...], system: str):
    """The test's own ground: what Linux alone has is gone there."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import other_system\n"
        "other_system.become(sys.argv[2])\n"
        "import os, signal\n"
        "print(sys.platform, hasattr(os, 'sched_getaffinity'), hasattr(os, 'fork'))"
    )
    out = run((sys.executable, "-c", code, OTHER.parent, system)).out.decode()
    assert out == f"{system} False {system == 'darwin'}\n"


def test_several_instances_run_unbound_with_their_threads(launch: Launch):
    for index, told in enumerate(launch(*SEVERAL, SHOW, "a b").shown()):
        assert told["cpus"] == allowed_cpus()
        assert told["env"]["OMP_NUM_THREADS"] == "1"
        assert told["env"]["XLAUNCH_INSTANCE_INDEX"] == str(index)
        assert told["stdin"] == "/dev/null"
        assert arguments_of(told) == [b"a b"]


def test_one_instance(launch: Launch):
    told = launch("-q", "--", SHOW, *AWKWARD, input=b"typed").only()
    assert arguments_of(told) == AWKWARD
    assert told["env"]["OMP_NUM_THREADS"] == str(os.cpu_count())
    assert told["stdin_text"] == "typed"


def test_launcher_says_that_nothing_is_bound(launch: Launch, system: str):
    for words in (("true",), (*TWO, "true"), ("--cpus", "0", "true")):
        done = launch(*words)
        assert done.code == 0
        said = [line for line in done.err.splitlines() if "not bound" in line]
        assert len(said) == 1, done.err
        assert system in said[0]
    assert "not bound" not in launch("-q", "true").err


def test_exit_codes(launch: Launch, tmp_path: Path):
    plain = program(tmp_path / "plain", "#!/no/such/interpreter\n")
    for words, code in (
        (("true",), 0),
        (("sh", "-c", "exit 9"), 9),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("sh", "-c", "ulimit -c 0; kill -SEGV $$"), 139),
        (("--timeout", "200ms", "sleep", "600"), 124),
        ((plain,), 127),
        (("no-such-program",), 127),
        ((tmp_path,), 126),
        (("--ncores", "0", "true"), 2),
        (("--nocores", "1", "true"), 2),
    ):
        done = launch(*SEVERAL, *words)
        assert done.code == code, (words, done)
        assert "Traceback" not in done.err


def test_script_without_shebang(launch: Launch, tmp_path: Path, system: str):
    script = program(tmp_path / "script", "echo out\n")
    assert launch("-q", script) == (0, b"out\n", "")


def test_first_failure_ends_the_others_and_is_the_exit_code(launch: Launch):
    line = "test $XLAUNCH_INSTANCE_INDEX = 1 && exit 5; exec sleep 600"
    assert launch(*SEVERAL, "sh", "-c", line).code == 5


def test_failure_that_ends_nobody(launch: Launch, tmp_path: Path):
    line = (
        f"test $XLAUNCH_INSTANCE_INDEX = 1 && {{ touch {tmp_path}/failed; exit 5; }};"
        f"until test -e {tmp_path}/failed; do sleep 0.05; done; sleep 0.2; touch {tmp_path}/ended"
    )
    assert launch(*SEVERAL, "--on-failure", "continue", "sh", "-c", line).code == 5
    assert (tmp_path / "ended").exists()


def test_kill_after_grace(launch: Launch):
    line = "trap '' TERM; while :; do sleep 0.05; done"
    options = (*SEVERAL, "--timeout", "500ms", "--grace", "200ms")
    assert launch(*options, "sh", "-c", line).code == 124


def test_output_is_tagged_and_whole(launch: Launch):
    done = launch(*TWO, "-q", "sh", "-c", "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf end")  # fmt: skip
    lines = done.out.decode().splitlines()
    for index in "01":
        mine = [line for line in lines if line.startswith(f"[{index}] ")]
        assert mine == [f"[{index}] {text}" for text in ("out 1", "out 2", "out 3", "end")]
        assert done.err.count(f"[{index}] err") == 3


def test_logs_and_report(launch: Launch, tmp_path: Path):
    outputs = ("--log-dir", tmp_path / "logs", "--report", tmp_path / "report.json")
    done = launch(*TWO, "-q", *outputs, "sh", "-c", "echo out; exit $XLAUNCH_INSTANCE_INDEX")
    assert done == (1, b"", "")
    assert (tmp_path / "logs" / "instance-0.out").read_text() == "out\n"
    values = json.loads((tmp_path / "report.json").read_text())
    assert values["exit_code"] == 1
    assert [one["exit_code"] for one in values["instances"]] == [0, 1]
    assert [one["cpus_asked"] for one in values["instances"]] == [[], []]


def test_table_at_the_end(launch: Launch):
    err = launch(*TWO, "true").err
    assert "2 instances ended well" in err
    assert "CPUs observed" in err


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_to_the_launcher_ends_the_instances(
    command: tuple[str, ...], tmp_path: Path, name: str, code: int
):
    line = f"echo $$ > {tmp_path}/$XLAUNCH_INSTANCE_INDEX; exec sleep 600"
    with subprocess.Popen(
        (*command, *SEVERAL, "sh", "-c", line),
        stderr=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    ) as launcher:
        files = [tmp_path / "0", tmp_path / "1"]
        wait_until(
            lambda: all(f.exists() and f.read_text().endswith("\n") for f in files), "two instances"
        )
        pids = [int(file.read_text()) for file in files]
        launcher.send_signal(signal.Signals[name])
        err = launcher.stderr.read().decode()
        assert launcher.wait() == code
    assert not any(is_alive(pid) for pid in pids)
    assert "Traceback" not in err


def test_plan(launch: Launch):
    done = launch("plan", "--explain", *TWO, "echo", "a b")
    assert (done.code, done.err) == (0, "")
    assert "not bound" in done.out.decode() or "unbound" in done.out.decode()
    assert "program: echo 'a b'" in done.out.decode()
    values = json.loads(launch("plan", "--json", *TWO).out)
    assert values["bound"] is False


def test_topology(launch: Launch):
    done = launch("topology")
    assert done.code == 0
    assert "not bound" in done.err
    assert json.loads(launch("topology", "--json").out)["online_cpus"] == list(
        range(os.cpu_count())
    )
    launch("topology", "--capture", "x.tar.xz").refused(2)


def test_machine_of_another_kind_is_planned_for(launch: Launch):
    done = launch("plan", "--synthetic", "package:2 node:2 core:4 pu:2", "--instances", "4")
    assert (done.code, done.err) == (0, "")
    assert "instance 3: " in done.out.decode()


def test_library_launches_there_too(tmp_path: Path, system: str):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import other_system\n"
        "other_system.become(sys.argv[2])\n"
        "import xlaunch\n"
        "machine = xlaunch.read_machine()\n"
        "request = xlaunch.Request(program=('sh', '-c', 'exit 6'), ncores=1)\n"
        "request = request._replace(instances=2, oversubscribe=True)\n"
        "report = xlaunch.launch(xlaunch.plan(request, machine))\n"
        "print(report.exit_code, len(report.instances))"
    )
    done = run((sys.executable, "-c", code, OTHER.parent, system))
    assert (done.code, done.out) == (0, b"6 2\n"), done.err


@pytest.mark.parametrize(
    ("machine", "bits", "known"),
    [
        ("x86_64", 64, True),
        ("aarch64", 64, True),
        ("i686", 32, True),
        ("armv7l", 32, True),
        ("x86_64", 32, False),
        ("aarch64", 32, False),
        ("alpha", 64, False),
    ],
)
def test_memory_policy_is_refused_where_its_system_calls_have_other_numbers(
    machine: str, bits: int, known: bool
):
    if known:
        assert all(number > 0 for number in memory_policy_calls(machine, bits))
        return
    with pytest.raises(OSError, match=f"{machine}") as error:
        memory_policy_calls(machine, bits)
    assert error.value.errno == errno.ENOSYS
    assert ("use a 64-bit one" in str(error.value)) == (bits == 32)
