# SPDX-License-Identifier: Apache-2.0
"""The mailbox under load, as a C++ program and as Python meet it.

The programs check every item and print what they counted; a hang is ended by a limit.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xruntime import native

MAILBOX_SOURCE = Path(__file__).parents[2] / "kernels" / "src" / "runtime" / "mailbox.cpp"
LIMIT_S = 240

Compile = Callable[..., Path]
Run = Callable[..., str]


def output_of(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.fixture(scope="module")
def run(compile_program: Compile, built_library: Path) -> Run:
    """Run the program against the library; what it printed."""
    program = compile_program(
        "mailbox", "-O2", built_library, f"-Wl,-rpath,{built_library.parent.resolve()}"
    )

    def answer(*words: object) -> str:
        done = output_of(program, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return answer


@pytest.fixture(scope="module")
def run_with_thread_sanitizer(compile_program: Compile) -> Run:
    """The same, with the mailbox itself compiled in and every access to memory checked."""
    program = compile_program("mailbox", "-O1", "-g", "-fsanitize=thread", MAILBOX_SOURCE)

    def answer(*words: object) -> str:
        done = output_of(program, *words)
        if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
            # Its shadow memory does not fit where a kernel spreads addresses widely.
            done = output_of("setarch", "--addr-no-randomize", program, *words)
        assert done.returncode == 0, done.stderr
        assert "WARNING: ThreadSanitizer" not in done.stderr
        return done.stdout

    return answer


def tiers(quick: list[tuple], long: list[tuple], full: list[tuple]) -> list[Any]:
    """Cases for `parametrize`, with the marks of their tiers."""
    return [
        *quick,
        *(pytest.param(*case, marks=pytest.mark.long) for case in long),
        *(pytest.param(*case, marks=pytest.mark.full) for case in full),
    ]


@pytest.mark.parametrize(
    ("items", "submitters", "spin_us", "grace_us"),
    tiers(
        [(200_000, submitters, 50, 20) for submitters in (1, 4)],
        [(200_000, submitters, 0, 0) for submitters in (1, 4)],
        [(1_000_000, s, *times) for s in (1, 4, 16) for times in ((0, 0), (5, 0), (50, 20))],
    ),
)
def test_every_item_is_handed_over_once_and_in_order(
    run: Run, items: int, submitters: int, spin_us: int, grace_us: int
) -> None:
    answer = run("handoffs", submitters, items // submitters, spin_us, grace_us)
    assert answer == f"{items} right of {items}\n"


def test_spinning_does_not_keep_the_cpu_from_the_other_side(run: Run) -> None:
    """Both ends share one CPU and would spin for a whole minute each."""
    answer = run("handoffs", 2, 500, 60_000_000, 60_000_000, "one-cpu")
    assert answer == "1000 right of 1000\n"


@pytest.mark.parametrize(
    ("rounds", "submitters", "spin_us"),
    tiers([(300, 3, 0), (300, 3, 20)], [], [(20_000, 4, spin_us) for spin_us in (0, 5, 50)]),
)
def test_closing_loses_nothing_that_was_accepted(
    run: Run, rounds: int, submitters: int, spin_us: int
) -> None:
    assert run("races", rounds, submitters, spin_us).startswith(f"{rounds} rounds, all of ")


def test_waiting_ends_when_the_time_is_over_and_not_before(run: Run) -> None:
    assert run("timeouts") == "12 timeouts\n"


def test_signals_interrupt_a_sleep(run: Run) -> None:
    assert run("signals") == "interrupted 3 times\n"


def test_worker_gives_its_submitter_time_to_wait(run: Run) -> None:
    assert run("grace") == "200 waited for\n"


def test_no_system_call_is_made_for_nobody(run: Run) -> None:
    assert run("calls") == "1 wake\n"


@pytest.mark.parametrize(
    ("items", "rounds", "spin_us"),
    tiers(
        [],
        [(20_000, 50, spin_us) for spin_us in (0, 50)],
        [(1_000_000, 2_000, spin_us) for spin_us in (0, 5, 50)],
    ),
)
def test_thread_sanitizer_finds_no_race(
    run_with_thread_sanitizer: Run, items: int, rounds: int, spin_us: int
) -> None:
    answer = run_with_thread_sanitizer("handoffs", 4, items // 4, spin_us, 20)
    assert answer == f"{items} right of {items}\n"
    assert run_with_thread_sanitizer("races", rounds, 4, spin_us).startswith(f"{rounds} rounds")
    for words in ("timeouts", "grace", "calls"):
        assert run_with_thread_sanitizer(words)


WEAKER = {
    "the worker says that it sleeps": "worker_.store(kAsleep, std::memory_order_{})",
    "and looks for news": "*posts = Posts(posts_.load(std::memory_order_{}))",
    "the worker says that it is done": "done_word_.store(static_cast<uint32_t>(done), std::memory_order_{})",
    "and looks for sleepers": "sleepers_.load(std::memory_order_{})",
}
"""Operations of which one that is not sequentially consistent loses a wake-up."""


@pytest.mark.parametrize(
    "weaker",
    [
        None,
        "the worker says that it sleeps",
        *(pytest.param(name, marks=pytest.mark.long) for name in list(WEAKER)[1:]),
    ],
)
def test_nobody_sleeps_for_ever_on_memory_that_shows_writes_late(
    compile_program: Compile, tmp_path: Path, weaker: str | None
) -> None:
    """On a model of memory: on x86-64 the loss takes a moment of nanoseconds, and is hardly ever seen."""
    source = MAILBOX_SOURCE.read_text()
    if weaker is not None:
        right = WEAKER[weaker].format("seq_cst")
        assert source.count(right) == 1
        order = "release" if ".store" in right else "acquire"
        source = source.replace(right, WEAKER[weaker].format(order))
    changed = tmp_path / "mailbox.cpp"
    changed.write_text(source)
    done = output_of(
        compile_program(
            *("weak_memory", "-O1", "-Wno-subobject-linkage", f'-DMAILBOX_SOURCE="{changed}"')
        ),
        5_000,
    )
    if weaker is None:
        assert (done.returncode, done.stdout) == (0, "5000 runs\n"), done.stderr
    else:
        assert (done.returncode, done.stderr) == (1, "all threads sleep: nobody was woken\n")


# From Python.


@pytest.fixture
def quick(built_library: Path) -> ctypes.PyDLL:
    return native.quick_library()


@pytest.fixture
def mailbox(quick: ctypes.PyDLL) -> Iterator[int]:
    made = quick.xk_mailbox_create(50, 20)
    assert made
    yield made
    quick.xk_mailbox_destroy(made)


@pytest.fixture
def call(mailbox: int) -> native.MailboxFunctions:
    return native.mailbox_functions(mailbox)


def test_python_hands_over_in_order(
    call: native.MailboxFunctions, quick: ctypes.PyDLL, mailbox: int
) -> None:
    items: deque[int] = deque()
    answers: list[int] = []

    def work() -> None:
        done = 0
        while (count := call.next(done)) != native.CLOSED:
            if count != native.INTERRUPTED:
                answers.append(items.popleft() ** 2)
                done += 1

    worker = threading.Thread(target=work)
    worker.start()
    for number in range(0, 2000, 2):
        items.extend((number, number + 1))
        assert [call.post(), call.post()] == [number + 1, number + 2]
        while call.await_(number + 2, -1) == native.INTERRUPTED:
            pass
        assert answers[number:] == [number**2, (number + 1) ** 2]
    quick.xk_mailbox_close(mailbox)
    worker.join()
    assert len(answers) == 2000
    assert call.post() == native.CLOSED


def test_a_waiting_main_thread_still_runs_signal_handlers(call: native.MailboxFunctions) -> None:
    """It waits in slices: a signal may come in the instant before it sleeps."""
    ticket = call.post()
    main = threading.main_thread().ident
    assert main is not None
    heard = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())

    def send() -> None:
        while not heard.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    try:
        sender.start()
        results = set()
        while not heard.is_set():
            results.add(call.await_(ticket, 10_000))
    finally:
        heard.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert results <= {native.INTERRUPTED, native.TIMED_OUT}


@pytest.mark.parametrize("act", ["await", "next"])
def test_only_what_waits_releases_the_interpreters_lock(
    call: native.MailboxFunctions, act: str
) -> None:
    """Another thread that is ready to run does while one waits, and not before."""
    gate = threading.Lock()
    gate.acquire()
    passed: list[int] = []

    def come() -> None:
        with gate:
            passed.append(call.post())

    other = threading.Thread(target=come)
    before = sys.getswitchinterval()
    try:
        other.start()
        sys.setswitchinterval(60)
        gate.release()
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            count = call.post()
        assert call.next(0) == count
        assert not passed
        if act == "next":
            assert call.next(count) == count + 1
        else:
            assert call.await_(count, 50_000) == native.TIMED_OUT
        assert passed == [count + 1]
    finally:
        sys.setswitchinterval(before)
        other.join()


@pytest.mark.parametrize("ticket", [0, -1, 2, 2**62])
def test_await_refuses_what_no_item_can_have(call: native.MailboxFunctions, ticket: int) -> None:
    assert call.post() == 1
    assert call.await_(ticket, 0) == native.INVALID_ARGUMENT


@pytest.mark.parametrize("done", [0, 3])
def test_next_refuses_what_cannot_be_done(call: native.MailboxFunctions, done: int) -> None:
    """Of two items one is done: it cannot be undone, nor can a third be."""
    assert [call.post(), call.post()] == [1, 2]
    assert call.next(1) == 2
    assert call.next(done) == native.INVALID_ARGUMENT
    assert call.await_(2, 0) == native.TIMED_OUT


def test_what_is_no_number_of_an_item_raises(call: native.MailboxFunctions) -> None:
    wrong: Any = "1"
    for act in (call.next, lambda value: call.await_(value, 0)):
        with pytest.raises(TypeError):
            act(wrong)
        with pytest.raises(OverflowError):
            act(1 << 64)
    with pytest.raises(TypeError):
        call.await_(1, wrong)
    few: Any = call.await_
    assert few(1) == native.INVALID_ARGUMENT
    assert call.post() == 1, "and nothing was done"


@pytest.mark.parametrize(("spin_us", "grace_us"), [(-1, 0), (0, -1)])
def test_no_mailbox_waits_less_than_no_time(
    quick: ctypes.PyDLL, spin_us: int, grace_us: int
) -> None:
    assert quick.xk_mailbox_create(spin_us, grace_us) is None


def test_no_mailbox_is_refused(quick: ctypes.PyDLL) -> None:
    nowhere = native.mailbox_functions(0)
    assert nowhere.post() == native.INVALID_ARGUMENT
    assert nowhere.next(0) == native.INVALID_ARGUMENT
    assert nowhere.await_(1, 0) == native.INVALID_ARGUMENT
    assert quick.xk_mailbox_ready(None, 0) == native.INVALID_ARGUMENT
    quick.xk_mailbox_close(None)
    quick.xk_mailbox_destroy(None)
    assert quick.xk_mailbox_python_methods(None) is None
