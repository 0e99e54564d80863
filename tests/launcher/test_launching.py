# SPDX-License-Identifier: Apache-2.0
"""`xlaunch.launch` and `xlaunch.start` from a program: reports, values while it runs, early ends."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.launching import PATIENCE_S, children_of, is_alive, wait_until

import xlaunch
from xlaunch.metrics.live import (
    LINES_AFTER_MARK,
    LiveLine,
    LiveReader,
    LiveStart,
    LiveValue,
    LiveWriter,
)  # fmt: skip

BEGIN = """
import os, signal, sys, time
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
def wait_for(word):
    while not os.path.exists(word): time.sleep(0.005)
"""


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def work(
    code: str, *metrics: str, count: int = 1, **other: object
) -> tuple[xlaunch.Plan, xlaunch.ProgramRequest, xlaunch.RunRequest]:
    request = xlaunch.Request.of(
        sys.executable,
        "-c",
        BEGIN + code,
        instances=count,
        ncores=1,
        oversubscribe=True,
        metric=metrics,
        **other,  # type: ignore[arg-type]
    )
    made = xlaunch.plan(request.layout, xlaunch.read_machine())
    return made, request.program, request.run


def start(code: str, *metrics: str, mark: str | None = None, **other: object):  # type: ignore[no-untyped-def]
    quiet = subprocess.DEVNULL
    return xlaunch.start(*work(code, *metrics, **other), stdout=quiet, stderr=quiet, mark=mark)  # type: ignore[arg-type]


# launch


def test_report_has_every_value_with_its_time(capfd: pytest.CaptureFixture[str]):
    code = "for step in range(3): print(f'{10 * index + step} x/s  loss {step / 2}', flush=True)"
    report = xlaunch.launch(*work(code, "x/s", "loss", count=2))
    assert report.exit_code == 0
    found = {(one.metric, one.instance): one for one in report.series}
    assert {key: list(one.values) for key, one in found.items()} == {
        ("x/s", 0): [0, 1, 2],
        ("x/s", 1): [10, 11, 12],
        ("loss", 0): [0, 0.5, 1],
        ("loss", 1): [0, 0.5, 1],
    }
    for one in report.series:
        assert one.kept_one_in == 1
        assert list(one.times_s) == sorted(one.times_s)
        assert 0 < one.times_s[0] <= report.wall_s
    assert report.lines_seen == ()
    assert "12 x/s" in capfd.readouterr().out  # passed on, as the command line does


def test_lines_with_numbers_are_told_when_a_metric_was_never_seen():
    report = xlaunch.launch(*work("print('epoch 1 of 2'); print('step 3')", "x/s"))
    assert report.lines_seen == ("epoch 1 of 2", "step 3")


def test_page_faults_are_counted():
    code = "block = bytearray(64 << 20); block[::4096] = b'1' * len(block[::4096])"
    (instance,) = xlaunch.launch(*work(code)).instances
    assert instance.minor_faults is not None
    assert instance.minor_faults > 32  # a huge page each, where the system gives such
    assert instance.major_faults is not None
    assert instance.started


INTERRUPTED = """
try: xlaunch.launch(plan, request.program, request.run)
except KeyboardInterrupt: sys.exit(9)
"""


def caller_of(program: str, then: str, options: str = "") -> str:
    """A program that plans `program` and does `then` with `plan` and `request`."""
    return f"""
import sys, xlaunch
request = xlaunch.Request.of(sys.executable, "-c", {program!r}, ncores=1{options})
plan = xlaunch.plan(request.layout, xlaunch.read_machine())
{then}
"""


@contextlib.contextmanager
def calling(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that launches, in a process group of its own."""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL) as caller:
        try:
            yield caller
        finally:
            caller.kill()


@pytest.mark.parametrize("whole_group", [False, True])
def test_interrupted_caller_ends_the_run(tmp_path: Path, whole_group: bool):
    """With `kill -INT` to the caller alone, or to all of its group, as a terminal does."""
    program = """
import signal, sys, time
def finish(*_):
    time.sleep(0.3)  # killed in between, it would not get to the next line
    open("told", "w")
    sys.exit(0)
signal.signal(signal.SIGINT, finish)
open("ready", "w")
while True: time.sleep(0.05)
"""
    with calling(caller_of(program, INTERRUPTED)) as caller:
        wait_until((tmp_path / "ready").exists, "the program")
        if whole_group:
            os.killpg(caller.pid, signal.SIGINT)
        else:
            caller.send_signal(signal.SIGINT)
        assert caller.wait(PATIENCE_S) == 9
    assert (tmp_path / "told").exists()


@pytest.mark.parametrize("call", ["launch", "start"])
def test_killed_caller_ends_the_run_without_a_traceback(tmp_path: Path, call: str):
    program = "import time; open('ready', 'w'); time.sleep(600)"
    code = caller_of(program, f"xlaunch.{call}(plan, request.program).report()")
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as caller:
        wait_until((tmp_path / "ready").exists, "the program")
        caller.kill()
        _, err = caller.communicate(timeout=PATIENCE_S)  # ends with the run's last process
    assert b"Traceback" not in err
    assert b"SIGTERM sent to 1 instance" in err


def test_caller_interrupted_twice_kills(tmp_path: Path):
    program = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: open("told", "w"))
open("ready", "w")
while True: time.sleep(600)
"""
    with calling(caller_of(program, INTERRUPTED, ", grace_s=3600")) as caller:
        for word in ("ready", "told"):
            wait_until((tmp_path / word).exists, f"the program to be {word}")
            caller.send_signal(signal.SIGINT)
        assert caller.wait(PATIENCE_S) == 9


def test_an_interpreter_that_is_missing_is_no_failure_of_the_program(tmp_path: Path):
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    request = xlaunch.Request.of(str(script), supervise=True)
    plan = xlaunch.plan(request.layout, xlaunch.read_machine())
    report = xlaunch.launch(plan, request.program, request.run)
    (instance,) = report.instances
    assert (report.exit_code, instance.exit_code, instance.started) == (127, 127, False)


# start


def test_values_are_seen_while_it_runs():
    code = """
print("1.5 x/s", flush=True)
wait_for("go")
print("2.5 x/s")
"""
    seen: list[object] = []
    with start(code, "x/s") as run:

        def values() -> list[float]:
            seen.extend(run.live())
            return [one.value for one in seen if isinstance(one, LiveValue)]

        wait_until(lambda: values() == [1.5], "the first value")
        assert not run.wait(0)
        Path("go").touch()
        report = run.report()
        assert values() == [1.5, 2.5]
    first, *_ = seen
    assert isinstance(first, LiveStart)
    times = [one.at_s - first.at_s for one in seen if isinstance(one, LiveValue)]
    (series,), (total,) = report.series, report.metrics
    assert list(series.values) == [1.5, 2.5]
    assert times[1] - times[0] == pytest.approx(series.times_s[1] - series.times_s[0])
    # The window begins with the first value.
    assert total.window_from_s == pytest.approx(series.times_s[0])
    assert total.window_s is not None
    assert series.times_s[1] <= total.window_from_s + total.window_s


def test_start_is_seen_without_any_metric():
    with start("") as run:
        assert run.wait()
        (began,) = run.live()
        assert isinstance(began, LiveStart)
        assert run.report().exit_code == 0


def test_marked_lines_come_with_those_after_them_of_the_same_stream():
    code = """
other = sys.stderr if index else sys.stdout
print("before 0", file=other)
print("@mark", {"index": index}, file=other)
for step in range(20): print(f"after {step}", file=other)
"""
    with start(code, "@mark", mark="@mark", count=2) as run:
        run.report()
        lines = [one for one in run.live() if isinstance(one, LiveLine)]
    for index, stream in enumerate(("out", "err")):
        own = [one for one in lines if one.instance == index]
        assert {one.stream for one in own} == {stream}
        told = [f"after {step}" for step in range(LINES_AFTER_MARK)]
        assert [one.text for one in own] == [f"@mark {{'index': {index}}}", *told]


def test_leaving_the_block_kills_what_ignores_every_signal():
    code = """
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
pid = os.fork()
os.write(1, f"{os.getpid()} x/s\\n".encode())
while True: signal.pause()
"""
    pids: set[int] = set()
    with start(code, "x/s", count=2) as run:

        def all_told() -> bool:
            pids.update(int(one.value) for one in run.live() if isinstance(one, LiveValue))
            return len(pids) == 4

        wait_until(all_told, "two processes of each instance")
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))


@pytest.fixture
def ignored_signals() -> Iterator[None]:
    """This process ignores what `nohup`, or a shell script, lets its background commands ignore, and more."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("end", [xlaunch.RunningLaunch.end, xlaunch.RunningLaunch.kill])
def test_a_caller_that_ignores_signals_ends_its_run(
    ignored_signals: None, end: Callable[[xlaunch.RunningLaunch], None]
):
    code = """
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # pause() would miss one just before it
print(f"{signal.getsignal(signal.SIGINT) == signal.SIG_IGN:d} x/s", flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(5)
"""
    with start(code, "x/s") as run:
        found: list[float] = []

        def told() -> bool:
            found.extend(one.value for one in run.live() if isinstance(one, LiveValue))
            return found == [1]  # the program is run as its caller runs

        wait_until(told, "the program")
        (instance,) = children_of(children_of(run._keeper.process.pid)[0])
        os.kill(run._keeper.process.pid, signal.SIGINT)
        end(run)
        if end is xlaunch.RunningLaunch.end:
            assert run.report().exit_code == 5
    assert not is_alive(instance)


def test_nothing_is_started_for_a_caller_that_was_killed_at_once():
    """Before its child could ask the kernel to be ended with it."""
    code = """
import os, signal, subprocess, xlaunch
plan = xlaunch.plan(xlaunch.LayoutRequest(ncores=1), xlaunch.read_machine())
sleep = xlaunch.ProgramRequest(("sleep", "600"))
run = xlaunch.start(plan, sleep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with open(f"/proc/self/task/{os.getpid()}/children") as file: print(file.read(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    caller = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    assert caller.returncode == -signal.SIGKILL
    keeper = int(caller.stdout)
    try:
        wait_until(lambda: not is_alive(keeper), "the end of what the caller started")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)


def test_output_and_input_are_the_caller_s_choice(tmp_path: Path):
    code = "print(repr(sys.stdin.read()), os.isatty(0)); print('told', file=sys.stderr)"
    with (
        open(tmp_path / "out", "wb") as out,
        open(tmp_path / "err", "wb") as err,
        xlaunch.start(*work(code), stdout=out.fileno(), stderr=err.fileno()) as run,
    ):
        assert run.report().exit_code == 0
    assert (tmp_path / "out").read_text() == "'' False\n"
    assert "told\n" in (tmp_path / "err").read_text()


def test_a_metric_that_cannot_be_read_is_refused_before_anything_starts():
    with pytest.raises(xlaunch.UsageError, match="put a group around the number"):
        start("open('ran', 'w')", "(?:x)/s")
    assert not os.path.exists("ran")


def test_what_no_program_can_be_given_is_refused(golden: Golden):
    machine = xlaunch.read_machine()

    def launched(environment: dict[str, str] | None = None, **options: object) -> None:
        request = xlaunch.Request().replace(**{"words": ("true",), **options})
        plan = xlaunch.plan(request.layout, machine)
        given = {**os.environ, **(environment or {})}
        xlaunch.launch(plan, request.program, request.run, environment=given)

    wrong = (
        {"cache_dir": "a\0b"}, {"words": ("true", "\0")}, {"env": (("A", "\0"),)}, {"env": (("A=B", "1"),)},
        {"env": (("", "1"),)}, {"log_dir": "\0"}, {"report": "\0"}, {"environment": {"A": "\0"}},
        {"environment": {"A=B": "1"}},
    )  # fmt: skip
    golden.errors(*[partial(launched, **options) for options in wrong])


def test_modules_of_the_current_directory_are_not_the_launcher_s(tmp_path: Path):
    (tmp_path / "select.py").write_text("raise SystemExit('the wrong module')")
    report = xlaunch.launch(*work(""))
    assert report.exit_code == 0


def test_descriptors_are_given_back():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with start("") as run:
        run.report()
    before = count()
    with start("", "x/s") as run:
        run.report()
    xlaunch.launch(*work(""))
    assert count() == before


MANY_DESCRIPTORS = """
import os, resource, sys, xlaunch
from xlaunch.cli import main
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
while os.dup(0) < 1100: pass
"""


@pytest.mark.parametrize("call", ["command", "functions"])
def test_more_instances_than_the_soft_limit_on_open_files_allows(call: str):
    code = """
assert xlaunch.launch(plan, request.program).exit_code == 0
with xlaunch.start(plan, request.program) as run: assert run.report().exit_code == 0
"""
    assert run_with_open_files("soft", "main(words)" if call == "command" else code) == (0, "")


def test_more_instances_than_the_hard_limit_on_open_files_allows_is_refused():
    code, told = run_with_open_files("hard", "main(words)")
    assert code == 2
    assert "20 instances: 132 open files are needed, and the hard limit is 50" in told
    assert told.count("\n") == 1


def run_with_open_files(which: str, code: str) -> tuple[int, str]:
    """Exit code and standard error of 20 instances of `true` where 50 files may be open."""
    program = f"""
import resource, xlaunch
from xlaunch.cli import main
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50 if {which!r} == "hard" else hard))
words = "--instances 20 --ncores 1 --oversubscribe -q true".split()
request = xlaunch.Request.of("true", instances=20, ncores=1, oversubscribe=True)
plan = xlaunch.plan(request.layout, xlaunch.read_machine())
{code}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture
def high_limit(needs: Callable[[object, str], None]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needs(hard == resource.RLIM_INFINITY or hard > 1500, "a hard limit of 1,500 open files")


@pytest.mark.usefixtures("high_limit")
def test_caller_may_have_thousands_of_descriptors():
    code = """
plan = xlaunch.plan(xlaunch.LayoutRequest(ncores=1), xlaunch.read_machine())
with xlaunch.start(plan, xlaunch.ProgramRequest(("true",))) as run:
    assert run.wait(60)
    print(run.report().exit_code)
"""
    words = [sys.executable, "-c", MANY_DESCRIPTORS + code]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"0\n"


@pytest.mark.usefixtures("high_limit")
def test_report_goes_to_a_pipe_with_thousands_of_descriptors_open(tmp_path: Path):
    os.mkfifo(tmp_path / "report")
    words = [sys.executable, "-c", MANY_DESCRIPTORS + "main()", "--report", "report", "-q", "true"]
    with subprocess.Popen(words) as run:
        reader = threading.Thread(target=(tmp_path / "report").read_bytes, daemon=True)
        reader.start()
        assert run.wait(PATIENCE_S) == 0
        reader.join()


# The file in memory


def pair(*, mark: str | None = None) -> tuple[LiveWriter, LiveReader]:
    descriptor = os.memfd_create("test")
    return LiveWriter(descriptor, mark), LiveReader(descriptor)


def test_records_come_out_as_they_went_in():
    writer, reader = pair(mark="§")
    start, value = LiveStart(3, 1.25), LiveValue(3, "b", 2.5, -1e300)
    line = LiveLine(3, "err", 3.5, "§ ünï\u2028\x1c")
    writer.write(start)
    writer.write(value)
    writer.write_marked(LiveLine(3, "err", 3.5, "left out"))
    writer.write_marked(line)
    assert list(reader.read()) == [start, value, line]
    writer.write(LiveValue(70_000, "a", 4.0, 7.0))
    assert list(reader.read()) == [LiveValue(70_000, "a", 4.0, 7.0)]
    assert list(reader.read()) == []
    reader.close()


def test_what_is_half_written_is_left_for_the_next_time():
    writer, reader = pair(mark="m")
    writer.write_marked(LiveLine(0, "out", 1.0, "mark"))
    data = os.pread(reader.descriptor, 100, 0)
    for length in range(len(data)):
        os.ftruncate(reader.descriptor, 0)
        os.pwrite(reader.descriptor, data[:length], 0)
        assert list(reader.read()) == []
    os.pwrite(reader.descriptor, data, 0)
    assert [one.text for one in reader.read() if isinstance(one, LiveLine)] == ["mark"]
    reader.close()


def test_file_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("xlaunch.metrics.live.MAX_LIVE_BYTES", 1000)
    writer, reader = pair()
    for step in range(1000):
        writer.write(LiveValue(0, "a", 1.0, step))
    found = [one.value for one in reader.read() if isinstance(one, LiveValue)]
    assert found == list(range(len(found)))
    assert 20 < len(found) < 50
    assert os.fstat(reader.descriptor).st_size <= 1000
    reader.close()
