# SPDX-License-Identifier: Apache-2.0
"""Launches beside others: free cores first, exclusive ones alone, ranks of a job on disjoint cores."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    PATIENCE_S,
    XLAUNCH,
    ask,
    clean_environment,
    program,
    run,
    xlaunch,
)
from tests.launcher.environment.made_up import environment
from tests.launcher.planning.shapes import make_machine

from xlaunch import leases
from xlaunch.claims import record
from xlaunch.environment.threads import HOOK_DIRECTORY as HOOK
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine.processes import start_ticks
from xlaunch.planning.request import HostRequest, Mode, Request
from xlaunch.shared_host import plan_beside_others

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

HOST = make_machine(packages=(8, 8), nodes=(8, 8), l3=(4, 4, 4, 4), smt=2)
SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.fixture
def others(tmp_path):
    """Start processes with a record of some cores."""
    with ExitStack() as started:

        def start(*cpus: int, **more: object) -> leases.Lease:
            process = started.enter_context(subprocess.Popen(["sleep", "1000"]))
            started.callback(process.kill)
            ticks = start_ticks(process.pid)
            assert ticks is not None
            lease = leases.Lease(process.pid, ticks, os.geteuid(), cpus, "train.py", **more)  # type: ignore[arg-type]
            return record(lease, str(tmp_path))

        yield start


def test_launches_of_one_instance_each_share_a_layout(others, tmp_path):
    for index in range(4):
        made = placed(tmp_path, instances=4, instance_index=(index,)).plan
        assert made.instances[0].cpus == tuple(range(4 * index, 4 * index + 4))
        others(*made.instances[0].cpus)


def placed(tmp_path: Path, *, exclusive: bool = False, wait_s: float = 0, **options: object):
    return plan_beside_others(
        Request.of("infer.py", **options),
        HOST,
        {},
        host=HostRequest(exclusive=exclusive, wait_s=wait_s or None),
        directory=str(tmp_path),
    )


def cpus(made) -> list[tuple[int, ...]]:
    return [instance.cpus for instance in made.plan.instances]


@pytest.mark.parametrize(
    ("taken", "options", "expected"),
    [
        ((), {"ncores": 4}, [(0, 1, 2, 3)]),
        ((0,), {"ncores": 4}, [(4, 5, 6, 7)]),
        ((16,), {"ncores": 4}, [(4, 5, 6, 7)]),  # a sibling of core 0
        ((0, 1), {"ncores": 2}, [(2, 3)]),
        ((0, 4, 8), {"ncores": 4}, [(12, 13, 14, 15)]),
        ((0,), {"ncores": 8}, [tuple(range(8, 16))]),
        ((2,), {"instances": 3, "ncores": 4}, [(4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]),
        (range(14), {"ncores": 4}, [(12, 13, 14, 15)]),  # some must be shared: as few as possible
        ((3,), {}, [tuple(range(16))]),
        ((12,), {"ncores": 6}, [tuple(range(6))]),
        # What was taken is never a reason for crossings or fewer cores.
        ((0, 8), {"ncores": 8}, [tuple(range(8))]),
        ((0, 8), {"instances": 4}, [tuple(range(n, n + 4)) for n in (0, 4, 8, 12)]),
    ],
)
def test_free_cores_are_preferred_among_equal_places(tmp_path, others, taken, options, expected):
    if taken:
        others(*taken)
    made = placed(tmp_path, **options)
    assert cpus(made) == expected
    shares = not {cpu for one in expected for cpu in one}.isdisjoint(taken)
    assert bool(made.notes) == shares
    assert all(note.startswith("shares cores with train.py (PID ") for note in made.notes)


def test_exclusive_takes_free_cores_or_names_who_has_them(golden: Golden, tmp_path, others):
    others(0, 1, 2)
    made = placed(tmp_path, exclusive=True, instances=3, ncores=4)
    assert {0, 1, 2, 16, 17, 18}.isdisjoint(cpu for one in cpus(made) for cpu in one)
    with pytest.raises(XLaunchError) as some_held:
        placed(tmp_path, exclusive=True, ncores=14)
    others(*range(3, 16))
    with pytest.raises(XLaunchError) as all_held:
        placed(tmp_path, exclusive=True, ncores=1)
    assert str(all_held.value).count("train.py (PID ") == 2
    golden(some_held.value, all_held.value, hide=r"(?<=PID )\d+|(?<=free; held by ).*")


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ((), [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]),
        ((0,), [(4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]),  # none is left for the last one
        ((20,), [(0, 1, 2, 3), (8, 9, 10, 11), (12, 13, 14, 15)]),  # a sibling of core 4
    ],
)
def test_exclusive_instances_of_one_layout_may_each_be_a_launch(tmp_path, others, taken, expected):
    if taken:
        others(*taken)
    layout = {"instances": 4, "ncores": 4}
    for index, cores in enumerate(expected):
        made = placed(tmp_path, exclusive=True, instance_index=(index,), **layout).plan
        assert [(it.index, it.cpus) for it in made.instances] == [(index, cores)]
        assert made.count == 4
        assert made.memory_share_bytes == placed(tmp_path, **layout).plan.memory_share_bytes
        others(*cores)
    if taken:
        with pytest.raises(XLaunchError, match=r"--exclusive: 1 instance x 4 cores needs 4 cores"):
            placed(tmp_path, exclusive=True, instance_index=(3,), **layout)


def test_an_exclusive_instance_of_a_layout_by_nodes_keeps_its_number(tmp_path, others):
    layout = {"mode": Mode.THROUGHPUT, "instance_index": (1,)}
    made = placed(tmp_path, exclusive=True, **layout).plan
    assert [(it.index, it.cpus) for it in made.instances] == [(1, tuple(range(8, 16)))]
    others(*range(8, 16))
    made = placed(tmp_path, exclusive=True, **layout).plan
    assert [(it.index, it.cpus) for it in made.instances] == [(1, tuple(range(8)))]


def test_what_fits_on_no_machine_is_not_waited_for(tmp_path, others):
    others(0)
    with pytest.raises(UsageError, match="17 cores"):
        placed(tmp_path, exclusive=True, wait_s=1000, ncores=17)


def test_exclusive_waits_for_the_end_of_others(tmp_path, others):
    lease = others(*range(16))
    os.kill(lease.pid, signal.SIGKILL)  # a zombie until it is waited for, which holds nothing
    made = placed(tmp_path, exclusive=True, wait_s=PATIENCE_S, ncores=16)
    assert cpus(made) == [tuple(range(16))]


def test_a_plan_shows_what_a_launch_would_do_and_records_nothing(tmp_path, others):
    others(0, 1, 2, 3)
    made = plan_beside_others(Request.of(ncores=4), HOST, {}, record=False, directory=str(tmp_path))
    assert cpus(made) == [(4, 5, 6, 7)]
    assert made.lease is None
    assert len(leases.read_leases(str(tmp_path), cpu_count=32)) == 1


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*XLAUNCH, *words],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("options", [[], ["--supervise"]])
def test_a_running_launch_is_seen_by_ps_and_avoided(golden: Golden, needs, options):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    everything = str(len(os.sched_getaffinity(0)))
    program = "import os, time; print(sorted(os.sched_getaffinity(0)), flush=True); time.sleep(100)"
    with start(*options, "--ncores", "1", "--", sys.executable, "-c", program) as first:
        assert first.stdout is not None
        used = json.loads(first.stdout.readline())
        found = json.loads(ask("ps", "--json").out)["launches"]
        (mine,) = [one for one in found if one["pid"] == first.pid]
        assert mine["cpus"] == used
        assert mine["program"] == Path(sys.executable).name
        assert mine["rss_bytes"] > 1 << 20
        titles, row = ask("ps").out.decode().splitlines()
        assert row.split()[0] == str(first.pid)
        second = xlaunch("--ncores", "1", "--", sys.executable, "-c", SHOW)
        assert json.loads(second.out) != used
        assert f"PID {first.pid}" in ask("plan", "--exclusive", "--ncores", everything).err
        first.terminate()
    golden(" ".join(titles.split()), ask("ps"))


@pytest.mark.machine
@pytest.mark.parametrize("option", ["subset=pid", "hidepid=2"])
def test_launches_are_shown_where_proc_shows_processes_only(needs, option):
    mount = f'mount -t proc -o {option} proc /proc && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", mount, "sh")
    possible = shutil.which("unshare") and run((*inside, "true")).code == 0
    needs(possible, "unshare (util-linux), as root, and Linux 5.8 for subset=pid")
    program = "import time; print(flush=True); time.sleep(100)"
    with start("--supervise", "--ncores", "1", "--", sys.executable, "-c", program) as launch:
        assert launch.stdout is not None
        launch.stdout.readline()
        shown = run((*inside, *XLAUNCH, "ps", "--json"))
        launch.terminate()
    (found,) = [it for it in json.loads(shown.out)["launches"] if it["pid"] == launch.pid]
    assert found["rss_bytes"] > 1 << 20
    for command in ("plan", "topology", "libraries"):
        assert run((*inside, *XLAUNCH, command)).code == 0


def test_two_exclusive_launches_run_the_instances_of_a_layout(needs):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    program = (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['XLAUNCH_INSTANCE_INDEX'], "
        "os.environ['XLAUNCH_INSTANCE_COUNT'], flush=True); input()"
    )
    words = ["--no-tag", "--exclusive", "--instances", "2", "--ncores", "1"]
    shown = []
    with ExitStack() as launches:
        for index in "01":
            launch = launches.enter_context(
                start(*words, "--instance-index", index, "--", sys.executable, "-c", program)
            )
            launches.callback(launch.kill)
            assert launch.stdout is not None
            shown.append(launch.stdout.readline().partition("] "))
    (first, _, first_place), (second, _, second_place) = shown
    assert (first_place, second_place) == ("0 2\n", "1 2\n")
    assert first != second


def test_the_last_metric_is_shown():
    program = "import time\nprint('12 images/s', flush=True)\ntime.sleep(100)"
    words = ["--metric", "images/s", "--", sys.executable, "-c", program]
    with start(*words) as launch:
        deadline = time.monotonic() + PATIENCE_S
        metric = None
        while metric is None and time.monotonic() < deadline:
            found = json.loads(ask("ps", "--json").out)["launches"]
            metric = next((one["metric"] for one in found if one["pid"] == launch.pid), None)
        assert metric == "images/s 12"
        launch.terminate()


# Ranks of real launchers.

PRINT_RANK = """\
import os, json
print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")]), flush=True)
"""


def shown_by_ranks(command: list[str | Path], **more: str) -> list[list[object]]:
    done = run(command, env={**clean_environment(), **more})
    assert done.code == 0, done.err
    return sorted(json.loads(line) for line in done.out.splitlines())


@pytest.mark.parametrize("bind", ["none", pytest.param("core", marks=pytest.mark.long)])
def test_ranks_of_mpirun_have_cores_of_their_own(tmp_path, needs, bind):
    needs(shutil.which("mpirun"), "mpirun (Debian: openmpi-bin)")
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    script = tmp_path / "rank.py"
    script.write_text(PRINT_RANK)
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", bind, "-n", "2"]
    (first, one), (second, other) = shown_by_ranks([*mpirun, *XLAUNCH, script])
    assert set(first).isdisjoint(second)  # type: ignore[arg-type]
    assert (one, other) == (None, None)  # the mask says it


@pytest.mark.long
def test_ranks_of_torchrun_have_cores_and_threads_of_their_own(tmp_path, needs):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    script = tmp_path / "rank.py"
    script.write_text(PRINT_RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    outside = [*torchrun, "--no-python", *XLAUNCH, script]
    half = len(os.sched_getaffinity(0)) // 2
    (first, one), (second, other) = shown_by_ranks(outside)
    assert set(first).isdisjoint(second)  # type: ignore[arg-type]
    assert (len(first), len(second)) == (half, half)  # type: ignore[arg-type]
    assert (one, other) == (None, None)  # not torchrun's 1: the mask says it
    assert {threads for _, threads in shown_by_ranks(outside, OMP_NUM_THREADS="3")} == {"3"}


def test_ranks_share_all_cores_where_they_are_not_looked_for(needs):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    for mode, disjoint in (("auto", True), ("off", False)):
        first, second = (
            json.loads(ask("plan", "--json", "--rank-mode", mode, env=rank).out)["instances"][0]
            for rank in (
                clean_environment(LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2", RANK=rank) for rank in "01"
            )
        )
        assert set(first["cpus"]).isdisjoint(second["cpus"]) is disjoint


def test_deepspeeds_ranks_divide_the_host_and_a_rank_of_unknown_size_is_a_warning(
    golden: Golden, needs
):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    cpus = [
        set(json.loads(xlaunch("-q", sys.executable, "-c", SHOW, env=env).out))
        for env in (clean_environment(LOCAL_RANK=rank, LOCAL_SIZE="2") for rank in "01")
    ]
    assert cpus[0].isdisjoint(cpus[1])
    alone = clean_environment(LOCAL_RANK="1")
    planned = ask("plan", "true", env=alone).out.decode()
    said = xlaunch("true", env=alone).err + planned + xlaunch("--explain", "true", env=alone).err
    golden([line for line in said.splitlines() if "LOCAL_RANK" in line])


@pytest.mark.long
def test_more_ranks_than_cores_run_with_one_thread_each(tmp_path, needs):
    needs(find_spec("torch"), "torch")
    script = tmp_path / "rank.py"
    script.write_text(PRINT_RANK)
    cpu = str(min(os.sched_getaffinity(0)))
    done = xlaunch("--nproc-per-node", "3", "--cpus", cpu, script)
    assert done.code == 0, done.err
    assert [json.loads(line) for line in done.out.splitlines()] == [
        [[int(cpu)], None]
    ] * 3  # the mask says it
    assert done.err.count("3 ranks under torchrun share 1 core") == 1


DDP = """\
import json, os, sys
place = json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")])
import torch, torch.distributed as dist
from torch import nn
torch.manual_seed(0)
images = torch.rand(512, 64)
labels = (images @ torch.randn(64, 10)).argmax(1)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
rank, size = 0, 1
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[rank::size]), labels[rank::size])
    loss.backward()
    optimizer.step()
with torch.no_grad():
    loss = nn.functional.cross_entropy(model(images), labels)
with open(f"{__file__}.{rank}", "w") as file:
    file.write(place)
if rank == 0:
    print(f"loss {loss:.4f}", flush=True)
if size > 1:
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_training_by_placed_ranks_gives_the_same_loss_on_cores_of_their_own(tmp_path, needs):
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    script = tmp_path / "train.py"
    script.write_text(DDP)
    alone = xlaunch(script)
    assert alone.code == 0, alone.err
    ranks = xlaunch("--nproc-per-node", "2", script)
    assert ranks.code == 0, ranks.err
    assert alone.out == ranks.out
    (first, one), (second, other) = (
        json.loads(Path(f"{script}.{rank}").read_text()) for rank in range(2)
    )
    assert set(first).isdisjoint(second)
    assert (one, other) == (None, None)  # the mask says it


@pytest.fixture
def two_hosts(needs):
    """Two network namespaces, with a cable between them; their names."""
    needs(shutil.which("ip"), "ip (Debian: iproute2)")
    needs(os.geteuid() == 0, "root")
    names = [f"xlaunch-{os.getpid()}-{host}" for host in "ab"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        ends = [["name", "cable", "netns", name] for name in names]
        subprocess.run(
            ["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]], check=True
        )
        for number, name in enumerate(names, 1):
            for words in (
                ["addr", "add", f"10.77.0.{number}/24", "dev", "cable"],
                ["link", "set", "cable", "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run(["ip", "-n", name, *words], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.full
@pytest.mark.machine
def test_ranks_of_two_hosts_train_together(tmp_path, two_hosts):
    script = tmp_path / "train.py"
    script.write_text(DDP)
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rendezvous", "10.77.0.1:29555"]
    environment = {**clean_environment(), "GLOO_SOCKET_IFNAME": "cable"}
    hosts = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *XLAUNCH, *words, "--node-rank", str(number), script],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number, name in enumerate(two_hosts)
    ]  # fmt: skip
    ended = [host.communicate(timeout=PATIENCE_S) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], ended
    assert [out for out, _ in ended] == [xlaunch(script).out.decode(), ""]


def test_contradictions_are_one_line(golden: Golden):
    said = []
    for words in (
        "--nnodes 2 --nproc-per-node 2", "--nnodes 2 --nproc-per-node 2 --rendezvous a:1", "--node-rank 0",
        "--nproc-per-node 2 --node-rank 1", "--nproc-per-node 2 --instances 2",
        "--nproc-per-node 2 --mode latency", "--nproc-per-node max", "--wait soon",
    ):  # fmt: skip
        said += [f"$ xlaunch {words} train.py", ask(*words.split(), "train.py").refused()]
    golden(said)


def test_program_that_does_not_exist_starts_no_ranks(golden: Golden):
    refused = ask("--nproc-per-node", "2", "no-such-program.py").refused(127)
    golden(refused)


OF_THIS_MACHINE = (
    r"(?<=command: )\S+ \S+(?=run_module)|\S+(?= -P -m xlaunch)|(?<=  )(?s:compiled code.*_DIR=).*"
)
"""Interpreters, and where compiled code is kept."""


def test_ranks_are_planned_as_torchrun_starts_them(golden: Golden):
    said = []
    for words in (
        "--nproc-per-node 2 --nnodes 3 --node-rank 1 --rendezvous h0:29400 --synthetic core:8 -m train --lr 1",
        "--nproc-per-node 2 --synthetic core:8",  # without a program
        "--nproc-per-node 5 --synthetic 'core:2 pu:2'",
        "--nproc-per-node 5 --synthetic 'core:2 pu:2' --ncores 2",
    ):
        done = ask("--dry-run", "--allocator", "glibc", *shlex.split(words))
        shown = done.out.decode().partition("\nprogram: ")[0]
        said += [f"$ xlaunch --dry-run {words} ({done.code})", shown or done.err]
    golden(*said, hide=OF_THIS_MACHINE)
    dry = ("--dry-run", "--json", "--synthetic", "core:2 pu:2", "--nproc-per-node", "5")
    instances = json.loads(ask(*dry).out)["instances"]
    assert [(it["cpus"], it["thread_count"]) for it in instances] == [
        ([cpu], 1) for cpu in (0, 1, 2, 3, 0)
    ]


def test_variables_of_ranks_are_shown(golden: Golden, tmp_path: Path):
    environment(tmp_path / "venv", "torch-2.13.0", python="3.13.1")
    python = tmp_path / "venv" / "bin" / "python"
    words = ("--nproc-per-node", "2", "--allocator", "glibc", "--synthetic", "core:8", python)
    env = clean_environment(OMP_NUM_THREADS="3", PYTHONPATH="/mine")
    shown = ask("--dry-run", "--explain", *words, "-c", "0", env=env).out.decode()
    golden(shown.replace(str(HOOK), "HOOK"), hide=OF_THIS_MACHINE)
    plan = json.loads(ask("--dry-run", "--json", *words, "-c", "0", env=env).out)
    own = [instance["environment"] for instance in plan["instances"]]
    assert [it["PYTHONPATH"] for it in own] == [f"{HOOK}:/mine"] * 2


@pytest.mark.long
def test_ranks_get_the_variables_that_are_shown(tmp_path: Path, needs):
    needs(find_spec("torch"), "torch")
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    script = tmp_path / "variables.py"
    script.write_text(
        "import json, os\n"
        "with open('/proc/self/environ') as own, open(__file__ + os.environ['RANK'], 'w') as file:\n"
        "    variables = dict([it.split('=', 1) for it in own.read().split('\\0') if it])\n"
        # glibc's loader has cut its own there, at the first colon.
        "    variables |= {n: os.environ[n] for n in ('GLIBC_TUNABLES',) if n in os.environ}\n"
        "    json.dump(variables, file)\n"
    )
    words = ("--nproc-per-node", "2", script)
    plan = json.loads(ask("--dry-run", "--json", *words).out)
    done = xlaunch(*words)
    assert done.code == 0, done.err
    for rank, instance in enumerate(plan["instances"]):
        found = json.loads(Path(f"{script}{rank}").read_text())
        listed = {it.partition("=")[0] for it in found["XLAUNCH_SET"].split(";")}
        shown = instance["environment"]
        assert {name: found.get(name) for name in {*listed, *shown}} == shown


def test_ranks_are_asked_for_by_torchruns_name_by_ipexruns_and_by_a_variable():
    dry = ("--dry-run", "--synthetic", "core:8", "-m", "train")
    shown = ask("--nproc-per-node", "2", *dry).out
    assert b"torch.distributed.run --nproc-per-node=2" in shown
    assert ask("--nprocs-per-node", "2", *dry).out == shown
    assert ask(*dry, env=clean_environment(XLAUNCH_OPT_NPROC_PER_NODE="2")).out == shown


REDUCE = """\
import os
os.environ |= {variables}
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
with open(f"{{__file__}}.{{dist.get_rank()}}", "w") as file:
    file.write(f"{{total.item()}} {{os.environ.get('XLAUNCH_THREADS_OF_RANKS')}}")
dist.destroy_process_group()
"""


def reduce_of(script: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Two ranks, started by `xlaunch --nproc-per-node`, which add up their numbers."""
    script.write_text(REDUCE.format(variables=variables))
    return subprocess.Popen(
        [*XLAUNCH, "--nproc-per-node", "2", script],
        env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def check_reduced(script: Path, job: subprocess.Popen[str]) -> None:
    out, err = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, out) == (0, ""), err
    assert [Path(f"{script}.{rank}").read_text() for rank in range(2)] == ["3 None"] * 2
    assert "OMP_NUM_THREADS" not in err, "neither torchrun's banner nor a note of ours"


@pytest.mark.long
@pytest.mark.machine
@pytest.mark.parametrize("port", ["29500", "12355"])
def test_ranks_whose_script_sets_master_port_meet_there(tmp_path: Path, needs, port: str):
    needs(find_spec("torch"), "torch")
    with socket.socket() as own:
        needs(own.connect_ex(("127.0.0.1", int(port))), f"port {port}, which is in use")
    script = tmp_path / "reduce.py"
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    check_reduced(script, reduce_of(script, variables))


@pytest.mark.long
def test_two_jobs_at_once_have_ports_of_their_own(tmp_path: Path, needs):
    needs(find_spec("torch"), "torch")
    scripts = [tmp_path / name for name in ("one.py", "other.py")]
    jobs = [reduce_of(script, {}) for script in scripts]
    for script, job in zip(scripts, jobs, strict=True):
        check_reduced(script, job)


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        ("", {}, ("1", "1", "1")),
        ("", {"OMP_NUM_THREADS": "7", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}, ("7", None, "0")),
        ("--nnodes 2 --node-rank 0 --rendezvous h0:29400", {}, ("1", "1", None)),
    ],
)
def test_what_torchrun_is_started_with(
    tmp_path: Path, words: str, given: dict[str, str], told: tuple[str | None, ...]
):
    python = program(tmp_path / "python", "#!/bin/sh\nexec env\n")
    cpu = str(min(os.sched_getaffinity(0)))
    ranks = ["--nproc-per-node", "1", *words.split(), "--cpus", cpu, "--python", python]
    done = xlaunch(*ranks, "-m", "train", env=clean_environment(**given))
    assert done.code == 0, done.err
    variables = dict(line.partition("=")[::2] for line in done.out.decode().splitlines())
    names = ("OMP_NUM_THREADS", "XLAUNCH_THREADS_OF_RANKS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    assert tuple(variables.get(name) for name in names) == told
