# SPDX-License-Identifier: Apache-2.0
"""Measuring with real processes: `--metric`, the start barrier, and what instances report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launcher.cli.commands import clean_environment, xlaunch
from tests.launcher.launching import Launched, children_of, is_alive, wait_until

from xlaunch.metrics.barrier import MAX_HOLD_S, Barrier

BEGIN = """
import os, signal, sys, time
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
def note(word): open(f"{index}.{word}", "w").close()
def wait_for(word):
    while not os.path.exists(word): time.sleep(0.005)
def barrier():
    note("came")
    with open(os.environ["XLAUNCH_BARRIER"]) as file: assert file.read() == ""
    note("passed")
def report(text):
    with open(os.environ["XLAUNCH_METRICS"], "w") as file: print(text, file=file)
"""


class Measured(Launched):
    """A launch under --metric that has begun."""

    def told(self, word: str) -> set[int]:
        """The instances that have noted `word`."""
        return {int(path.name.split(".")[0]) for path in self.directory.glob(f"*.{word}")}

    def allow(self, word: str) -> None:
        """Let the instances that wait for `word` go on."""
        (self.directory / word).touch()

    def wait_for(self, word: str, *indices: int) -> None:
        wait_until(lambda: set(indices) <= self.told(word), f"{word} of {indices}")


Start = Callable[..., Measured]


@pytest.fixture
def measure(tmp_path: Path) -> Iterator[Start]:
    """Start a program under --metric, several times if need be; no FIFO may be left."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    with contextlib.ExitStack() as begun:

        def start(code: str, *options: str, count: int = 2, metric: str = "x/s") -> Measured:
            words = ["--metric", metric, "--report", "report.json", *options, "--"]
            program = [sys.executable, "-c", BEGIN + code]
            run = Measured(tmp_path, [*words, *program], count=count, XDG_RUNTIME_DIR=str(runtime))
            return begun.enter_context(run)

        yield start
    assert directories_of_fifos(tmp_path) == []


def directories_of_fifos(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory / "runtime") if name != "xlaunch-runs"]


# What is printed


def test_rates_add_up_over_the_time_in_which_all_are_past_their_first(measure: Start):
    code = """
for step in range(4):
    print(f"{(step > 0) * 100 * (index + 1)} x/s", flush=True)
    wait_for(f"go{step}")
"""
    run = measure(code)
    assert run.process.stdout is not None
    for step in range(4):  # what was passed on was also taken
        lines = sorted(run.process.stdout.readline() for _ in (0, 1))
        assert [line[:4] for line in lines] == [b"[0] ", b"[1] "]
        run.allow(f"go{step}")
    code_, _, err = run.end()
    assert code_ == 0, err
    report = run.report()
    (total,) = report["metrics"]
    metrics = [one["metrics"][0] for one in report["instances"]]
    assert [(one["count"], one["last"], one["mean"]) for one in metrics] == [
        (4, 100, 100),
        (4, 200, 200),
    ]
    assert (total["name"], total["kind"], total["sum"]) == ("x/s", "rate", 300)
    assert f"x/s: 300 in total, over the {total['window_s']:.2f} s in which all ran\n" in err
    assert not any("--metric" in warning for warning in report["warnings"])


def test_log_files_are_read_along(measure: Start):
    """The barrier opens for instance 0 once a value of instance 1 was seen in its log file."""
    code = """
if index: print("5 x/s", flush=True); wait_for("0.passed")
else: barrier()
print("7 x/s")
"""
    run = measure(code, "--log-dir", "logs")
    code_, out, err = run.end()
    assert (code_, out) == (0, ""), err
    metrics = [one["metrics"][0] for one in run.report()["instances"]]
    assert [(one["count"], one["last"]) for one in metrics] == [(1, 7), (2, 7)]


@pytest.mark.parametrize("stream", [1, 2])
def test_single_instance_s_output_is_passed_on_unchanged(measure: Start, stream: int):
    code = f"""
os.write({stream}, b"12 x/s\\r 13 x/s\\r\\xff\\0 14 x/s\\n")
os.write({stream}, b"[partial")
note("wrote")
wait_for("go")
os.write({stream}, b" 15 x/s]")
"""
    run = measure(code, "-q", count=1)
    read = run.process.stdout if stream == 1 else run.process.stderr
    assert read is not None
    expected = b"12 x/s\r 13 x/s\r\xff\0 14 x/s\n[partial"
    assert read.read(len(expected)) == expected  # also what is no whole line yet
    run.allow("go")
    assert read.read() == b" 15 x/s]"
    run.end()
    (metric,) = run.report()["instances"][0]["metrics"]
    assert (metric["count"], metric["last"]) == (4, 15)


def test_last_line_without_an_end_counts_within_the_window(measure: Start):
    run = measure("barrier(); os.write(1, b'5 x/s'); wait_for('go')")
    run.wait_for("passed", 0, 1)
    run.allow("go")
    assert run.end()[0] == 0
    assert (total := run.report()["metrics"][0])["sum"] == 10, total


def test_values_of_a_run_of_no_time_are_not_lost(measure: Start):
    run = measure("os.write(1, b'1 x/s\\n' * 5000 + b'2 x/s')", "-q", count=1)
    assert run.end()[0] == 0
    (metric,) = run.report()["instances"][0]["metrics"]
    assert (metric["count"], metric["last"]) == (5001, 2)


def test_reported_values_need_no_output(measure: Start):
    run = measure("for ms in range(101): report(f'step {ms / 1e3}')", metric="latency:step")
    code, out, err = run.end()
    assert (code, out) == (0, "")
    (total,) = run.report()["metrics"]
    assert [one["metrics"][0]["count"] for one in run.report()["instances"]] == [101, 101]
    assert total["kind"] == "latency"
    assert total["p50"] == pytest.approx(0.05, abs=0.02)
    assert f"step: mean {total['mean']:.4g}, p50 " in err


def test_metrics_may_be_several_and_one_that_is_never_printed_is_told(measure: Start):
    others = ("--metric", "loss", "--metric", r"step (\d+)", "--metric", "y/s")
    run = measure("print('step 3 loss 0.5 7 x/s')", *others)
    code, _, err = run.end()
    assert code == 0
    report = run.report()
    totals = {total["name"]: total["sum"] or total["mean"] for total in report["metrics"]}
    assert totals == {"x/s": 14, "loss": 0.5, r"step (\d+)": 3, "y/s": None}
    lines = [line.split() for line in err.splitlines()]
    assert ["loss", "0", "1", "0.5", "0.5"] in lines
    line = "--metric 'y/s': no line has it; the last lines with numbers: step 3 loss 0.5 7 x/s"
    assert f"xlaunch: warning: {line}\n" in err
    assert line in report["warnings"]


# The start barrier


def test_nobody_passes_before_all_have_come(measure: Start):
    run = measure("wait_for(f'go{index}')\nbarrier()\nprint('5 x/s')", count=3)
    run.allow("go0")
    run.allow("go1")
    run.wait_for("came", 0, 1)
    wait_until(lambda: len(held_in(run)) == 2, "two instances to sleep at the barrier")
    assert run.told("passed") == set()
    run.allow("go2")
    code, _, err = run.end()
    assert code == 0, err
    assert run.told("passed") == {0, 1, 2}
    assert run.report()["metrics"][0]["sum"] == 15


def held_in(run: Measured) -> list[int]:
    """Instances that sleep in reading the FIFO."""
    found = []
    for supervisor in children_of(run.process.pid):
        for pid in children_of(supervisor):
            # Processes come and go, and close their files, while they are looked at.
            with contextlib.suppress(OSError):
                links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
                found += [pid] if any("/barrier-" in link for link in links) else []
    return found


def test_what_was_printed_before_the_barrier_is_warm_up(measure: Start):
    run = measure("print('999 x/s', flush=True)\nbarrier()\nprint('5 x/s', flush=True)")
    run.end()
    # One that has printed a value is not waited for, but it may well be held.
    assert [one["metrics"][0]["count"] for one in run.report()["instances"]] == [2, 2]


def test_instances_that_end_without_coming_are_not_waited_for(measure: Start):
    code = """
if index: wait_for("0.came")
if index == 1: sys.exit(0)
if index == 2: os.kill(os.getpid(), 9)
if index == 3: sys.exit(3)
barrier()
note("after")
"""
    run = measure(code, "--on-failure", "continue", count=4)
    run.end()
    assert run.told("after") == {0}


def test_instance_that_is_killed_at_the_barrier_is_not_waited_for(measure: Start):
    code = "if index == 2: wait_for('go')\nbarrier()\nnote('after')"
    run = measure(code, "--on-failure", "continue", count=3)
    wait_until(lambda: len(held_in(run)) == 2, "two instances at the barrier")
    os.kill(held_in(run)[0], signal.SIGKILL)
    run.allow("go")
    assert run.end()[0] == 137
    assert len(run.told("after")) == 2


def test_barrier_opens_for_those_who_have_waited_long_enough(tmp_path: Path):
    barrier = Barrier(str(tmp_path), [0, 1, 2], 0.0)
    reader = os.open(barrier.paths[1], os.O_RDONLY | os.O_NONBLOCK)
    barrier.look(5.0, [], 0.0)
    barrier.look(5.0 + MAX_HOLD_S - 1, [], 0.0)
    assert (barrier.came, barrier.released_at, barrier.overdue) == (True, None, [])
    barrier.look(5.0 + MAX_HOLD_S, [], 0.0)
    assert (barrier.released_at, barrier.overdue) == (5.0 + MAX_HOLD_S, [0, 2])
    assert os.read(reader, 1) == b""  # its end of file
    os.close(reader)


@pytest.mark.parametrize(
    ("code", "options", "passed"),
    [
        ("if index == 1:\n print('5 x/s', flush=True); wait_for('0.passed')\nelse: barrier()", (),
         {0}),
        ("if index == 1 and not os.path.exists('1.tried'): note('tried'); sys.exit(1)\nbarrier()",
         ("--on-failure", "restart"), {0, 1}),
        ("barrier()\nbarrier()", (), {0, 1}),
        ("barrier()", ("--instance-index", "1"), {1}),
        ("pid = os.fork()\nbarrier()\nif pid: os.waitpid(pid, 0)", (), {0, 1}),
    ],
    ids=[
        *("a printed value ends the warm-up", "one is restarted", "it is called twice"),
        *("only one runs here", "children wait, too"),
    ],
)  # fmt: skip
def test_barrier_lets_pass(measure: Start, code: str, options: tuple[str, ...], passed: set[int]):
    run = measure(code, *options)
    assert run.end()[0] == 0
    assert run.told("passed") == passed


HELD = "signal.signal(15, lambda *_: note('told'))\nnote('ready')\nif index: wait_for('go')\nbarrier()\nnote('on')"


def test_who_is_held_is_let_go_when_the_run_ends(measure: Start):
    """A handler that returns would leave the program in its read."""
    run = measure(HELD, "--grace", "1h")
    run.wait_for("ready", 0, 1)
    wait_until(lambda: held_in(run), "an instance at the barrier")
    run.process.terminate()
    run.wait_for("on", 0)
    run.allow("go")
    assert run.end()[0] == 0


def test_timeout_at_the_barrier(measure: Start):
    run = measure("if index: wait_for('never')\nbarrier()", "--timeout", "1s")
    assert run.end()[0] == 124


def test_without_metric_there_is_no_barrier():
    code = "import os; print('XLAUNCH_BARRIER' in os.environ, 'XLAUNCH_METRICS' in os.environ)"
    assert xlaunch("--supervise", "-q", sys.executable, "-c", code).out == b"False False\n"


@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_directory_for_fifos_is_removed_whoever_is_killed(measure: Start, victim: str):
    run = measure("note('ready'); wait_for('never')")
    run.wait_for("ready", 0, 1)
    assert len(directories_of_fifos(run.directory)) == 1
    (supervisor,) = children_of(run.process.pid)
    os.kill(run.process.pid if victim == "keeper" else supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(supervisor), "the supervisor's end")
    run.end()


def test_directory_for_fifos_is_removed_by_the_next_launch_when_all_are_killed(measure: Start):
    run = measure("note('ready'); wait_for('never')")
    run.wait_for("ready", 0, 1)
    (directory,) = directories_of_fifos(run.directory)
    (supervisor,) = children_of(run.process.pid)
    for pid in (supervisor, run.process.pid):  # a stopped one removes nothing
        os.kill(pid, signal.SIGSTOP)
    for pid in (run.process.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(supervisor), "the supervisor's end")
    assert directories_of_fifos(run.directory) == [directory]
    run.end()
    env = clean_environment(XDG_RUNTIME_DIR=str(run.directory / "runtime"))
    assert xlaunch("-q", "true", env=env).code == 0
    assert directories_of_fifos(run.directory) == []


def test_without_a_place_for_fifos_it_measures_what_is_printed(tmp_path: Path):
    """TMPDIR and the like are unusable, as on a read-only system."""
    code = "import os; print('XLAUNCH_BARRIER' in os.environ); print('5 x/s')"
    env = clean_environment(TMPDIR=str(tmp_path / "none"), XDG_RUNTIME_DIR="")
    done = xlaunch("--metric", "x/s", sys.executable, "-c", code, env=env)
    assert (done.code, done.out) == (0, b"False\n5 x/s\n")
    assert "warning: no start barrier: cannot make FIFOs in" in done.err
    assert "x/s: 5 in total" in done.err
