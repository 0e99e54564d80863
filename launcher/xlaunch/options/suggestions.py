# SPDX-License-Identifier: Apache-2.0
"""What the user may have meant by an option or a command that does not exist.

A table of known words answers first: those of numactl, taskset, mpirun, torchrun, docker and others.
Otherwise options and commands at most two typing mistakes away are named. A wrong guess is worse than none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from shutil import which

import click

from xlaunch.options.definitions import BY_KEY, COMMANDS
from xlaunch.text import did_you_mean

SYNONYMS = {
    "--instances": "np n-procs nproc num-procs processes replicas workers num-workers num-instances copies ntasks n-workers nprocs",
    "--ncores": "core cores cores-per-instance cores-per-process cpus-per-task threads nthreads nthreads-per-proc num-threads num-cores omp-num-threads omp-threads cpus-per-proc",
    "--cpus": "affinity cpu cpu-list cpu-set cpuset cpuset-cpus physcpubind taskset cpu-affinity cpu-bind cores-list C",
    "--numa-nodes": "cpunodebind node nodes numa numa-node nodeset socket sockets node-list nodelist N",
    "--numa-nodes LIST --mem-policy bind": "membind cpuset-mems mem-bind",
    "--mem-policy interleave": "interleave",
    "--mem-policy none": "no-numa disable-numa",
    "--mem-policy local": "localalloc",
    "--mem-policy preferred": "preferred",
    "--allocator": "malloc jemalloc tcmalloc mimalloc",
    "--omp": "openmp iomp libomp",
    "--thp": "huge-pages hugepages transparent-hugepages",
    "--smt": "hyperthreads hyperthreading ht logical use-hwthread-cpus",
    "--mode": "latency throughput",
    "--log-dir": "log logs logdir output output-dir output-filename redirects",
    "--tag": "tag-output prefix",
    "--on-failure restart": "restart restarts auto-restart",
    "--max-restarts": "retries max-retries",
    "--timeout": "time time-limit max-time",
    "--dry-run": "dryrun print-only show-plan noop",
    "--optimize bf16": "bf16 bfloat16 amp half autocast amx",
    "--optimize auto": "opt fast compile torch-compile inductor accelerate ipex optimise",
    "--gpus-per-instance": "gpu gpus num-gpus ngpus gpus-per-task gpus-per-node",
    "--nproc-per-node": "nproc-per-host ppn npernode ntasks-per-node",
    "--nnodes": "num-nodes num-machines hosts host-count",
    "--rendezvous": "rdzv-endpoint rdzv-id rdzv-backend rendezvous-endpoint",
    "--node-rank": "machine-rank",
    "--env": "e x environment setenv env-var export genv",
    "--report": "export-json save-report",
    "--pty": "it tty",
    "--quiet": "silent",
    "--explain": "why reasons",
    "--python": "interpreter python-bin",
    "--cache-dir": "cachedir",
    "--preset": "config config-file profile",
    "--budget": "trials n-trials max-trials iterations runs max-runs",
    "--goal maximize": "maximize",
    "--goal minimize": "minimize",
    "--metric": "objective",
    "--supervise": "supervisor init",
}  # fmt: skip
"""Options, and the unknown options for which they are suggested; each word without its dashes."""

_BINDS = "xlaunch binds by itself; leave it out, or choose with --ncores, --cpus or --place"
_TUNES = "the tuner is a program of its own: xtune PROGRAM"
_HYPERFINE = "xlaunch runs a program once; xtune PROGRAM measures and compares"
_CONTAINER = "it is an option of containers: write docker run ... IMAGE xlaunch PROGRAM"
_OF_PROGRAM = "if it is the program's, write it after the program"
ANSWERS = {
    _BINDS: "bind-to bind map-by rank-by cpu-set-policy report-bindings distribution pin-memory pin all",
    "INT8 needs data to calibrate on: xruntime.quantization, in the script; --optimize bf16 needs none": "int8 quantize quantization",
    "CPUs are slow in fp16; --optimize bf16 is the short type for them": "fp16 float16",
    _TUNES: "trials n-trials budget tune search study storage objective",
    _HYPERFINE: "warmup runs min-runs max-runs repeat benchmark-runs parameter-scan setup conclude",
    _CONTAINER: "rm volume v memory network name detach privileged cap-add security-opt image entrypoint shm-size",
    f"{_OF_PROGRAM}; for ports of their own: --substitute PROGRAM --port {{8000+index}}": "port ports bind-port",
    f"{_OF_PROGRAM}": "batch-size epochs lr model device cuda host data learning-rate checkpoint steps backend",
    "ranks and their hosts are mpirun's to start: mpirun ... xlaunch PROGRAM": "machinefile host-file mca genvall perhost",
    "with ranks on this host alone --nproc-per-node is enough": "standalone",
    "torchrun takes it: torchrun ... --no-python xlaunch PROGRAM": "monitor-interval start-method local-addr local-ranks-filter",
    "xlaunch and all that it starts stay in the foreground; use systemd-run or nohup": "daemon background daemonize",
    "commands are words without dashes: xlaunch ps": "list status",
    "text and JSON are printed by xlaunch topology": "hardware show",
}  # fmt: skip
"""What to say of options that have no counterpart."""

FIRST_WORDS = {
    "leave the word out: xlaunch PROGRAM": "run exec launch start execute",
    "'xlaunch ps' shows what runs": "list ls status jobs top",
    "Ctrl-C or SIGTERM ends a run; 'xlaunch ps' shows which there are": "stop kill",
    "'xtune PROGRAM' is the tuner": "tune search autotune xtune",
    "'xtune PROGRAM' measures and compares": "bench benchmark measure compare",
    "'xlaunch topology' shows the machine": "info show hardware machine numa cores cpus gpus lscpu lstopo topo",
    "'xlaunch --optimize auto PROGRAM' optimizes models": "optimize compile",
    "'xlaunch doctor' looks for what slows a program": "check diagnose lint verify",
    "'xlaunch env' prints what is set for a program": "environment variables",
    "settings are options, variables and files: 'xlaunch --help'": "config configure init set",
}
"""First words that are not programs here, and what does what they ask for."""


def _answer(table: dict[str, str], word: str) -> str | None:
    return next((said for said, words in table.items() if word in words.split()), None)


def command_hint(word: str, commands: Collection[str], program: str) -> str:
    """What to write for a first word that is no program and no command; empty if nothing is known."""
    if program == "xlaunch" and (said := _answer(FIRST_WORDS, word)) is not None:
        return f"; {said}"
    return did_you_mean(word, sorted(commands), count=1, form=f"'{program} {{}}'")


def option_hint(error: click.ClickException, arguments: Sequence[str]) -> str:
    """What to write for an option that is absent or has a wrong value; empty if nothing is known."""
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, arguments)
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        return _wrong_value(error.param, arguments)
    return ""


def _wrong_value(parameter: click.Option, arguments: Sequence[str]) -> str:
    """``--optimize hi.py``, ``-np 2``."""
    if "--instances" in parameter.opts and (short := {"-np", "-nproc"}.intersection(arguments)):
        return f"; {short.pop()} is written -n N"
    option = BY_KEY.get(parameter.name or "")
    words = () if option is None else option.kind.words
    for name, value in pairwise(arguments):
        is_program = value.endswith(".py") or os.path.isfile(value) or which(value) is not None
        if words and name in parameter.opts and is_program:
            return f"; write {name} {'auto' if 'auto' in words else '|'.join(words)} {value}"
    return ""


def _unknown_option(error: click.NoSuchOption, arguments: Sequence[str]) -> str:
    context = error.ctx
    parameters = [] if context is None else context.command.params
    offered = {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
    typed = error.option_name
    word = typed.lstrip("-").replace("_", "-")
    option = _answer(SYNONYMS, word)
    if (typed == "-c" or option == "--ncores") and re.search(
        rf"(?:^|\0){re.escape(typed)}[=\0]\d+[-,][\d,-]*(?:\0|$)", "\0".join(arguments)
    ):
        option = "--cpus"
    elif typed == "-c" and "--module" in offered:
        return "; to run code write 'python -c CODE' as the program"
    if option is not None and option.split()[0] in offered:
        return f"; did you mean {option}?"
    if "--module" in offered or "--instances" in offered:
        if word in COMMANDS:
            return f"; did you mean 'xlaunch {word}'?"
        if (said := _answer(ANSWERS, word)) is not None:
            return f"; {said}"
    # --force: only who knows it should use it.
    return did_you_mean(typed, sorted(offered - {"--force"})) if len(word) > 1 else ""
