# SPDX-License-Identifier: Apache-2.0
"""Forks, data loaders and the interpreter's end, each in a process of its own: nothing hangs."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.runtime_ext.interpreters import python

pytestmark = pytest.mark.usefixtures("nothing_stays_changed")

LIMIT_S = 100

PREAMBLE = """
import os, signal, sys, threading, time
import torch
from xruntime.threads.cpu_pool import CPUPool
from xruntime.errors import ClosedError, LostInForkError
from xruntime.threads.pinning import pin
from xruntime.streams.task import Task

cpus = sorted(os.sched_getaffinity(0))[:2]
pool = CPUPool(cpus)

def mask():
    return sorted(os.sched_getaffinity(0))

def in_child(act):
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            act()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
"""


INTERPRETER = """
import json, tempfile
signal.signal(signal.SIGINT, signal.default_int_handler)
for line in sys.stdin:
    script, whole = json.loads(line)
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT_S)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        exec(script)
        if not whole:
            sys.stdout.flush()
            os._exit(0)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for file in (output, errors):
        file.seek(0)
        texts.append(file.read().decode())
    print(json.dumps([code, *texts]), flush=True)
"""


@functools.cache
def interpreter() -> subprocess.Popen[str]:
    """A process that has run PREAMBLE, which takes a second; each script runs in a fork of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + INTERPRETER.replace("LIMIT_S", str(LIMIT_S))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run(script: str, *, code: int = 0, to_the_end: bool = False) -> list[str]:
    """Run a script after PREAMBLE, in a process of its own; its lines of output.

    The process ends as an interpreter does, which takes a while, or right after the script.
    """
    process = interpreter()
    process.stdin.write(json.dumps([textwrap.dedent(script), to_the_end]) + "\n")
    process.stdin.flush()
    returned, output, errors = json.loads(process.stdout.readline())
    assert returned == code, errors
    return output.splitlines()


def test_interpreter_ends_with_tasks_open_and_finishes_their_work() -> None:
    lines = run(
        """
        task = Task(lambda x: (time.sleep(0.01), print("did", x, flush=True)), pool)
        for x in range(5):
            task(x)
        print("end of the script", flush=True)
    """,
        to_the_end=True,
    )
    assert sorted(lines) == sorted(["end of the script", *(f"did {x}" for x in range(5))])
    assert lines[-1] == "did 4"


WAITER = """
task = Task(time.sleep, pool)
waiter = threading.Thread(target=lambda: print(task.run_sync(0.2)))
waiter.start()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "code", "lines"),
    [
        ("task = Task(torch.add, pool)", 0, []),
        ("task = Task(torch.add, pool); task(torch.ones(1), 1); raise SystemExit(7)", 7, []),
        (WAITER, 0, ["None"]),
    ],
    ids=["an idle task", "an exception", "a thread that waits"],
)
def test_interpreter_ends_with(script: str, code: int, lines: list[str]) -> None:
    assert run(script, code=code, to_the_end=True) == lines


def test_ctrl_c_interrupts_a_wait() -> None:
    lines = run("""
        release = threading.Event()
        task = Task(lambda: (os.kill(os.getpid(), signal.SIGINT), release.wait(60)), pool)
        try:
            task.run_sync()
        except KeyboardInterrupt:
            print("interrupted")
            release.set()
    """)
    assert lines == ["interrupted"]


def test_forked_child_uses_a_task_of_its_parent() -> None:
    lines = run("""
        task = Task(lambda x: (x + 1, os.getpid(), mask()), pool)
        parent = task.run_sync(1)
        def child():
            result, pid, cpus_there = task.run_sync(41)
            assert pid == os.getpid() != parent[1]
            assert cpus_there == parent[2] == cpus
            print(result)
        in_child(child)
        assert task.run_sync(1) == parent
    """)
    assert lines == ["42"]


def test_forked_child_is_told_that_a_result_will_not_come() -> None:
    lines = run("""
        release = threading.Event()
        task = Task(lambda: release.wait(60), pool)
        future = task()
        def child():
            try:
                future.result()
            except LostInForkError as error:
                print(error)
        in_child(child)
        release.set()
        assert future.result()
    """)
    assert len(lines) == 1
    assert "fork() does not copy threads. Submit the call again" in lines[0]


def test_forked_child_does_not_reopen_a_closed_task() -> None:
    lines = run("""
        task = Task(int, pool)
        task.close()
        def child():
            try:
                task("1")
            except ClosedError as error:
                print(error)
        in_child(child)
    """)
    assert lines == ["Task(int) is closed and takes no more work"]


@pytest.mark.long
def test_fork_while_many_threads_submit() -> None:
    run("""
        tasks = [Task(int, pool) for _ in range(4)]
        stop = threading.Event()
        def submit(task):
            while not stop.is_set():
                task.run_sync()
        threads = [threading.Thread(target=submit, args=(task,)) for task in tasks]
        for thread in threads:
            thread.start()
        for _ in range(20):
            in_child(lambda: [task.run_sync() for task in tasks])
        stop.set()
        for thread in threads:
            thread.join()
    """)


def test_forked_child_cancels_though_a_thread_of_its_parent_makes_a_lock() -> None:
    lines = run("""
        from xruntime.threads import futures
        release = threading.Event()
        task = Task(lambda: release.wait(60), pool)
        task()
        future = task()
        held = threading.Event()
        def hold():
            with futures._state_lock:
                held.set()
                release.wait(60)
        threading.Thread(target=hold).start()
        held.wait(60)
        def child():
            signal.alarm(30)
            print(future.cancel())
        in_child(child)
        release.set()
        assert future.result()
    """)
    assert lines == ["True"]


@pytest.mark.long
def test_forked_child_may_end_by_exit_handlers() -> None:
    lines = run(
        """
        task = Task(int, pool)
        task.run_sync()
        pid = os.fork()
        os.write(1, b"both\\n")  # in one piece, whoever comes first
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    """,
        to_the_end=True,
    )
    assert lines == ["both", "both"]


@pytest.mark.long
def test_data_loader_workers_have_all_cpus(tmp_path: Path) -> None:
    """Workers started while pins and tasks are about run where the process may, not on a pool."""
    script = tmp_path / "loader.py"
    script.write_text(
        PREAMBLE
        + textwrap.dedent("""
        class Masks(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.tensor(mask())

        if __name__ == "__main__":
            before = mask()
            with Task(torch.add, CPUPool(cpus[1:])) as task, pin(CPUPool(cpus[1:])):
                torch.ones(1 << 17).add_(1)
            task = Task(lambda x: x.sum().item(), pool)
            for method in ("fork", "spawn"):
                loader = torch.utils.data.DataLoader(
                    Masks(), num_workers=2, multiprocessing_context=method
                )
                for seen in loader:
                    assert seen[0].tolist() == before, (method, seen)
                    task.run_sync(torch.ones(1 << 17))
        """)
    )
    python(str(script), PYTHONWARNINGS="ignore")
