# SPDX-License-Identifier: Apache-2.0
"""Real Slurm on this machine: ranks of srun, batch scripts, and a cluster that confines no job."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cli.commands import XLAUNCH, Done, clean_environment, run
from tests.launcher.launching import wait_until
from tests.launcher.other_user import AS_NOBODY, NOBODY, open_directory, opened

pytestmark = [pytest.mark.full, pytest.mark.machine]

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
{node} NodeAddr=127.0.0.1
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=NO
"""
PROGRAM = """\
import json, os
# As libraries read it; the start-up hook takes it out of os.environ.
with open("/proc/self/environ") as own:
    given = dict(it.split("=", 1) for it in own.read().split("\\0") if it)
threads = given.get("OMP_NUM_THREADS")
print(json.dumps([sorted(os.sched_getaffinity(0)), threads]), flush=True)
"""


class Cluster:
    """A cluster of this machine, with its daemons and its files in one directory."""

    def __init__(self, place: Path, words: tuple[str, ...] = ()) -> None:
        """`words`: the start of a command as another user than the cluster's."""
        self.place = place
        self.words = words
        self.home = place / ("home-of-nobody" if words else "home")
        self.home.mkdir()
        if words:
            os.chown(self.home, NOBODY, NOBODY)
        self.program = place / "program.py"

    def run(self, *words: str | Path) -> Done:
        """Run a command in the directory of its user."""
        variables = {
            "SLURM_CONF": str(self.place / "slurm.conf"),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XLAUNCH_RECORDS_DIR": str(self.home),
        }
        return run((*self.words, *words), env=clean_environment(**variables), cwd=self.home)

    def ranks(self, *words: str | Path) -> list[list[Any]]:
        """The CPUs and the number of threads of each rank; nothing may be on standard error."""
        done = self.run(*words)
        said = [line for line in done.err.splitlines() if not line.startswith("srun: job ")]
        assert (done.code, said) == (0, [])
        return sorted(json.loads(line) for line in done.out.splitlines())


@contextmanager
def start_cluster(
    place: Path, needs: Callable[[object, str], None], task_plugin: str
) -> Iterator[None]:
    """Start the daemons in the foreground; end them, and no others, after the block."""
    needs(
        all(map(shutil.which, ("munged", "slurmctld", "slurmd", "srun"))),
        "Slurm (Debian: slurm-wlm, munge)",
    )
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = (one.getsockname()[1], other.getsockname()[1])
    for name in ("state", "spool"):
        (place / name).mkdir()
    (place / "program.py").write_text(PROGRAM)
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o600)
    configuration = place / "slurm.conf"
    environment = clean_environment(SLURM_CONF=str(configuration))
    found = subprocess.run(["slurmd", "-C"], check=True, capture_output=True, text=True)
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            node=found.stdout.splitlines()[0],
            place=place,
            ports=ports,
            task_plugin=task_plugin,
            user=pwd.getpwuid(os.geteuid()).pw_name,
        )
    )
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
    options = [f"--{name}={place}/munge.{file}" for name, file in files.items()]
    munged = ["munged", "--foreground", f"--seed-file={place}/munge.seed", *options]
    # Ranks are its children: those of another user must reach the interpreter.
    slurmd = [*(opened(place) if os.geteuid() == 0 else ()), "slurmd", "-D"]
    with ExitStack() as daemons:
        for command in (munged, ["slurmctld", "-D", "-i"], slurmd):
            log = daemons.enter_context((place / f"{command[0]}.out").open("wb"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            daemons.callback(daemon.wait)
            daemons.callback(daemon.terminate)
            if command is munged:
                wait_until((place / "munge.socket").exists, "munged")

        def is_idle() -> bool:
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, check=False
            )
            return state.stdout.strip() == b"idle"

        wait_until(is_idle, "the node")
        yield


@pytest.fixture(scope="module")
def place(needs: Callable[[object, str], None]) -> Iterator[Path]:
    """The directory of a cluster that binds ranks to CPUs."""
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    for directory in open_directory():
        with start_cluster(directory, needs, "task/affinity"):
            yield directory


@pytest.fixture(scope="module", params=["own", "nobody"])
def cluster(
    request: pytest.FixtureRequest, needs: Callable[[object, str], None], place: Path
) -> Cluster:
    """As its own user; and as another one, who cannot see what the daemons were started with."""
    if request.param == "own":
        return Cluster(place)
    needs(os.geteuid() == 0 and shutil.which("setpriv"), "root, and setpriv (util-linux)")
    return Cluster(place, AS_NOBODY)


@pytest.mark.parametrize(
    ("by_srun", "options"),
    [
        ([], []),
        (["--cpu-bind=cores", "--cpus-per-task=1"], []),
        (["--cpu-bind=rank"], []),
        (["--cpu-bind=none"], ["--rank-mode", "slurm"]),
        (["--cpu-bind=none"], ["--exclusive"]),
    ],
    ids=["default", "cores", "rank", "none", "exclusive"],
)
def test_each_rank_of_srun_has_cores_of_its_own(cluster, by_srun, options):
    srun = ["srun", "-n", "2", *by_srun]
    (first, one), (second, other) = cluster.ranks(*srun, *XLAUNCH, *options, cluster.program)
    assert first
    assert second
    assert set(first).isdisjoint(second)
    assert (one, other) == (None, None)  # the masks say it


def test_a_program_that_starts_ranks_by_srun_gets_no_thread_count(cluster):
    python = [sys.executable, cluster.program]
    (first, one), (second, other) = cluster.ranks(*XLAUNCH, "srun", "-n", "2", *python)
    assert set(first).isdisjoint(second)
    assert (one, other) == (None, None)


def test_srun_holds_no_cores_while_its_ranks_do(cluster):
    inner = [*XLAUNCH, cluster.program]
    found = cluster.ranks(*XLAUNCH, "srun", "-n", "2", *inner)
    assert [threads for _, threads in found] == [None, None]  # the masks say it


def test_instances_of_a_batch_script_divide_its_cpus(cluster):
    words = [*XLAUNCH, "-q", "--no-tag", "--instances", "2", cluster.program]
    script = cluster.home / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {' '.join(map(str, words))}\n")
    output = cluster.home / "job.out"
    done = cluster.run(
        *("sbatch", "--wait", "--ntasks=1", "--cpus-per-task=2", f"--output={output}", script)
    )
    text = output.read_text()
    assert done.code == 0, text
    (first, one), (second, other) = [json.loads(line) for line in text.splitlines()]
    assert set(first).isdisjoint(second)
    assert (one, other) == (None, None)  # the masks say it


def test_torchrun_within_a_step(cluster):
    srun = ["srun", "-n", "1", "--cpus-per-task=2"]
    done = cluster.run(*srun, *XLAUNCH, "--nproc-per-node", "2", cluster.program)
    assert done.code == 0, done.err
    (first, one), (second, other) = [json.loads(line) for line in done.out.splitlines()]
    assert set(first).isdisjoint(second)
    assert (one, other) == (None, None)  # the masks say it


def test_a_job_that_is_not_confined_has_threads_for_its_cpus_and_is_not_bound(needs):
    everything = sorted(os.sched_getaffinity(0))
    needs(len(everything) >= 2, "two CPUs")
    for place in open_directory():
        with start_cluster(place, needs, "task/none"):
            cluster = Cluster(place)
            program = cluster.program
            assert cluster.ranks("srun", "-n", "1", *XLAUNCH, program) == [[everything, "1"]]
