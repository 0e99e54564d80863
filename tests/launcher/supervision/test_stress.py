# SPDX-License-Identifier: Apache-2.0
"""Supervision holds a thousand times over. About nine minutes on two CPUs: `pytest -m full`.

The random moments come from a seed, which each test prints with its counts (`pytest -s` shows them
as they come; `XLAUNCH_STRESS_SEED` repeats a run).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pexpect
import pytest
from tests.launcher.cli.commands import XLAUNCH
from tests.launcher.launching import WITNESS, children_of, is_alive, wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
MARKER = "XLAUNCH_STRESS_MARKER"
KILL_CYCLES = 1000
CTRL_C_CYCLES = 200
STORMS = 60
GIGABYTE = 1 << 30


@pytest.fixture
def dice() -> random.Random:
    seed = os.environ.get("XLAUNCH_STRESS_SEED", str(random.randrange(1 << 32)))
    print(f"\nXLAUNCH_STRESS_SEED={seed}")
    return random.Random(seed)


class Tree:
    """Every process that carries one run's marker in its environment."""

    def __init__(self) -> None:
        self.marker = uuid.uuid4().hex
        self.environment = {**os.environ, MARKER: self.marker}

    def alive(self) -> list[int]:
        wanted = f"{MARKER}={self.marker}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        found.append(int(name))
        return [pid for pid in found if is_alive(pid)]

    def ends(self) -> None:
        """Wait for the last of its processes."""
        wait_until(lambda: not self.alive(), f"the end of every process of {self.marker}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left of it when the test fails."""
        for pid in self.alive():
            kill(pid)


@pytest.fixture
def tree() -> Iterator[Tree]:
    with Tree() as tree:
        yield tree


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_ready(directory: Path, index: int) -> bool:
    """Whether the witness of instance `index` handles signals."""
    log = directory / f"{index}.log"
    return log.exists() and "ready" in log.read_text()


def choose_victim(keeper: int, wanted: str, dice: random.Random) -> tuple[str, int]:
    """Who of the tree is to be killed: who is wanted, or the last before it who is there already."""
    chosen = "keeper", keeper
    for role in ("supervisor", "instance"):
        there = children_of(chosen[1])
        if chosen[0] == wanted or not there:
            break
        chosen = role, dice.choice(there)
    return chosen


def test_a_thousand_kills_leave_nothing(tmp_path: Path, dice: random.Random):
    """Keeper, supervisor or an instance is killed at any moment from start-up on."""
    counts: Counter[str] = Counter()
    for cycle in range(KILL_CYCLES):
        directory = tmp_path / str(cycle)
        directory.mkdir()
        victim = dice.choice(("keeper", "supervisor", "instance"))
        left = dice.choice(("--child", "--daemon"))
        # A launch takes about 0.15 s to start its instances, and they 0.1 s to be ready.
        moment = dice.uniform(0, 0.5)
        command = (*XLAUNCH, *TWO, "--grace", "100ms", "-q", "--", sys.executable, str(WITNESS))
        with Tree() as tree:
            with subprocess.Popen(
                (*command, str(directory), left, "--stubborn"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=tree.environment,
                start_new_session=True,
            ) as keeper:
                time.sleep(moment)
                role, target = choose_victim(keeper.pid, victim, dice)
                is_up = all(is_ready(directory, index) for index in (0, 1))
                kill(target)
                code = keeper.wait(60)
                if role == "supervisor":
                    assert code == 125
                counts[f"{role} while {'ready' if is_up else 'starting'}"] += 1
            tree.ends()
    print(f"{sum(counts.values())} kills: {dict(sorted(counts.items()))}")
    assert sum(counts.values()) == KILL_CYCLES
    assert len(counts) >= 5


WRITER = """
import hashlib, os, sys
index, total = os.environ["XLAUNCH_INSTANCE_INDEX"], int(sys.argv[1])
digest, written, n = hashlib.sha256(), 0, 0
out = sys.stdout.buffer
while written < total:
    line = b"%s:%d:" % (index.encode(), n) + b"x" * (n * 7919 % 400) + b"\\n"
    digest.update(line)
    out.write(line)
    written += len(line)
    n += 1
out.flush()
print(digest.hexdigest(), written, n, file=sys.stderr)
"""


def peak_of(pid: int) -> int:
    """VmHWM of a process, in bytes; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def test_a_gigabyte_of_output_arrives_whole(tmp_path: Path):
    """Four instances, one pipe: every line of each, in order, and a supervisor that stays small."""
    count = 4
    layout = ("--instances", str(count), "--ncores", "1", "--oversubscribe", "-q")
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    digests = {str(index): hashlib.sha256() for index in range(count)}
    lines: Counter[str] = Counter()
    size, peak, first_peak = 0, 0, 0
    started = time.monotonic()
    with subprocess.Popen(
        (*XLAUNCH, *layout, script, str(GIGABYTE // count)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        for number, line in enumerate(run.stdout):
            index, rest = line[1:2].decode(), line[4:]
            digests[index].update(rest)
            lines[index] += 1
            size += len(rest)
            if number % 100_000 == 0:
                peak = max([peak, *map(peak_of, children_of(run.pid))])
                first_peak = first_peak or peak
        errors = run.stderr.read().decode()
    seconds = time.monotonic() - started
    assert run.returncode == 0
    told = {line[1:2]: line[4:].split() for line in errors.splitlines()}
    assert {index: digest.hexdigest() for index, digest in digests.items()} == {
        index: words[0] for index, words in told.items()
    }
    assert {index: int(words[2]) for index, words in told.items()} == lines
    print(
        f"{size / 1e9:.2f} GB in {sum(lines.values())} lines, {seconds:.1f} s: "
        f"{size / 1e6 / seconds:.0f} MB/s; supervisor at most {peak / 2**20:.0f} MiB, "
        f"{first_peak / 2**20:.0f} MiB at first"
    )
    assert size >= GIGABYTE
    assert 0 < peak < 64 << 20


def test_reader_that_dawdles_makes_the_instances_wait(tmp_path: Path):
    """The supervisor holds a little and lets the pipes fill: instances wait, memory does not grow."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    total = 64 << 20
    peak = size = 0
    with subprocess.Popen(
        (*XLAUNCH, *TWO, "-q", script, str(total // 2)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        while data := os.read(run.stdout.fileno(), 1 << 16):
            size += len(data)
            peak = max([peak, *map(peak_of, children_of(run.pid))])
            if size % 7 == 0:
                time.sleep(0.001)
    assert run.returncode == 0
    print(f"{size / 1e6:.0f} MB; supervisor at most {peak / 2**20:.0f} MiB")
    assert size > total
    assert peak < 64 << 20


def test_sixty_four_instances_on_two_cpus(tmp_path: Path, tree: Tree):
    report = tmp_path / "report.json"
    allowed = sorted(os.sched_getaffinity(0))[:2]
    done = subprocess.run(
        (
            *XLAUNCH, "--instances", "64", "--ncores", "1", "--oversubscribe", "-q",
            "--cpus", ",".join(map(str, allowed)), "--report", report,
            sys.executable, "-c", "import os; print(os.environ['XLAUNCH_INSTANCE_INDEX'])",
        ),
        stdout=subprocess.PIPE,
        env=tree.environment,
        check=True,
    )  # fmt: skip
    lines = sorted(
        done.stdout.decode().split("\n")[:-1], key=lambda line: int(line[1:].split("]")[0])
    )
    assert lines == [f"[{index}] {index}" for index in range(64)]
    values = json.loads(report.read_text())
    assert [one["exit_code"] for one in values["instances"]] == [0] * 64
    masks = Counter(tuple(one["cpus_asked"]) for one in values["instances"])
    assert sum(masks.values()) == 64
    assert max(masks.values()) == 64 // len(allowed)
    tree.ends()
    print(f"64 instances on {len(allowed)} CPUs: {values['wall_s']:.1f} s, masks {dict(masks)}")


def test_sixty_four_instances_end_at_once(tree: Tree, tmp_path: Path):
    command = ("--instances", "64", "--ncores", "1", "--oversubscribe", "-q", "--grace", "1h")
    with subprocess.Popen(
        (
            *XLAUNCH,
            *command,
            "sh",
            "-c",
            f"touch {tmp_path}/$XLAUNCH_INSTANCE_INDEX; exec sleep 600",
        ),
        env=tree.environment,
        stdin=subprocess.DEVNULL,
    ) as run:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 64, "64 instances")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 143
    tree.ends()


HARMLESS = (signal.SIGWINCH, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def test_storms_of_signals(tmp_path: Path, dice: random.Random):
    """Signals of every sort hit the launcher from its first moment to its last: it ends, all end."""
    counts: Counter[str] = Counter()
    sent = 0
    for cycle in range(STORMS):
        directory = tmp_path / str(cycle)
        directory.mkdir()
        command = (*XLAUNCH, *TWO, "--grace", "200ms", "-q", "--", sys.executable, str(WITNESS))
        with Tree() as tree:
            with subprocess.Popen(
                (*command, str(directory), "--child"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=tree.environment,
                start_new_session=True,
            ) as run:
                # Before the keeper catches them these signals end any program: the storm starts when
                # there is a supervisor, or at the end.
                wait_until(lambda: children_of(run.pid) or run.poll() is not None, "a keeper")
                # A program that does not handle SIGUSR1 yet is ended by it: half the storms spare it.
                starting = dice.choice((HARMLESS[:2], HARMLESS))
                until = time.monotonic() + dice.uniform(0, 1)
                while time.monotonic() < until and run.poll() is None:
                    ready = all(is_ready(directory, index) for index in (0, 1))
                    run.send_signal(dice.choice(HARMLESS if ready else starting))
                    sent += 1
                    time.sleep(dice.uniform(0, 0.002))
                for _ in range(dice.randrange(1, 40)):
                    if run.poll() is not None:
                        break
                    run.send_signal(dice.choice((*ENDING, *HARMLESS)))
                    sent += 1
                    time.sleep(dice.uniform(0, 0.002))
                if run.poll() is None:
                    run.send_signal(signal.SIGTERM)
                errors = run.communicate(timeout=60)[1].decode()
            ended = (129, 130, 131, 137, 138, 140, 143, -signal.SIGINT)
            assert run.returncode in ended, run.returncode
            # A program's own complaints carry its number.
            assert not [ln for ln in errors.splitlines() if ln.startswith("Traceback")], errors
            counts[str(run.returncode)] += 1
            tree.ends()
    print(f"{STORMS} storms, {sent} signals; exit codes {dict(sorted(counts.items()))}")


@pytest.mark.parametrize("layout", [("--supervise",), TWO], ids=["one", "two"])
def test_rapid_ctrl_c_at_random_moments(layout: tuple[str, ...], dice: random.Random):
    """Whenever Ctrl-C is hit, and however often: the launch ends, by SIGINT or a kill, and all end."""
    counts: Counter[str] = Counter()
    for _ in range(CTRL_C_CYCLES // 2):
        command = [*XLAUNCH[1:], *layout, "-q", "sleep", "600"]
        with (
            Tree() as tree,
            pexpect.spawn(XLAUNCH[0], command, env=tree.environment, timeout=60) as child,
        ):
            time.sleep(dice.uniform(0, 0.4))
            presses = 0
            deadline = time.monotonic() + 60
            while child.isalive():
                assert time.monotonic() < deadline, f"alive after {presses} times Ctrl-C"
                with contextlib.suppress(OSError):  # the terminal has just gone
                    child.sendintr()
                presses += 1
                time.sleep(dice.choice((0, 0.001, 0.02, 0.3)))
            ended = child.exitstatus if child.signalstatus is None else -child.signalstatus
            counts[str(ended)] += 1
            # 1: Python itself was still starting.
            assert ended in (-signal.SIGINT, 130, 137, 1), ended
            tree.ends()
    print(f"{sum(counts.values())} launches ended by Ctrl-C: {dict(sorted(counts.items()))}")
