# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device`: whether tokens of language models come as fast as memory allows.

A step that decodes one token of each sequence reads all weights, so it takes at least their bytes divided by the
speed at which the program's CPUs read memory. The probe in the program (`decode_probe`) says what its steps took;
the speed of memory is measured once the program has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from xlaunch.children import PATH
from xlaunch.doctor.checks.findings import Facts
from xlaunch.doctor.checks.memory import room_bytes
from xlaunch.doctor.decode_probe import DIRECTORY, VARIABLE
from xlaunch.environment.program import resolve_program
from xlaunch.environment.threads import hook_reaches
from xlaunch.errors import WarningKind, kind_of
from xlaunch.machine.topology import Machine
from xlaunch.machine.tree import Tree
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import Request
from xlaunch.text import counted

MIN_SHARE: Final = 0.5
"""Of the speed that memory allows; slower decoding is a finding."""
MIN_WEIGHT_BYTES: Final = 128 << 20
"""Smaller models fit caches, and the rest of a step takes as long as reading them."""
MAX_BATCH: Final = 8
"""More sequences are limited by computing, not by memory."""
LOOP_SHARE: Final = 0.3
"""Of the time of a token outside the model's calls; above it that is a likely cause."""
CACHE_SHARE: Final = 0.1
"""A cache of a larger share of the weights' size is named."""
BF16_FLAGS: Final = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Instructions for bf16 as /proc/cpuinfo names them; the last is Arm's."""

BYTES_A_THREAD: Final = 64 << 20
MIN_BYTES: Final = 512 << 20
MAX_BYTES: Final = 2 << 30
"""What is read to measure the speed of memory: more than caches hold."""
ROUNDS: Final = 4
PATIENCE_S: Final = 60.0
"""How long one of the threads that read may keep the others waiting."""


class Decoding(NamedTuple):
    """The decode steps of one model with one number of sequences."""

    model: str
    """Its class."""
    batch: int
    """Number of sequences."""
    steps: int
    token_s: float
    """Median from the beginning of a step to that of the next."""
    model_s: float
    """Median of the model's calls alone."""
    weight_bytes: Mapping[str, int] | None
    """What a step reads, by dtype; None: not known, as of mixtures of experts and quantized models."""
    cache_bytes: int
    """Keys and values in the cache."""
    threads: int
    autocast: bool
    gradients: bool
    """Whether they are recorded."""
    native: bool
    """Whether xruntime serves the model."""
    read_bytes_per_s: float | None = None
    """How fast the program's CPUs read memory; None: it could not be measured."""
    causes: tuple[str, ...] = ()
    """Likely causes, if `is_slow`."""
    next_steps: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights that a step reads; 0 if they are not known."""
        return sum((self.weight_bytes or {}).values())

    @property
    def limit_s(self) -> float | None:
        """The time in which memory could be read; None if it is not known."""
        if not self.size_bytes or not self.read_bytes_per_s:
            return None
        return (self.size_bytes + self.cache_bytes) / self.read_bytes_per_s

    @property
    def is_slow(self) -> bool:
        """Whether it is a finding."""
        if self.limit_s is None or self.size_bytes < MIN_WEIGHT_BYTES or self.batch > MAX_BATCH:
            return False
        return self.limit_s < MIN_SHARE * self.token_s

    def lines(self) -> list[str]:
        """The figures, causes and next steps."""
        sequences = "" if self.batch == 1 else f" with {self.batch} sequences"
        text = f"decoding: {self.model}{sequences}: {_ms(self.token_s)} a token"
        if not self.size_bytes:
            return [f"{text}; how many of its weights a step reads is not known"]
        text += f", {self.size_bytes / 1e9:.3g} GB of weights"
        if self.cache_bytes > CACHE_SHARE * self.size_bytes:
            text += f" and {self.cache_bytes / 1e9:.3g} GB of its cache"
        text += " read in each step"
        if self.size_bytes < MIN_WEIGHT_BYTES or self.batch > MAX_BATCH:
            of = "so small a model" if self.size_bytes < MIN_WEIGHT_BYTES else "so many sequences"
            return [f"{text}; the speed of {of} is not limited by memory"]
        if self.limit_s is not None and self.read_bytes_per_s is not None:
            text += (
                f"; these CPUs read {self.read_bytes_per_s / 1e9:.3g} GB/s, so {_ms(self.limit_s)} are the"
                f" limit ({100 * self.limit_s / self.token_s:.0f} % of that speed is reached)"
            )
        causes = [f"  likely cause: {cause}" for cause in self.causes]
        return [text, *causes, *[f"  next step: {step}" for step in self.next_steps]]

    def as_dict(self) -> dict[str, Any]:
        share = None if self.limit_s is None else self.limit_s / self.token_s
        return {**self._asdict(), "limit_s": self.limit_s, "share": share, "slow": self.is_slow}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


class DecodingWatch:
    """Sees the decode steps of one run of a program."""

    def __init__(self, directory: str) -> None:
        """`directory`: for the probe's file."""
        self._path = os.path.join(directory, "decoding.json")

    def watched(self, request: Request) -> Request:
        """The request whose program loads the probe; the same for a program that would not."""
        program = resolve_program(request.program, os.environ)
        is_reached = hook_reaches(program) and PATH not in request.program.unset
        if program.starts_ranks or not is_reached:
            return request
        given = {**os.environ, **dict(request.program.env)}
        entries = [DIRECTORY, given[PATH]] if given.get(PATH) else [DIRECTORY]
        variables = ((PATH, os.pathsep.join(entries)), (VARIABLE, self._path))
        return request.replace(env=(*request.program.env, *variables))

    def results(
        self, plan: Plan, machine: Machine, warnings: tuple[str, ...]
    ) -> tuple[Decoding, ...]:
        """What was seen, the most time first, with the speed of memory; nothing without decode steps.

        `warnings`: those of the run.
        """
        try:
            with open(self._path, encoding="utf-8") as file:
                decodings = [Decoding(**record) for record in json.load(file)]
        except FileNotFoundError:
            return ()
        instance = plan.instances[0]
        facts = Facts(machine, Tree(machine.root), live=True, environment={})
        speed = read_speed(instance, bound=plan.bound, free_bytes=int(room_bytes(facts)))
        limits = machine.limits._replace(allowed_cpus=instance.cpus)
        machine = machine._replace(limits=limits)
        shared = any(kind_of(warning) is WarningKind.SHARED_CPUS for warning in warnings)
        decodings = [
            _explained(
                decoding._replace(read_bytes_per_s=speed), machine, facts.flags, shared=shared
            )
            for decoding in decodings
        ]
        return tuple(sorted(decodings, key=lambda decoding: -decoding.steps * decoding.token_s))


def _explained(
    decoding: Decoding, machine: Machine, flags: frozenset[str], *, shared: bool
) -> Decoding:
    if not decoding.is_slow:
        return decoding
    pairs = list(causes_of(decoding, machine, flags, shared=shared))
    steps = tuple([step for _, step in pairs if step])
    return decoding._replace(causes=tuple([cause for cause, _ in pairs]), next_steps=steps)


def causes_of(
    decoding: Decoding, machine: Machine, flags: frozenset[str], *, shared: bool = False
) -> Iterator[tuple[str, str]]:
    """Likely causes of slow decoding, each with what to do; empty if the cause says that.

    `machine`: with the program's CPUs as the allowed ones; `flags`: those of /proc/cpuinfo;
    `shared`: a warning says that other work used these CPUs.
    """
    if shared:
        yield "other work on these CPUs, of which a warning tells", ""
    outside_s = decoding.token_s - decoding.model_s
    if outside_s > LOOP_SHARE * decoding.token_s:
        yield (
            f"{_ms(outside_s)} a token pass outside the model's calls: in generate()'s loop or the program",
            "",
        )
    weights = decoding.weight_bytes or {}
    dtype = max(weights, key=weights.__getitem__, default="")
    has_bf16 = not BF16_FLAGS.isdisjoint(flags)
    if dtype == "float32":
        yield (
            "weights are float32, and autocast converts them"
            if decoding.autocast
            else "weights are float32, twice as much to read as bfloat16",
            "load the model with dtype=torch.bfloat16"
            + ("" if has_bf16 else " and use xruntime: torch is slow in it without instructions"),
        )
    elif dtype == "float16" and not decoding.native:
        yield (
            "weights are float16, in which torch is slow on most CPUs",
            "load the model with dtype=torch.bfloat16",
        )
    elif dtype == "bfloat16" and not has_bf16 and not decoding.native:
        yield "without instructions for bfloat16 torch is slower in it than in float32", ""
    if decoding.gradients:
        yield "gradients are recorded", "decode under torch.inference_mode()"
    cpus, threads = len(machine.limits.allowed_cpus), decoding.threads
    if threads < cpus and machine.limits.cpu_quota is None and not decoding.native:
        yield f"{threads} of {counted(cpus, 'thread')} (OMP_NUM_THREADS, torch.set_num_threads)", ""
    for cause in machine_causes(machine, threads if decoding.native else cpus):
        yield cause, ""
    if not decoding.native:
        yield (
            "torch's linears read the weights of one row at about half the speed of memory",
            "xlaunch --optimize auto, or xruntime.optimize(model): docs/generation.md",
        )
    if not shared:
        yield "other programs that read memory", "xlaunch doctor shows what else is running"


def machine_causes(machine: Machine, threads: int) -> list[str]:
    """What on a machine may keep so many threads from reading memory fast, and what to do."""
    cpus, quota = machine.limits.allowed_cpus, machine.limits.cpu_quota
    nodes = [node for node in machine.topology.numa_nodes if not {*cpus}.isdisjoint(node.cpus)]
    causes = []
    if quota is not None and quota < len(cpus):
        causes.append(f"a CPU quota of {quota:g} for {counted(len(cpus), 'CPU')}")
    elif threads == 1 < len(cpus):
        causes.append(f"one thread on {len(cpus)} CPUs (OMP_NUM_THREADS, or more were not faster)")
    if len(nodes) > 1:
        causes.append(f"{len(nodes)} memory nodes (xlaunch --instances gives each an instance)")
    return causes


def read_speed(instance: Instance, *, bound: bool, free_bytes: int) -> float | None:
    """Bytes a second that the threads of `instance` read from memory together: the best of some rounds.

    Takes half of `free_bytes` at most, and 2 GiB. None: that is too little, or threads cannot be started.
    """
    threads = max(1, instance.threads)
    total = min(max(MIN_BYTES, threads * BYTES_A_THREAD), MAX_BYTES, free_bytes // 2)
    if total < MIN_BYTES:
        return None
    part = total // threads
    find = ctypes.CDLL(None).memchr  # a call that reads and does not hold the GIL
    find.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    barrier = threading.Barrier(threads, timeout=PATIENCE_S)
    times: list[list[tuple[float, float]]] = [[] for _ in range(threads)]

    def read(index: int) -> None:
        try:
            with contextlib.suppress(OSError):  # a CPU that went offline
                if bound:
                    os.sched_setaffinity(0, {instance.cpus[index % len(instance.cpus)]})
            memory = mmap.mmap(-1, part)
            with contextlib.suppress(OSError, AttributeError):  # a system without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            ctypes.memset(address, 1, part)
            for _ in range(ROUNDS):
                barrier.wait()
                began = time.perf_counter()
                find(address, 2, part)
                times[index].append((began, time.perf_counter()))
        except (OSError, threading.BrokenBarrierError):
            barrier.abort()

    workers = [threading.Thread(target=read, args=(index,)) for index in range(threads)]
    try:
        for worker in workers:
            worker.start()
    except RuntimeError:  # a limit of threads
        barrier.abort()
    for worker in workers:
        if worker.ident is not None:
            worker.join()
    if barrier.broken:
        return None
    shortest_s: float = min(
        max(end for _, end in spans) - min(began for began, _ in spans)
        for spans in zip(*times, strict=True)
    )
    return part * threads / shortest_s
