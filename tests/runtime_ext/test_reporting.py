# SPDX-License-Identifier: Apache-2.0
"""Values that a program reports: seen by a real xlaunch run, and nothing at all elsewhere."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import xlaunch
import xruntime
from xruntime import reporting

VARIABLE = "XLAUNCH_METRICS"


@pytest.fixture(autouse=True)
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test opens the pipe anew."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(reporting._pipe, "opened", None)
    yield
    if reporting._pipe.opened is not None and reporting._pipe.opened[1] >= 0:
        os.close(reporting._pipe.opened[1])


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of a FIFO as xlaunch makes it."""
    path = tmp_path / "metrics-0"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv(VARIABLE, str(path))
    yield reader
    os.close(reader)


def read(reader: int) -> str:
    return os.read(reader, 1 << 20).decode()


def measured(code: str, *metrics: str, count: int = 1) -> xlaunch.Report:
    """The report of a real run of `code`, whose output goes nowhere."""
    request = xlaunch.Request.of(
        sys.executable,
        "-c",
        code,
        instances=count,
        ncores=1,
        oversubscribe=True,
        metric=metrics,
    )
    plan = xlaunch.plan(request.layout, xlaunch.read_machine())
    with xlaunch.start(
        plan,
        request.program,
        request.run,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        return run.report()


def values(report: xlaunch.Report) -> dict[tuple[str, int], list[float]]:
    return {(one.metric, one.instance): list(one.values) for one in report.series}


# Under a real run


def test_xlaunch_sees_what_each_instance_reports():
    code = """
import os, xruntime
index = int(os.environ["XLAUNCH_INSTANCE_INDEX"])
for step in range(3):
    xruntime.report("images/s", 100 * index + step)
    xruntime.report("step time", step / 1000)
    print("images/s: 7")
"""
    report = measured(code, "images/s", "latency:step time", count=2)
    assert report.exit_code == 0
    assert values(report)["step time", 0] == [0.0, 0.001, 0.002]
    for index in (0, 1):
        told = [100 * index + step for step in range(3)]
        found = values(report)["images/s", index]
        assert sorted(found) == sorted([*told, 7, 7, 7])  # beside what is printed
        assert [value for value in found if value != 7] == told


def test_regular_expressions_read_reports_too():
    report = measured(
        "import xruntime; xruntime.report('epoch 3 loss', 0.25)", "(?:loss) ([0-9.]+)"
    )
    assert values(report) == {("(?:loss) ([0-9.]+)", 0): [0.25]}


def test_processes_and_threads_report_side_by_side():
    code = """
import multiprocessing, threading, xruntime
def work(name):
    threads = [threading.Thread(target=lambda: [xruntime.report(name, n) for n in range(500)])
               for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
if __name__ == "__main__":
    work("a/s")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(name,)) for name in ("a/s", "b/s")]
    for child in children: child.start()
    for child in children: child.join()
"""
    report = measured(code, "a/s", "b/s")
    assert report.exit_code == 0
    found = values(report)
    for name, times in (("a/s", 8), ("b/s", 4)):
        assert sorted(found[name, 0]) == sorted(list(range(500)) * times)


def test_more_than_the_pipe_holds_arrives_in_whole():
    count = 20_000  # some 400 KiB
    report = measured(
        f"import xruntime\nfor n in range({count}): xruntime.report('x' * 10, n)", "x" * 10
    )
    assert values(report) == {("x" * 10, 0): list(range(count))}


# What is written


def test_line_is_name_and_number(pipe: int):
    xruntime.report(" images/s ", 3)
    xruntime.report("loss", 1e-9)
    xruntime.report("ünï", -1.5e300)
    assert read(pipe) == "images/s 3.0\nloss 1e-09\nünï -1.5e+300\n"


def test_whatever_float_takes_is_a_value(pipe: int):
    class Scalar:
        def __float__(self) -> float:
            return 2.5

    xruntime.report("x", Scalar())
    xruntime.report("x", True)
    assert read(pipe) == "x 2.5\nx 1.0\n"


def test_what_is_not_finite_is_left_out(pipe: int):
    for value in (float("nan"), float("inf"), float("-inf")):
        xruntime.report("x", value)
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)


@pytest.mark.parametrize("name", ["", " \n ", "two\nlines", "carriage\rreturn", "x" * 257])
def test_name_that_is_no_line_is_refused(name: str, pipe: int):
    with pytest.raises(ValueError, match="a name is one line of 1 to 256 characters"):
        xruntime.report(name, 1.0)
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)


def test_value_that_is_no_number_is_refused(pipe: int):
    with pytest.raises(TypeError):
        xruntime.report("x", [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 256])
def test_longest_line_is_written_in_one_piece(pipe: int, length: int):
    # In UTF-8 each character takes four bytes.
    xruntime.report("🐍" * length, -1.7976931348623157e308)
    text = read(pipe)
    assert len(text.encode()) < 4096
    assert text == "🐍" * length + " -1.7976931348623157e+308\n"


def test_descriptor_is_opened_once_and_not_inherited(pipe: int):
    xruntime.report("x", 1)
    opened = reporting._pipe.opened
    before = os.listdir("/proc/self/fd")
    for _ in range(100):
        xruntime.report("x", 1)
    assert os.listdir("/proc/self/fd") == before
    assert not os.get_inheritable(opened[1])
    assert os.get_blocking(opened[1])


def test_full_pipe_is_waited_for(pipe: int):
    lines = [f"x {step}.0" for step in range(20_000)]
    writer = threading.Thread(target=lambda: [xruntime.report("x", n) for n in range(len(lines))])
    writer.start()
    text = ""
    while text.count("\n") < len(lines):
        assert select.select([pipe], [], [], 20.0)[0]
        text += read(pipe)
    writer.join()
    assert text.splitlines() == lines


# Elsewhere


def test_it_does_nothing_where_nobody_asked(tmp_path: Path):
    before = os.listdir("/proc/self/fd")
    xruntime.report("x", 1.0)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_pipe_without_a_listener_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "left"
    os.mkfifo(path)  # nobody has it open: opening it to write would wait for ever
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.warns(reporting.ReportingWarning, match="no longer reported") as caught:
        xruntime.report("x", 1.0)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xruntime.report("x", 2.0)


def test_listener_that_goes_away_is_warned_of_once(pipe: int):
    xruntime.report("x", 1.0)
    opened = reporting._pipe.opened
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, pipe)  # the last reader is gone
    os.close(empty)
    with pytest.warns(reporting.ReportingWarning, match="Broken pipe") as caught:
        xruntime.report("x", 2.0)
    assert [warning.filename for warning in caught] == [__file__]
    xruntime.report("x", 3.0)
    os.close(opened[1])


def test_another_run_s_pipe_replaces_the_first(
    pipe: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    xruntime.report("x", 1.0)
    other = tmp_path / "other"
    os.mkfifo(other)
    reader = os.open(other, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv(VARIABLE, str(other))
    xruntime.report("x", 2.0)
    assert (read(pipe), read(reader)) == ("x 1.0\n", "x 2.0\n")
    os.close(reader)


def test_forked_child_reports_though_a_thread_held_the_lock(pipe: int):
    with reporting._pipe._lock:
        pid = os.fork()
        if pid == 0:
            try:
                xruntime.report("child", 1.0)
            finally:
                os._exit(0)
    os.waitpid(pid, 0)
    assert read(pipe) == "child 1.0\n"
