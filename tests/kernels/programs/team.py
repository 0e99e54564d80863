# SPDX-License-Identifier: Apache-2.0
"""What a process of its own does with OpenMP teams: `team.py CASE [ARGUMENT...]` prints JSON.

An OpenMP runtime is chosen at the start of a process and keeps its state to the end, so each case
has a process. A case is a function below; CPUs are named by their place among those allowed here.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xlaunch.text import parse_cpu_list
from xruntime import native, openmp_team

ALLOWED = sorted(os.sched_getaffinity(0))
ABSENT_CPU = 16_000

kernels = native.library()
quick = native.quick_library()


def array(cpus: Iterable[int]) -> tuple[ctypes.Array[ctypes.c_int32], int]:
    numbers = list(cpus)
    return (ctypes.c_int32 * len(numbers))(*numbers), len(numbers)


def confine(*places: int) -> int:
    return kernels.xk_team_confine(*array(ALLOWED[place] for place in places))


def pin(*places: int) -> int:
    return kernels.xk_team_pin(*array(ALLOWED[place] for place in places))


def resize(size: int) -> int:
    return quick.xk_team_resize(size)


def mask_of(thread_id: int) -> list[int]:
    """Places of the CPUs of a thread, as our library and as the kernel's own file tell them."""
    room = (ctypes.c_int32 * 64)()
    count = kernels.xk_thread_cpus(thread_id, room, 64)
    told = room[:count]
    status = Path(f"/proc/self/task/{thread_id}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    # That file also names CPUs that could be added to the machine.
    assert told == sorted({*parse_cpu_list(line.split()[1])} & {*ALLOWED}), (told, line)
    return [ALLOWED.index(cpu) for cpu in told]


def team() -> list[int]:
    """The kernel's ids of the threads of the calling thread's next region."""
    return [member.thread_id for member in openmp_team().members]


def masks() -> list[list[int]]:
    return [mask_of(thread_id) for thread_id in team()]


def in_thread(act: Callable[[], Any]) -> Any:
    """What `act` returns in a thread that is new and ends."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    thread.join()
    return answers[0]


def sizes() -> dict:
    """Who is touched by a resize, in the main thread and in another."""

    def size() -> list[int]:
        return [quick.xk_team_size(), openmp_team().size]

    start = size()
    other = in_thread(lambda: [resize(start[0] + 3), *size()])
    main = [resize(start[0] + 1), *size()]
    return {
        "start": start,
        "other": other,
        "main": main,
        "new": in_thread(size),
        "refused": [resize(0), resize(-1), quick.xk_team_size()],
    }


def placing() -> list:
    """Sets one after another, in a thread whose first dealing with OpenMP they are."""

    def act() -> list:
        resize(3)
        return [
            [place.__name__, list(cpus), place(*cpus), masks()]
            for cpus in ((0,), (1,), (0, 1), (1, 0))
            for place in (confine, pin)
        ]

    return in_thread(act)


def fresh() -> dict:
    """The process's first dealing with OpenMP confines a team; what another thread's is then."""

    def first() -> list:
        confine(0)
        answer = masks()
        confine(*range(len(ALLOWED)))
        return answer

    return {"first": in_thread(first), "next": in_thread(masks)}


def growing() -> dict:
    def act() -> dict:
        resize(2)
        confine(1)
        answer = {"confined": masks()}
        resize(4)
        answer["grown"] = masks()
        confine(1)
        answer["again"] = masks()
        return answer

    return in_thread(act)


def together() -> list:
    """Three host threads at once, each with CPUs of its own, over and over."""
    rounds = []
    for _ in range(5):
        meet = threading.Barrier(3)
        seen: dict[str, list] = {}

        def act(cpus: tuple[int, ...], meet=meet, seen=seen) -> None:
            resize(3)
            meet.wait()
            confine(*cpus)
            meet.wait()
            seen[str(list(cpus))] = masks()
            meet.wait()
            confine(0, 1)

        threads = [threading.Thread(target=act, args=(cpus,)) for cpus in ((0,), (1,), (0, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rounds.append(seen)
    return rounds


def trading() -> dict:
    """One team shrinks, another grows, the first grows again: whose workers are whose?"""
    shrunk, grown = threading.Event(), threading.Event()
    answer: dict[str, Any] = {"kept": kernels.xk_team_keep_workers()}

    def first() -> None:
        resize(4)
        confine(0)
        answer["first"] = team()
        resize(2)
        team()
        shrunk.set()
        grown.wait()
        resize(4)
        answer["first again"] = team()
        answer["masks again"] = masks()

    def second() -> None:
        shrunk.wait()
        resize(4)
        confine(1)
        answer["second"] = team()
        grown.set()

    threads = [threading.Thread(target=act) for act in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answer


def ending() -> list:
    """A host thread that puts its team back before it ends; what the next one's grows by."""

    def first() -> None:
        resize(4)
        confine(0)
        confine(0, 1)

    def second() -> list:
        resize(2)
        confine(1)
        resize(6)
        return masks()

    in_thread(first)
    return in_thread(second)


def trap(how: str) -> dict:
    """The team is made anew, larger, after its host thread was pinned, and after the whole team."""

    def act() -> dict:
        resize(2)
        team()
        if how == "host thread":
            os.sched_setaffinity(0, {ALLOWED[0]})
        else:
            assert pin(0, 1) == 2
        answer = {"before": masks()}
        resize(4)
        answer["after"] = masks()
        return answer

    return in_thread(act)


def refusing() -> dict:
    """A set that holds a CPU which is not there changes nothing."""
    resize(3)
    answer = {"before": [pin(0, 1), masks()]}
    for name, cpus in (("none", [ABSENT_CPU]), ("one of two", [ALLOWED[0], ABSENT_CPU])):
        for act in (kernels.xk_team_confine, kernels.xk_team_pin):
            ctypes.set_errno(0)
            answer[f"{act.__name__} {name}"] = [act(*array(cpus)), ctypes.get_errno(), masks()]
    return answer


def refused_worker() -> dict:
    """The kernel refuses the mask of one worker, after the calling thread had its own."""
    resize(3)
    answer = {"before": [confine(0, 1), masks()]}
    for act in (kernels.xk_team_confine, kernels.xk_team_pin):
        ctypes.CDLL(None).refuse_a_worker()
        ctypes.set_errno(0)
        answer[act.__name__] = [act(*array([ALLOWED[1]])), ctypes.get_errno(), masks()]
    return answer


def with_torch() -> dict:
    """A thread's count, before and after torch has met the thread."""
    import torch

    def count() -> list[int]:
        torch.ones(1 << 20).add_(1)
        return [torch.get_num_threads(), openmp_team().size]

    def met_late() -> list[int]:
        resize(5)
        return count()

    def met_before() -> list[int]:
        torch.get_num_threads()
        resize(5)
        return count()

    default = torch.get_num_threads()
    return {
        "default": default,
        "late": in_thread(met_late),
        "before": in_thread(met_before),
        "main": count(),
        "new": in_thread(count),
    }


def streams() -> dict:
    """Two streams run layers side by side, whose libraries ask for teams of other sizes."""
    import torch

    linear, convolution = torch.nn.Linear(512, 512), torch.nn.Conv2d(16, 32, 3)
    meet = threading.Barrier(2)
    answer = {}

    def stream(place: int) -> None:
        torch.get_num_threads()
        resize(4)
        confine(place)
        with torch.no_grad():
            for i in range(20):
                meet.wait()
                linear(torch.ones(64 + i, 512))
                convolution(torch.ones(2, 16, 40 + i, 40))
                torch.ones(1 << 18).add_(1)
        answer[place] = masks()

    threads = [threading.Thread(target=stream, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answer


CASES: dict[str, Callable[..., Any]] = {
    case.__name__: case
    for case in (
        sizes,
        placing,
        fresh,
        growing,
        together,
        trading,
        ending,
        trap,
        refusing,
        refused_worker,
        with_torch,
        streams,
    )
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*sys.argv[2:])))
