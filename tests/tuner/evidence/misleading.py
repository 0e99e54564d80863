# SPDX-License-Identifier: Apache-2.0
"""Programs and services whose output misleads: what two commands print, and how much better the second is.

Each text is that of a real program or load generator, with its numbers as fields: `{rate}` is 100 at the
usual speed, `{ms}`, `{us}` and `{s}` are the times of a step that takes 100 ms then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from tests.tuner.launches.noise import SHAPES, Floats

from xtune.launches.launch import Goal

Shape = Callable[[Floats], Floats]
"""Speeds at positions from 0 to 1 of a run."""

FLAT = SHAPES["flat"]
STEP_S = 0.1


class Printed(NamedTuple):
    """What the launches of a command print."""

    line: str
    """Printed at every step; of a service: all that the load generator prints."""
    speed: float = 1.0
    shape: Shape = FLAT
    first: str = ""
    """Lines before the first step."""
    last: str = ""
    """Lines after the last step."""
    steps: int = 40
    instances: tuple[float, ...] = (1.0,)
    """Speed of each instance."""
    busy: float = 0.3
    """Of a service: the share of its own CPUs that the load generator uses."""

    def pieces(self, speed: float) -> Iterator[tuple[float, str]]:
        """How long each piece of output takes, in seconds, and the piece. `speed`: of this launch."""
        yield 0.01, self.first
        for step, shaped in enumerate(self.shape(np.arange(self.steps) / self.steps)):
            now = speed * float(shaped)
            text = self.line.format(
                step=step + 1, rate=100 * now, thousands=0.1 * now, count=int(5000 * now),
                s=0.1 / now, ms=100 / now, us=1e5 / now,
                loss=1 + 3 / (step + 1), accuracy=0.9 - 0.5 / (step + 1), half=0.95 if now > 0.8 else 0.1,
            )  # fmt: skip
            # Each step is the same work; no clock makes it faster.
            yield STEP_S / (speed * min(float(shaped), 10.0)), text
        yield 0.001, self.last


class Disturbed(NamedTuple):
    """What the machine does to a launch."""

    speed: float = 1.0
    waited: float = 0.02
    """Share of the time in which it waits for CPUs that others use."""


class Case(NamedTuple):
    """Two commands, and the truth about them."""

    bare: Printed
    tuned: Printed
    gain: float
    """How many times better the tuned one is; 0: it fails or breaks a requirement."""
    metric: str = "items/s"
    require: tuple[str, ...] = ()
    goal: Goal = Goal.MAXIMIZE
    machine: Callable[[int, bool], Disturbed] = lambda launch, is_bare: Disturbed()
    """Of the number of a launch, from 0, and whether it is one of the bare command."""
    is_service: bool = False


ITEMS = Printed("step {step}: {rate:.1f} items/s")
TIMES = {"metric": "latency", "goal": Goal.MINIMIZE}

WRK = """\
Running 5s test @ http://127.0.0.1:8000/
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    {ms:.2f}ms    2.13ms  151.37ms   82.36%
  Latency Distribution
     50%  {us:.2f}us
     99%  {ms:.2f}ms
  {count} requests in 5.00s, 835.54KB read
"""
SERVED = Printed(WRK + "Requests/sec:   {rate:.2f}\n", steps=1)
SLOW_ANSWERS = WRK.replace("99%  {ms:.2f}ms", "99%    1.14s ")
OF_SERVICE = {"metric": "requests/sec", "is_service": True}


def served(text: str, **more: object) -> Printed:
    """A service that seems 3.3 times as fast, with this in the generator's output."""
    return Printed(text, 3.3, steps=1, **more)  # type: ignore[arg-type]


HEY = """\
Summary:
  Requests/sec:	{rate:.4f}

Status code distribution:
  [200]	{count} responses
"""
K6 = """\
    http_req_failed....................: 20.00%  100 out of 500
    http_reqs..........................: 500     {rate:.6f}/s
Requests/sec: {rate:.2f}
"""


def heats(launch: int, is_bare: bool) -> Disturbed:
    return Disturbed(math.exp(-0.02 * launch))


def cold_disk(launch: int, is_bare: bool) -> Disturbed:
    return Disturbed(0.3 if launch == 0 else 1.0)


def stalling_disk(launch: int, is_bare: bool) -> Disturbed:
    return Disturbed(0.8 if launch % 7 == 3 else 1.0)


def neighbour(launch: int, is_bare: bool) -> Disturbed:
    """It runs in every third launch."""
    return Disturbed(0.7, 0.3) if launch % 3 == 1 else Disturbed()


def neighbour_of_bare(launch: int, is_bare: bool) -> Disturbed:
    """It happens to run whenever the bare command does."""
    return Disturbed(0.6, 0.45) if is_bare else Disturbed()


CASES: dict[str, Case] = {
    # Units.
    "milliseconds against seconds": Case(
        Printed("latency: {ms:.1f} ms"), Printed("latency: {s:.4f} s", 0.83), 0.83, **TIMES
    ),
    "seconds against microseconds": Case(
        Printed("latency: {s:.4f} s"), Printed("latency: {us:.0f}us", 1.2), 1.2, **TIMES
    ),
    "thousands with a comma": Case(
        Printed("{rate:,.1f} items/s", 9.0), Printed("{rate:,.1f} items/s", 10.8), 1.2
    ),
    "thousands as 1.1k": Case(
        Printed("{rate:.1f} items/s", 9.5), Printed("{thousands:.3f}k items/s", 11.4, SHAPES["slow start"], steps=120), 1.2
    ),
    "a bound in milliseconds on seconds": Case(
        SERVED, served(SLOW_ANSWERS + SERVED.line[len(WRK) :]), 0, require=("p99<=200ms",), **OF_SERVICE
    ),
    # NaN, infinities and other bad endings.
    "a loss that becomes NaN": Case(
        Printed("{rate:.1f} items/s loss {loss:.3f}"),
        Printed("{rate:.1f} items/s loss {loss:.3f}", 2.0, last="200 items/s loss nan"),
        0, require=("loss<=2",),
    ),
    "an infinite rate": Case(ITEMS, Printed(ITEMS.line, last="step 41: inf items/s"), 0),
    "an accuracy that collapses in the end": Case(
        Printed("{rate:.1f} items/s accuracy {accuracy:.3f}"),
        Printed("{rate:.1f} items/s accuracy {accuracy:.3f}", 1.5, last="accuracy 0.1\n" * 6),
        0, require=("accuracy>=0.8",),
    ),
    "one of four instances diverges": Case(
        Printed("{rate:.1f} items/s accuracy {accuracy:.3f}", instances=(1.0,) * 4),
        Printed("{rate:.1f} items/s accuracy {half:.3f}", 1.5, instances=(1.0, 1.0, 1.0, 0.2)),
        0, require=("accuracy>=0.4",),
    ),
    "a 99th percentile of 40 values": Case(
        Printed("{rate:.1f} items/s step_ms: {ms:.1f}", steps=120),
        Printed("{rate:.1f} items/s step_ms: {ms:.1f}", 1.3), 0, require=("p99(step_ms)<=150",),
    ),
    # Requests that failed.
    "dropped connections": Case(
        SERVED,
        served(SERVED.line + "  Socket errors: connect 0, read 3880, write 0, timeout 0\n"),
        0, **OF_SERVICE,
    ),
    "errors are answered quickly": Case(
        SERVED, served(SERVED.line + "  Non-2xx or 3xx responses: 4268\n"), 0, **OF_SERVICE
    ),
    "load is refused": Case(
        Printed(HEY, steps=1), served(HEY + "  [503]\t74 responses\n"), 0, require=("errors<=1%",), **OF_SERVICE
    ),
    "requests without an answer": Case(
        Printed(HEY, steps=1), served(HEY + '\nError distribution:\n  [4]\tGet "http://x/": EOF\n'), 0, **OF_SERVICE
    ),
    "failures of k6": Case(Printed(K6.replace("20.00%  100", "0.00%  0"), steps=1), served(K6), 0, **OF_SERVICE),
    "a generator at its limit": Case(SERVED, served(SERVED.line, busy=0.99), 0, **OF_SERVICE),
    # Warm-up, and what is printed twice.
    "a slow start before a higher speed": Case(
        ITEMS, Printed(ITEMS.line, 1.2, SHAPES["slow start"], steps=120), 1.2
    ),
    "a fast start before a lower speed": Case(
        ITEMS, Printed(ITEMS.line, 0.85, SHAPES["heats up"], steps=120), 0.85
    ),
    "a warm-up of the bare command only": Case(
        Printed(ITEMS.line, shape=SHAPES["two speeds"]), Printed(ITEMS.line, 0.9), 0.9
    ),
    "lines that are printed twice": Case(
        ITEMS, Printed(f"{ITEMS.line}\n{ITEMS.line}", 0.9), 0.9
    ),
    "a step that took no time": Case(
        ITEMS, Printed(ITEMS.line, 0.9, first="step 0: 1000000 items/s"), 0.9
    ),
    "a clock that is set back": Case(
        ITEMS, Printed(ITEMS.line, 0.9, lambda at: 1.0 + 1e4 * (abs(at - 0.6) < 0.01)), 0.9
    ),
    # The machine.
    "a machine that heats up": Case(ITEMS, Printed(ITEMS.line, 1.12), 1.12, machine=heats),
    "a machine that heats up, and nothing gained": Case(
        ITEMS, Printed(ITEMS.line, 0.97), 0.97, machine=heats
    ),
    "a disk that is slow at first": Case(ITEMS, Printed(ITEMS.line, 0.97), 0.97, machine=cold_disk),
    "a disk that stalls": Case(ITEMS, Printed(ITEMS.line, 1.15), 1.15, machine=stalling_disk),
    "a busy neighbour": Case(ITEMS, Printed(ITEMS.line, 0.95), 0.95, machine=neighbour),
    "a neighbour of the bare command": Case(ITEMS, Printed(ITEMS.line, 0.97), 0.97, machine=neighbour_of_bare),
}  # fmt: skip
