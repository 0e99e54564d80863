# SPDX-License-Identifier: Apache-2.0
"""Find the highest rate of random arrivals at which the 99th percentile of latency keeps a bound.

    python -m benchmarks.streams.arrivals --works bert cnn --json arrivals.json
    python -m benchmarks.streams.arrivals --works shufflenet_v2_x1_0 --seconds 2 --split 16x1 --split 4x4

Requests of one item arrive at random moments (a Poisson process), whether or not earlier ones are done, and
latency counts from the moment of arrival. Contenders: processes that make one call a request, processes
that join up to --max-batch waiting requests by hand, streams of one process, and the same streams with
max_batch. All are alive at the same time and work in turns, under xlaunch, each process or stream on cores of
its own. Processes hold their inputs already: only a message of one byte travels for each request. They share
one queue, and those that join take as many requests as streams do. Models are eager in processes and compiled in
streams. The bound is --bound times the latency of an idle process, or --bound-ms.

Works: bert (BERT-base, sequences of 128 tokens), cnn (a small network for images of 224 x 224), or a
classifier of torchvision by its name; weights are random. A work takes 4 contenders of about 7 trials of
--seconds, and before that the compilation, which is kept for the next run. Goals on 16 CPUs, bfloat16: streams with
max_batch at least 2.5 times (bert; 2 times for others) the processes of one request a call, and at least 1.2 times
those that join by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.harness.measurement import (
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.programs import LAUNCHER, end_group, start_group
from benchmarks.harness.turns import MAX_END_S, MAX_START_S
from benchmarks.harness.workloads import DTYPES, Work, bert
from benchmarks.streams.__main__ import Split, parse_split
from benchmarks.streams.serving import TOLERANCE, FirstOutput, streams_pool

Submit = Callable[[Callable[[], None]], None]
"""Takes a function that is called when the request is done."""

MIN_REQUESTS = 300
"""In a trial, so that the 99th percentile is known."""

STEP = 1.4
"""Factor of the rate between trials until both a rate that keeps the bound and one that does not are known."""

PRECISION = 1.06
"""The search ends when these two rates are this close."""

MAX_TRIALS = 7
LOW_LOAD = 0.3
"""The share of the highest rate of processes at which latencies are compared."""

PROCESSES, BY_HAND, STREAMS, BATCHING = CONTENDERS = (
    "processes",
    "processes, joined by hand",
    "streams",
    "streams, max_batch",
)


class Trial(NamedTuple):
    """Random arrivals at one rate."""

    rate: float
    """Requests a second."""
    requests: int
    p50_ms: float
    p99_ms: float
    overloaded: bool
    """Whether it was ended because ever more requests waited."""

    def keeps(self, bound_ms: float) -> bool:
        return not self.overloaded and self.p99_ms <= bound_ms


def drive(submit: Submit, rate: float, seconds: float, bound_s: float, seed: int) -> Trial:
    """Submit requests at random moments; return when all are done."""
    drawn = random.Random(seed)
    count = max(MIN_REQUESTS, round(rate * seconds))
    latencies: list[float] = []
    changed = threading.Semaphore(0)

    def done(due: float) -> None:
        latencies.append(time.perf_counter() - due)
        changed.release()

    due, submitted, overloaded = time.perf_counter() + 0.01, 0, False
    for _ in range(count):
        due += drawn.expovariate(rate)
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        submit(partial(done, due))
        submitted += 1
        overloaded = submitted - len(latencies) > 100 + 5 * rate * bound_s
        if overloaded:
            break
    for _ in range(submitted):
        changed.acquire()
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return Trial(rate, submitted, float(p50), float(p99), overloaded)


def highest(trial: Callable[[float], Trial], start: float, bound_ms: float) -> list[Trial]:
    """Search for the highest rate that keeps the bound; return all trials."""
    trials: list[Trial] = []
    low, high, rate = 0.0, math.inf, start
    while len(trials) < MAX_TRIALS and high > low * PRECISION:
        trials.append(trial(rate))
        if not trials[-1].keeps(bound_ms) and not trials[-1].overloaded:
            trials.append(trial(rate))  # a moment in which the machine did something else
        if trials[-1].keeps(bound_ms):
            low = rate
        else:
            high = rate
        rate = low * STEP if high == math.inf else high / STEP if not low else math.sqrt(low * high)
    return trials


def best_of(trials: Sequence[Trial], bound_ms: float) -> Trial | None:
    """Return the trial of the highest rate that keeps the bound; None without one."""
    kept = [trial for trial in trials if trial.keeps(bound_ms)]
    return max(kept, key=lambda trial: trial.rate, default=None)


class SmallNetwork(nn.Module):
    """Depthwise separable convolutions for images of 224 x 224, 0.3 billion multiplications."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)]
        width = 32
        for wider, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            layers += [nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, wider, 1, bias=False)]
            layers += [nn.BatchNorm2d(wider), nn.ReLU()]
            width = wider
        self.features, self.head = nn.Sequential(*layers), nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).mean((2, 3)))


def make_work(name: str, dtype: torch.dtype) -> Work:
    """Return the model, in eval mode, and one request."""
    torch.manual_seed(0)
    if name == "bert":
        work = bert(1, dtype)
        return Work(FirstOutput(work.model, 1).eval(), work.batch)
    if name == "cnn":
        model: nn.Module = SmallNetwork()
    else:
        from torchvision.models import get_model

        model = get_model(name, weights=None)
    model = model.eval().to(dtype).to(memory_format=torch.channels_last)
    images = torch.randn(1, 3, 224, 224).to(dtype).to(memory_format=torch.channels_last)
    return Work(FirstOutput(model).eval(), images)


# The side of the contenders.


def work_as_process(path: str, work: Work) -> None:
    """Compute a batch for each message, whose value is its size."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, torch.inference_mode():
        work.model(work.batch)
        link.connect(path)
        while message := link.recv(1):
            size = message[0]
            work.model(work.batch if size == 1 else torch.cat([work.batch] * size))
            link.send(message)


def work_as_streams(path: str, work: Work, split: Split, max_batch: int) -> None:
    """Drive streams as each message says; answer with the trial."""
    from xruntime import MultiStreamModule, compile_for_streams

    model = compile_for_streams(work.model, work.batch, threads=split.cores, tolerance=TOLERANCE)
    pool = streams_pool(split.count, split.cores)
    waiting = 1_000_000  # arrivals never wait for room
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        streams = {
            name: stack.enter_context(
                MultiStreamModule(model, split.count, pool, queue_length=waiting, max_batch=size)
            )
            for name, size in ((STREAMS, 1), (BATCHING, max_batch))
        }
        stack.enter_context(torch.inference_mode())
        for stream in streams.values():
            list(stream.map([work.batch] * (8 * split.count * max_batch)))
        print(streams[BATCHING].describe(), file=sys.stderr)
        link.connect(path)
        while message := link.recv(1 << 16):
            name, *values = json.loads(message)
            submit = partial(_submit_to_streams, streams[name], work.batch)
            link.send(json.dumps(drive(submit, *values)).encode())


def _submit_to_streams(streams: Any, batch: torch.Tensor, done: Callable[[], None]) -> None:
    def answered(future: Any) -> None:
        if future.exception() is not None:
            print(future.exception(), file=sys.stderr)
            os._exit(1)
        done()

    streams.submit(batch).add_done_callback(answered)


# The side of the benchmark.


class Processes:
    """Gives waiting requests to processes that are free."""

    def __init__(self, links: Sequence[socket.socket]) -> None:
        self.max_batch = 1
        self._links = links
        self._lock = threading.Lock()
        self._free = list(links)
        self._waiting: deque[Callable[[], None]] = deque()
        self._batches: dict[socket.socket, list[Callable[[], None]]] = {}
        for link in links:
            threading.Thread(target=self._receive, args=(link,), daemon=True).start()

    def idle_ms(self) -> float:
        """Return the median latency of requests that come one by one."""
        times = []
        for _ in range(30):
            done, began = threading.Event(), time.perf_counter()
            self.submit(done.set)
            done.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e3

    def submit(self, done: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(done)
            self._pump()

    def _pump(self) -> None:
        while self._waiting and self._free:
            link = self._free.pop()
            share = -(-len(self._waiting) // len(self._links))
            size = min(share, self.max_batch)
            self._batches[link] = [self._waiting.popleft() for _ in range(size)]
            link.send(bytes([size]))

    def _receive(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed by this side
            while link.recv(1):
                self._finish(link)

    def _finish(self, link: socket.socket) -> None:
        with self._lock:
            batch = self._batches.pop(link)
            self._free.append(link)
            self._pump()
        for done in batch:
            done()


class Launched:
    """A command under xlaunch whose processes connect to a socket."""

    def __init__(self, directory: Path, options: Sequence[str], command: Sequence[str]) -> None:
        self.path = str(directory / f"{random.randrange(1 << 48)}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(1024)
        module = ["-m", "benchmarks.streams.arrivals", "--connect", self.path]
        self._process = start_group([*LAUNCHER, *options, *module, *command])

    def links(self, count: int) -> list[socket.socket]:
        """Wait until all processes are ready. Exits if they end instead."""
        self._listener.settimeout(1.0)
        links: list[socket.socket] = []
        until = time.monotonic() + MAX_START_S
        while len(links) < count:
            with contextlib.suppress(TimeoutError):
                links.append(self._listener.accept()[0])
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit("a contender ended, or did not start in time; see above")
        for link in links:
            link.setblocking(True)
        return links

    def stop(self) -> None:
        end_group(self._process, MAX_END_S)


class ArrivalCase(NamedTuple):
    """A contender with a split, and how a trial of it is made: from rate, seconds, bound in s, seed."""

    name: str
    count: int
    trial: Callable[[float, float, float, int], Trial]


@contextlib.contextmanager
def started(work: str, options: argparse.Namespace) -> Iterator[tuple[float, list[ArrivalCase]]]:
    """Start all contenders of a work, and end them; yield the latency of an idle process in ms, and cases."""
    common = ["--works", work, "--dtype", options.dtype, "--max-batch", str(options.max_batch)]
    splits: list[Split] = options.split or [Split(len(os.sched_getaffinity(0)), 1)]
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        where = Path(directory)
        cases: list[ArrivalCase] = []
        idle: list[float] = []

        def start(
            options: Sequence[str], command: Sequence[str], count: int
        ) -> list[socket.socket]:
            launched = Launched(where, options, [*common, *command])
            stack.callback(launched.stop)
            return launched.links(count)

        # One after the other: compilation would slow the starts of the processes.
        (link,) = start([], ["--split", str(splits[0]), "--streams"], 1)
        for split in splits:
            layout = ["--instances", str(split.count), "--ncores", str(split.cores), "--no-tag"]
            group = Processes(start(layout, [], split.count))
            idle.append(group.idle_ms())
            for name, size in ((PROCESSES, 1), (BY_HAND, options.max_batch)):
                trial = partial(_trial_of_processes, group, size)
                cases.append(ArrivalCase(f"{split} {name}", split.count, trial))
        for name in (STREAMS, BATCHING):
            trial = partial(_trial_of_streams, link, name)
            cases.append(ArrivalCase(f"{splits[0]} {name}", splits[0].count, trial))
        yield idle[0], cases


def _trial_of_processes(
    group: Processes, size: int, rate: float, seconds: float, bound_s: float, seed: int
) -> Trial:
    group.max_batch = size
    return drive(group.submit, rate, seconds, bound_s, seed)


def _trial_of_streams(
    link: socket.socket, name: str, rate: float, seconds: float, bound_s: float, seed: int
) -> Trial:
    link.send(json.dumps([name, rate, seconds, bound_s, seed]).encode())
    answer = link.recv(1 << 16)
    if not answer:
        raise SystemExit("the streams ended; see above")
    return Trial(*json.loads(answer))


def measure(
    idle: float, cases: Sequence[ArrivalCase], options: argparse.Namespace
) -> dict[str, Any]:
    """Measure all contenders of a work; `idle` is the latency of an idle process in ms."""
    bound_ms = options.bound_ms or options.bound * idle
    print(f"an idle process takes {idle:.1f} ms; bound {bound_ms:.1f} ms", file=sys.stderr)
    contenders: dict[str, Any] = {}
    start = 0.7 * cases[0].count / idle * 1e3
    for case in cases:
        seeds = iter(range(1000))

        def trial(rate: float, case: ArrivalCase = case, seeds: Iterator[int] = seeds) -> Trial:
            done = case.trial(rate, options.seconds, bound_ms / 1e3, next(seeds))
            print(f"{case.name}: {done}", file=sys.stderr, flush=True)
            return done

        trials = highest(trial, start, bound_ms)
        best = best_of(trials, bound_ms)
        contenders[case.name] = {"trials": trials, "best": best}
        start = start if best is None else 1.2 * best.rate
    base = contenders[cases[0].name]["best"]
    if base is not None:
        for case in cases:
            contenders[case.name]["low"] = case.trial(
                LOW_LOAD * base.rate, options.seconds, bound_ms / 1e3, 0
            )
    return {"idle_ms": idle, "bound_ms": bound_ms, "contenders": contenders}


def print_work(work: str, measured: dict[str, Any]) -> None:
    """Print the table of a work and its goals."""
    contenders = measured["contenders"]
    rates = {name: one["best"].rate if one["best"] else 0.0 for name, one in contenders.items()}
    bases = [
        max((rate for name, rate in rates.items() if name.endswith(kind)), default=0.0)
        for kind in (PROCESSES, BY_HAND)
    ]
    print(f"\n{work}: p99 of at most {measured['bound_ms']:.1f} ms\n")
    rows = []
    for name, one in contenders.items():
        best, low = one["best"], one.get("low")
        shown = ["-"] * 3 if best is None else [f"{best[i]:.1f}" for i in (0, 2, 3)]
        ratios = [f"{rates[name] / base:.2f}" if base else "-" for base in bases]
        quiet = ["-", "-"] if low is None else [f"{low.p50_ms:.1f}", f"{low.p99_ms:.1f}"]
        rows.append([name, *shown, *ratios, *quiet])
    header = ["what", "requests/s", "p50 ms", "p99 ms", "times processes", "times by hand"]
    print_table([*header, "p50 at low load", "p99 at low load"], rows)
    ours = max(rate for name, rate in rates.items() if name.endswith(BATCHING))
    wanted = (2.5 if work == "bert" else 2.0, 1.2)
    for kind, base, least in zip((PROCESSES, BY_HAND), bases, wanted, strict=True):
        if base:
            verdict = "met" if ours / base >= least else "MISSED"
            print(f"goal {verdict}: {ours / base:.2f} times {kind}, at least {least:g}")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--works", nargs="+", default=["bert", "cnn"], metavar="WORK")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a trial; default 3")
    parser.add_argument(
        "--split",
        action="append",
        type=parse_split,
        help="processes and their cores; streams take the first one; default one for each CPU",
    )
    parser.add_argument("--max-batch", type=int, default=4, help="requests of a batch; default 4")
    parser.add_argument(
        "--bound", type=float, default=4.0, help="times the latency of an idle process; default 4"
    )
    parser.add_argument("--bound-ms", type=float, help="instead of --bound")
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    parser.add_argument("--streams", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.connect:
        work = make_work(options.works[0], DTYPES[options.dtype])
        if options.streams:
            work_as_streams(options.connect, work, options.split[0], options.max_batch)
        else:
            work_as_process(options.connect, work)
        return
    print(machine_line())
    measured = {}
    with until_stopped():  # so that no contender stays
        for name in options.works:
            with started(name, options) as cases:
                measured[name] = measure(*cases, options)
            write_raw(options.json, "arrivals", {"works": _plain(measured)})
            print_work(name, measured[name])


def _plain(value: Any) -> Any:
    """Return trials as dicts, for JSON."""
    if isinstance(value, Trial):
        return value._asdict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
