# SPDX-License-Identifier: Apache-2.0
"""Command lines of ipexrun and of torch's run_cpu do what they did, and a note shows today's words."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, program, xlaunch
from tests.libraries import find_library

from xlaunch.machine.synthetic import parse_levels, write_tree
from xlaunch.options.definitions import BY_KEY
from xlaunch.options.migration import OLD


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The option for a machine of two packages, whose many files are written once."""
    directory = str(tmp_path_factory.mktemp("machine"))
    write_tree(parse_levels("package:2 node:1 core:28 pu:2"), directory)
    return ["--sysroot", directory]


TODAY = [
    ("--ninstances 2 --ncores-per-instance 4", "--instances 2 --ncores 4"),
    ("--ninstances=2 --ncores_per_instance=4", "--instances 2 --ncores 4"),
    ("--ncores-per-instance 4", "--instances max --ncores 4"),
    ("-n 3 --ncore_per_instance 4", "-n 3 --ncores 4"),
    ("--ninstances 0 --ncores-per-instance -1", ""),
    ("--ninstances 2 --instance-idx -1", "--instances 2"),
    ("--ninstances 2 --rank 0", "--instances 2 --instance-index 0"),
    ("--latency-mode", "--mode latency"),
    ("--throughput_mode", "--mode throughput"),
    ("--multi_instance", "--mode throughput"),
    ("--multi-instance --ninstances 2", "--instances 2"),
    ("--nodes-list 0-1", "--numa-nodes 0-1"),
    ("--node_id -1", ""),
    ("--node-id 0", "--numa-nodes 0"),
    ("--core-list '0, 1, 3'", "--cpus 0,1,3"),
    ("--cores-list 0-3 --nodes-list 1", "--cpus 0-3"),
    ("--use-logical-cores --ninstances 2", "--instances 2 --smt"),
    ("--use_logical_core --ninstances 1 --ncores-per-instance 8", "--instances 1 --ncores 4 --smt"),
    ("--use-e-cores", "--ecores include"),
    ("--strategy scatter", "--place scatter"),
    ("--strategy close --ninstances 1", "--instances 1 --place compact"),
    ("--ninstances 3 --bind-numa-node", "--instances 3 --ncores 14"),
    ("--ninstances 7 --skip_cross_node_cores --use-logical-cores", "--instances 7 --ncores 7 --smt"),
    ("--ninstances 3 --bind-numa-node --nodes-list 1", "--instances 3 --numa-nodes 1"),
    ("--ninstances 1 --bind-numa-node", "--instances 1 --ncores 28"),
    ("--bind-numa-node", "--instances 1 --ncores 28"),
    ("--skip-cross-node-cores --ncores-per-instance 10", "--instances 4 --ncores 10"),
    ("--bind-numa-node --ncores-per-instance 14", "--instances max --ncores 14"),
    ("--bind-numa-node --ninstances 2 --ncores-per-instance 28", "--instances 2 --ncores 28"),
    ("--bind-numa-node -n 3", "--instances 3 --ncores 14"),
    ("--bind-numa-node --ncores 10", "--instances 4 --ncores 10"),
    ("--bind-numa-node --latency-mode", "--mode latency"),
    ("--bind-numa-node --latency-mode --cores-list 1-54", "--instances 12 --ncores 4 --cpus 1-54"),
    ("--bind-numa-node --throughput-mode", "--mode throughput"),
    ("--bind-numa-node --ninstances 2 --cores-list 20-47", "--instances 2 --ncores 10 --cpus 20-47"),
    ("--bind-numa-node --ncores-per-instance 20 --use-logical-cores", "--instances 4 --ncores 10 --smt"),
    ("--cores-list 0-27 --use-logical-cores --ncores-per-instance 4",
     "--instances max --ncores 4 --cpus 0-27 --smt"),
    ("--cores-list 0-3,56-59 --use-logical-cores --ncores-per-instance 4",
     "--instances max --ncores 2 --cpus 0-3,56-59 --smt"),
    ("--core-list 0,1,56,57 --ncores-per-instance 2", "--instances max --ncores 1 --cpus 0,1,56,57 --smt"),
    ("--core-list 0,1,2,3,4 --ninstances 3 --ncores-per-instance 2", "--instances 2 --ncores 2 --cpus 0,1,2,3,4"),
    ("--core-list 0,1,2,3 --ncores-per-instance 2 --latency-mode", "--instances max --ncores 2 --cpus 0,1,2,3"),
    ("--ninstances 4 --ncores-per-instance -1", "--instances 4"),
    ("--latency-mode --use-logical-cores", "--mode latency"),
    ("--throughput-mode --node-id 0", "--mode throughput"),
    ("--ninstances 2 --enable-jemalloc --memory-allocator jemalloc", "--instances 2 --allocator jemalloc"),
    ("ipexrun --ninstances 2", "--instances 2"),
    ("ipexrun cpu", ""),
    ("cpu --latency-mode", "--mode latency"),
    ("--memory-allocator default", "--allocator glibc"),
    ("--memory-allocator jemalloc --benchmark", "--allocator jemalloc"),
    ("--enable_tcmalloc", "--allocator tcmalloc"),
    ("--use-default-allocator --disable_iomp", "--allocator glibc --omp gnu"),
    ("--omp-runtime auto --multi-task-manager taskset", "--omp auto"),
    ("--disable-numactl --disable-taskset", ""),
    ("--log_path logs --log-file-prefix run", "--log-dir logs/run"),
    ("--log-dir logs --log_file_prefix run", "--log-dir logs/run"),
    ("--auto-ipex", "--optimize fp32"),
    ("--auto-ipex --dtype bfloat16 --auto-ipex-verbose", "--optimize bf16"),
    ("--ninstances 1 --timeout 5m --env A=1", "--timeout 5m --env A=1 --instances 1"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "today"), TODAY)
def test_old_words_do_what_todays_do(
    old: str,
    today: str,
    machine: list[str],
    tmp_path: Path,
    needs: Callable[[object, str], None],
) -> None:
    for name in {"jemalloc", "tcmalloc"}.intersection(today.split()):
        needs(find_library(name, None, os.environ), f"{name} of Debian")
    script = tmp_path / "infer.py"
    script.touch()
    asked = ["plan", *machine, "--json"]
    if "--allocator" not in today:
        asked += ["--allocator", "glibc"]
    program = [str(script), "--ninstances", "9"]
    done = ask(*asked, *shlex.split(old), *program)
    assert done.code == 0, done.err
    shown = f"today this is: xlaunch {shlex.join(asked)} "
    note = next(line for line in done.err.splitlines() if "today this is" in line)
    assert note == f"xlaunch: note: {shown}{today} {shlex.join(program)}".replace("  ", " ")
    assert json.loads(done.out) == json.loads(ask(*asked, *shlex.split(today), *program).out)


def test_what_can_mean_nothing_says_what_to_use(golden: Golden, machine: list[str]) -> None:
    said = []
    for old in (
        "--ccl-worker-count 4", "--hostfile hosts", "--convert-fp64-to-fp32", "--disable-ipex-graph-mode",
        "--ninstances", "--ninstances many", "--auto-ipex --dtype int8", "--log-file-prefix run",
        "--use-logical-cores --ncores-per-instance 3",
        "--use-logical-cores --cores-list 0-3,56 --ncores-per-instance 2",
        "--bind-numa-node --ninstances 3 --ncores-per-instance 20",
        "--skip_cross_node_cores --ncores-per-instance 40",
        "--bind-numa-node --ninstances 60 --ncores-per-instance 1", "--ninstances 3 --ncores-per-instance -1",
        "--ninstances 3 --bind-numa-node --ncores-per-instance -1", "--latency-mode --throughput-mode",
        "--multi-instance --latency-mode", "--latency-mode --mode throughput",
        "--enable-tcmalloc --enable-jemalloc", "--memory-allocator jemalloc --use-default-allocator",
        "--enable_tcmalloc --allocator jemalloc", "--disable-iomp --omp-runtime intel",
        "--ninstances 2 --instances 3", "--nodes-list 0 --node-id 1", "--bind-numa-node --ecores some",
        "--bind-numa-node --ncores 0", "--core-list 0,1 --ninstances 1 --ncores-per-instance 00",
        "--bind-numa-node --gpus-per-instance 1", "--use-logical-cores --no-smt", "xpu infer.py",
        "ipexrun xpu infer.py",
    ):  # fmt: skip
        said += [f"$ xlaunch plan {old}", ask("plan", *machine, *shlex.split(old)).refused()]
    golden(said)


def test_ranks_of_the_old_launchers_are_torchruns_now(golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    old = ["--distributed", "--nprocs_per_node", "2", "--nnodes", "2", "--node-rank", "0"]
    old += ["--ncores_per_instance", "1"]
    old += ["--master_addr", "h0", "--allocator", "glibc", "--dry-run", "--synthetic", "core:4"]
    done = ask(*old, "train.py", cwd=tmp_path)
    assert done.code == 0, done.err
    (command,) = [line for line in done.out.decode().splitlines() if line.startswith("command: ")]
    golden(command.partition(" torch.distributed.run ")[2].partition(" --no-python ")[0])
    # A rank with an option for torchrun would start torchrun again.
    _, _, of_rank = command.partition(" -m xlaunch ")
    kept = ["--allocator", "glibc", "--synthetic", "core:4", "--ncores", "1", "train.py"]
    assert shlex.split(of_rank) == kept


def test_hosts_without_ranks_get_one_for_each_numa_node(machine: list[str]) -> None:
    dry = ["--dry-run", "--allocator", "glibc", *machine]
    two = ask(*dry, "--nproc-per-node", "2", "--nnodes", "1", "true")
    note = "xlaunch: note: --nproc-per-node 2: one rank for each NUMA node, as ipexrun"
    for old in (["--nnodes", "1"], ["ipexrun", "cpu", "--nnodes", "1"], ["--distributed"]):
        done = ask(*dry, *old, "true")
        assert done.out == two.out
        assert note in done.err.splitlines()
    assert "--nproc-per-node 1:" in ask(*dry, "--nnodes", "1", "--numa-nodes", "1", "true").err
    assert ask(*dry, "-q", "--nnodes", "1", "true").err == ""


def test_sizes_that_variables_set_count_too(machine: list[str]) -> None:
    def note(old: str, **variables: str) -> str:
        env = clean_environment(**{f"XLAUNCH_OPT_{name}": it for name, it in variables.items()})
        return ask("plan", *machine, *old.split(), env=env).err.splitlines()[0]

    assert note("--bind-numa-node", INSTANCES="3").endswith("--instances 3 --ncores 14")
    assert note("--bind-numa-node", NCORES="10").endswith("--instances 4 --ncores 10")
    assert note("--ncores-per-instance 4", INSTANCES="2").endswith(" --ncores 4")


def test_ranks_that_may_not_straddle_numa_nodes(golden: Golden, machine: list[str]) -> None:
    dry = ["--dry-run", "--allocator", "glibc", *machine, "--bind-numa-node", "--nprocs-per-node"]
    assert ask(*dry, "4", "true").code == 0
    refused = ask(*dry, "3", "true").refused()
    golden(refused)


def test_programs_with_the_names_of_ipexrun_are_run(tmp_path: Path) -> None:
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    for name in ("ipexrun", "cpu", "xpu"):
        program(tmp_path / name, f"#!/bin/sh\necho {name} $*\n")
        done = xlaunch(name, "xpu", env=env)
        assert (done.code, done.out) == (0, f"{name} xpu\n".encode())


def test_what_is_not_needed_is_named(golden: Golden, machine: list[str]) -> None:
    assert ask("plan", *machine, "--disable_numactl", "-q").err == ""
    said = []
    for old in (
        "--latency_mode --ninstances 3", "--ninstances 3 --bind-numa-node", "--bind-numa-node",
        "--bind-numa-node --ncores-per-instance 10", "--core-list 0,1,2 --ninstances 2 --ncores-per-instance 2",
        "--latency-mode --use-logical-cores", "--ninstances 1 --master-port 29500",
    ):  # fmt: skip
        said += [f"$ xlaunch plan {old}", ask("plan", *machine, *old.split()).err]
    golden(*said, hide=machine[1])


def test_every_old_option_becomes_one_of_today_or_says_why() -> None:
    for name, old in OLD.items():
        assert old.new.replace("-", "_") in BY_KEY or not old.new, name
    page = (Path(__file__).parents[3] / "docs/migration.md").read_text().replace("_", "-")
    alike = {"core-list", "disable-ipex-graph-mode"}
    assert [name for name in OLD.keys() - alike if f"--{name}" not in page] == []
    help_text = ask("--help").out.decode()
    assert not any(f"--{name} " in help_text for name in OLD.keys() - {"log-dir"})


def test_words_of_other_launchers_for_allocator_and_openmp(machine: list[str]) -> None:
    asked = ["plan", "--json", *machine]
    default = ask(*asked, "--allocator", "default", "--omp", "default", "--", "true")
    assert default.out == ask(*asked, "--allocator", "glibc", "--omp", "gnu", "--", "true").out


def test_old_words_run_a_program(golden: Golden, tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text("import os\nprint(sorted(os.sched_getaffinity(0)))\n")
    done = xlaunch("--ninstances", "1", "--ncores_per_instance", "1", script)
    assert done.code == 0
    assert len(json.loads(done.out)) == 1
    golden(done.err)


def test_options_after_a_script_that_does_not_know_them_are_pointed_out(
    golden: Golden, tmp_path: Path
) -> None:
    script = tmp_path / "infer.py"
    script.write_text("print('--report')\n")
    words = [script, "--instances", "2", "--report=f", "--batch", "3"]
    done = xlaunch(*words)
    golden(done.err)
    assert "note" not in xlaunch("-q", *words).err
    script.write_text("print('--instances', '--report')\n")
    assert "note" not in xlaunch(*words).err


def test_a_command_that_binds_again_is_named(
    golden: Golden, needs: Callable[[object, str], None]
) -> None:
    needs(shutil.which("taskset"), "taskset (Debian: util-linux)")
    cpu = str(min(os.sched_getaffinity(0)))
    done = xlaunch("taskset", "-c", cpu, "true")
    assert done.code == 0, done.err
    golden(done.err)
    assert "binds again" not in xlaunch("--cpus", cpu, "true").err
