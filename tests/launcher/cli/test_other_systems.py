# SPDX-License-Identifier: Apache-2.0
"""Where there is no Linux, one program runs with thread counts only, and the launcher says so."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    AWKWARD,
    SHOW,
    Done,
    Word,
    arguments_of,
    clean_environment,
    program,
    run,
)
from tests.tiers import quick_first

from xlaunch.supervision.syscalls import memory_policy_calls

OTHER = Path(__file__).with_name("other_system.py")
TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
SEVERAL = (*TWO, "-q", "--no-tag")

Launch = Callable[..., Done]


@pytest.fixture(params=quick_first(["win32", "darwin"]))  # win32 lacks all that darwin lacks
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def launch(system: str, tmp_path: Path) -> Launch:
    # Without fcntl it locks no temporary directory, which launches beside it would take for abandoned.
    environment = clean_environment(TMPDIR=str(tmp_path))

    def launch_there(*words: Word, **options: object) -> Done:
        return run((sys.executable, OTHER, system, *words), env=environment, **options)

    return launch_there


def run_there(system: str, code: str, *words: str) -> str:
    """What Python code prints there."""
    begin = "import sys; sys.path.insert(0, sys.argv[1]); from other_system import become; become(sys.argv[2])"
    return run(
        (sys.executable, "-c", f"{begin}\n{code}", OTHER.parent, system, *words)
    ).out.decode()


def test_other_system_is_one(system: str):
    """The test's own ground: what Linux alone has is gone there."""
    code = "import os; print(sys.platform, hasattr(os, 'sched_getaffinity'), hasattr(os, 'fork'))"
    assert run_there(system, code) == f"{system} False {system == 'darwin'}\n"


def test_one_instance(launch: Launch):
    told = launch("-q", "--", SHOW, *AWKWARD, input=b"typed").only()
    assert arguments_of(told) == AWKWARD
    assert told["env"]["OMP_NUM_THREADS"] == str(os.cpu_count())
    assert told["stdin_text"] == "typed"


def test_launcher_says_what_does_not_apply(golden: Golden, launch: Launch, system: str):
    done = launch("--report", "report.json", "true")
    assert done.code == 0
    (line,) = done.err.splitlines()
    golden(line)
    assert launch("-q", "true").err == ""


def test_several_instances_are_refused(golden: Golden, launch: Launch, system: str):
    golden(launch(*TWO, "true").refused(2))


def test_exit_codes(launch: Launch, tmp_path: Path):
    plain = program(tmp_path / "plain", "#!/no/such/interpreter\n")
    for words, code in (
        (("sh", "-c", "exit 9"), 9),
        ((plain,), 127),
        (("no-such-program",), 127),
        ((tmp_path,), 126),
        (("--ncores", "0", "true"), 2),
    ):
        done = launch("-q", *words)
        assert done.code == code, (words, done)
        assert "Traceback" not in done.err


@pytest.mark.parametrize("entry", ["launch", "start"])
def test_library_needs_linux(entry: str, system: str):
    code = (
        "import xlaunch\n"
        "plan = xlaunch.plan(xlaunch.LayoutRequest(), xlaunch.read_machine())\n"
        "try: getattr(xlaunch, sys.argv[3])(plan, xlaunch.ProgramRequest(('true',)))\n"
        "except xlaunch.XLaunchError as error: print(error)"
    )
    told = run_there(system, code, entry)
    assert told.startswith(f"xlaunch.{entry} needs Linux, this is {system}")


@pytest.mark.parametrize("system", ["darwin"])
def test_script_without_shebang(launch: Launch, tmp_path: Path):
    script = program(tmp_path / "script", "echo out\n")
    assert launch("-q", script) == (0, b"out\n", "")


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


def test_doctor_checks_what_it_can(launch: Launch):
    done = launch("doctor", "-v")
    assert done.code in (0, 1)
    assert done.err == ""
    assert "not checked here:" in done.out.decode()


def test_machine_of_another_kind_is_planned_for(launch: Launch):
    done = launch("plan", "--synthetic", "package:2 node:2 core:4 pu:2", "--instances", "4")
    assert (done.code, done.err) == (0, "")
    assert "\n       3  " in done.out.decode()


@pytest.mark.parametrize(
    ("machine", "bits"), [("x86_64", 64), ("aarch64", 64), ("i686", 32), ("armv7l", 32)]
)
def test_memory_policy_where_its_system_calls_have_known_numbers(machine: str, bits: int):
    assert all(number > 0 for number in memory_policy_calls(machine, bits))


@pytest.mark.parametrize(("machine", "bits"), [("x86_64", 32), ("aarch64", 32), ("alpha", 64)])
def test_memory_policy_is_refused_where_they_have_others(machine: str, bits: int):
    with pytest.raises(OSError, match=machine) as error:
        memory_policy_calls(machine, bits)
    assert error.value.errno == errno.ENOSYS
    assert ("use a 64-bit one" in str(error.value)) == (bits == 32)
