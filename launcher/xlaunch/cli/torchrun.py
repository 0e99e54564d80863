# SPDX-License-Identifier: Apache-2.0
"""`xlaunch --nproc-per-node P train.py`: torchrun starts the ranks, and `xlaunch` places each of them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from xlaunch.children import script
from xlaunch.console import say
from xlaunch.environment import Environment, prepare_environment
from xlaunch.environment.program import find_interpreter, resolve_program
from xlaunch.environment.variables import passed_on
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.machine import machine_of
from xlaunch.machine.topology import Machine
from xlaunch.options.definitions import OF_TORCHRUN
from xlaunch.options.migration import split
from xlaunch.options.precedence import ResolvedOptions, host_request_from, variable_of
from xlaunch.planning.planner import plan
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.ranks import Rank, RankShare, share_of_rank
from xlaunch.planning.request import LayoutRequest, Mode, RankMode, Request
from xlaunch.shared_host import THREADS_OF_RANKS, PreparedLaunch

OWN = (*OF_TORCHRUN, "dry-run", "json", "explain")
"""Options that ranks do not get."""


def run_torchrun(request: Request, resolved: ResolvedOptions, typed: Sequence[str]) -> None:
    """Replace this process by torchrun, or with --dry-run print its command and the plan of all ranks.

    `typed`: the command line. Its options go to every rank. Raises `XLaunchError` for options that
    contradict each other, and for a program that does not exist.
    """
    options = resolved.values
    host = host_request_from(options)
    with machine_of(host.sysroot, host.synthetic) as machine:
        pass  # the values stay; a capture that comes through a pipe can be read only once
    counts_nodes = "nproc_per_node" not in options
    if counts_nodes:
        options["nproc_per_node"] = _count_of_nodes(request, machine)
    interpreter, _ = find_interpreter(request.program.python, os.environ)
    command = torchrun_command(interpreter, options, typed)
    if options.get("dry_run"):
        from xlaunch.cli.plan import prepare_unrecorded, print_plan, say_untried

        crowd = _crowd_of_ranks(request, machine, options["nproc_per_node"])
        layout = request.layout._replace(
            instances=options["nproc_per_node"],
            near_gpus=request.layout.gpus_per_instance is None,
            oversubscribe=bool(crowd),
        )
        without_program = request._replace(layout=layout).replace(words=(), module=False)
        if host.is_this_machine:
            prepared = prepare_unrecorded(without_program, resolved)
        else:
            say_untried(resolved)
            plan_of_ranks = plan(layout, machine)
            prepared = PreparedLaunch(without_program, machine, plan_of_ranks, None, os.environ)
        if crowd:
            plan_of_ranks = prepared.plan._replace(instances=crowd[0], warnings=(crowd[1],))
            prepared = prepared._replace(plan=plan_of_ranks)
        if request.program.words:
            prepared = prepared._replace(
                environment=_environment_of_ranks(prepared.plan, request, resolved)
            )
        if counts_nodes:
            _say_nodes(options)
        if not options.get("json"):
            click.echo(f"command: {shlex.join(command)}")
        print_plan(prepared, resolved)
        return
    resolve_program(request.program, os.environ)
    # All ranks have as many threads as the first. Raises what it would raise.
    count, mode = options["nproc_per_node"], options.get("rank_mode", RankMode.AUTO)
    if count > 1 and mode in (RankMode.AUTO, RankMode.TORCHRUN):
        request, machine, _ = _share_of(0, count, request, machine)
    threads = plan(request.layout, machine).instances[0].threads
    if counts_nodes:
        _say_nodes(options)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(interpreter, command, _environment_of_torchrun(options, threads))
    except OSError as error:
        raise XLaunchError(f"{interpreter!r} cannot be executed: {error.strerror}") from None


def _say_nodes(options: Mapping[str, Any]) -> None:
    if not options.get("quiet"):
        ranks = f"--nproc-per-node {options['nproc_per_node']}"
        say(f"note: {ranks}: one rank for each NUMA node, as ipexrun")


def _count_of_nodes(request: Request, machine: Machine) -> int:
    """The NUMA nodes that hold cores to run on: as many ranks as ipexrun starts. Raises `UsageError`."""
    layout = request.layout
    chosen = LayoutRequest(
        mode=Mode.THROUGHPUT, cpus=layout.cpus, numa_nodes=layout.numa_nodes, ecores=layout.ecores
    )
    return plan(chosen, machine).count


def _share_of(local: int, count: int, request: Request, machine: Machine) -> RankShare:
    rank = Rank(RankMode.TORCHRUN, local, count, local, "LOCAL_RANK")
    return share_of_rank(request, machine, rank, launcher_cpus=None)


def _crowd_of_ranks(
    request: Request, machine: Machine, count: int
) -> tuple[tuple[Instance, ...], str] | None:
    """The instances of more ranks than cores, with the first one's warning; None with enough cores."""
    warning = _share_of(0, count, request, machine).warning if count > 1 else None
    if warning is None:
        return None
    shares = [_share_of(local, count, request, machine) for local in range(count)]
    instances = [plan(share.request.layout, share.machine).instances[0] for share in shares]
    return tuple([own._replace(index=index) for index, own in enumerate(instances)]), warning


def _environment_of_ranks(
    plan_of_ranks: Plan, request: Request, resolved: ResolvedOptions
) -> Environment:
    """The environment of each instance of a plan, which is a rank and a launch of its own."""
    inherited = {**os.environ, "LOCAL_RANK": "0"}  # torchrun sets it, with each rank's own number
    program, run, untried = request.program, request.run, resolved.chosen_by_files()
    ranks = []
    for instance in plan_of_ranks.instances:
        own = (instance._replace(index=0),)
        alone = plan_of_ranks._replace(instances=own, count=1, layout=request.layout)
        ranks.append(prepare_environment(alone, program, inherited, run=run, untried=untried))
    return ranks[0]._replace(
        programs=tuple([rank.programs[0] for rank in ranks]),
        settings=tuple([rank.settings[0] for rank in ranks]),
        variables=tuple([rank.variables[0] for rank in ranks]),
    )


def torchrun_command(
    interpreter: str, options: Mapping[str, Any], typed: Sequence[str]
) -> list[str]:
    """The command that starts the ranks of this host. Raises `UsageError`."""
    count, hosts = options["nproc_per_node"], options.get("nnodes", 1)
    if options.get("instances", 1) != 1 or "mode" in options:
        name = "--mode" if "mode" in options else "--instances"
        raise UsageError(f"--nproc-per-node starts one instance for each rank: drop {name}")
    where = ["--standalone"]
    place, rank = options.get("rendezvous"), options.get("node_rank")
    if hosts == 1 and rank:
        raise UsageError(f"--node-rank {rank} is the number of one of several hosts: add --nnodes")
    if hosts > 1:
        address, _, port = (place or "").rpartition(":")
        if not address or not port.isdecimal():
            raise UsageError(
                "--nnodes needs --rendezvous HOST:PORT of host 0, the same on all hosts"
            )
        if rank is None or rank >= hosts:
            raise UsageError(
                f"--nnodes {hosts} needs --node-rank, the number of this host: 0 to {hosts - 1}"
            )
        where = [f"--nnodes={hosts}", f"--node-rank={rank}"]
        where += [f"--master-addr={address}", f"--master-port={port}"]
    given, program = split(typed)
    kept = [word for name, _, words in given if name not in OWN for word in words]
    rank_command = [sys.executable, "-P", "-m", "xlaunch", *kept, *program]
    torchrun = (interpreter, script("run_module"), "torch.distributed.run")
    return [*torchrun, f"--nproc-per-node={count}", *where, "--no-python", *rank_command]


def _environment_of_torchrun(options: Mapping[str, Any], threads: int) -> dict[str, str]:
    """The variables that torchrun starts with; those that the user has set are kept."""
    # A rank that read these variables would start torchrun again.
    own = set(map(variable_of, OWN))
    environment = {name: value for name, value in passed_on(os.environ).items() if name not in own}
    if "OMP_NUM_THREADS" not in environment:
        # Otherwise torchrun sets 1, with a warning. Ranks choose again, and see who set it.
        environment |= {"OMP_NUM_THREADS": str(threads), THREADS_OF_RANKS: str(threads)}
    if options.get("nnodes", 1) == 1:
        # Ranks would join the store of torchrun's agent, whatever MASTER_PORT their script sets: at
        # another port nobody listens, and they wait for ever.
        environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return environment
