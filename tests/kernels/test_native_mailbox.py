# SPDX-License-Identifier: Apache-2.0
"""The mailbox under load, as a C++ program and as Python meet it.

The programs check every item and print what they counted; a hang is ended by a limit.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xruntime import native

MAILBOX_SOURCE = Path(__file__).parents[2] / "kernels" / "src" / "mailbox.cpp"
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


@pytest.mark.parametrize("submitters", [1, 4])
@pytest.mark.parametrize(("spin_us", "grace_us"), [(0, 0), (50, 20)])
def test_every_item_is_handed_over_once_and_in_order(
    run: Run, submitters: int, spin_us: int, grace_us: int
) -> None:
    each = 200_000 // submitters
    answer = run("handoffs", submitters, each, spin_us, grace_us)
    assert answer == "200000 right of 200000\n"


def test_spinning_does_not_keep_the_cpu_from_the_other_side(run: Run) -> None:
    """Both ends share one CPU and would spin for a whole minute each."""
    answer = run("handoffs", 2, 500, 60_000_000, 60_000_000, "one-cpu")
    assert answer == "1000 right of 1000\n"


@pytest.mark.parametrize("spin_us", [0, 20])
def test_closing_loses_nothing_that_was_accepted(run: Run, spin_us: int) -> None:
    assert run("races", 300, 3, spin_us).startswith("300 rounds, all of ")


def test_waiting_ends_when_the_time_is_over_and_not_before(run: Run) -> None:
    assert run("timeouts") == "12 timeouts\n"


def test_signals_interrupt_a_sleep(run: Run) -> None:
    assert run("signals") == "interrupted 3 times\n"


def test_worker_gives_its_submitter_time_to_wait(run: Run) -> None:
    assert run("grace") == "200 waited for\n"


def test_no_system_call_is_made_for_nobody(run: Run) -> None:
    assert run("calls") == "1 wake\n"


@pytest.mark.parametrize("spin_us", [0, 50])
def test_thread_sanitizer_finds_no_race(run_with_thread_sanitizer: Run, spin_us: int) -> None:
    answer = run_with_thread_sanitizer("handoffs", 4, 5_000, spin_us, 20)
    assert answer == "20000 right of 20000\n"
    assert run_with_thread_sanitizer("races", 50, 3, spin_us).startswith("50 rounds")


@pytest.mark.full
@pytest.mark.parametrize("submitters", [1, 4, 16])
@pytest.mark.parametrize(("spin_us", "grace_us"), [(0, 0), (5, 0), (50, 20)])
def test_a_million_items(run: Run, submitters: int, spin_us: int, grace_us: int) -> None:
    each = 1_000_000 // submitters
    answer = run("handoffs", submitters, each, spin_us, grace_us)
    assert answer == "1000000 right of 1000000\n"


@pytest.mark.full
@pytest.mark.parametrize("spin_us", [0, 5, 50])
def test_twenty_thousand_closes(run: Run, spin_us: int) -> None:
    assert run("races", 20_000, 4, spin_us).startswith("20000 rounds")


@pytest.mark.full
@pytest.mark.parametrize("spin_us", [0, 5, 50])
def test_thread_sanitizer_finds_no_race_in_a_million_items(
    run_with_thread_sanitizer: Run, spin_us: int
) -> None:
    answer = run_with_thread_sanitizer("handoffs", 4, 250_000, spin_us, 20)
    assert answer == "1000000 right of 1000000\n"
    assert run_with_thread_sanitizer("races", 2_000, 4, spin_us).startswith("2000 rounds")
    for words in ("timeouts", "grace", "calls"):
        assert run_with_thread_sanitizer(words)


# From Python.


@pytest.fixture
def waiting(built_library: Path) -> ctypes.CDLL:
    return native.library()


@pytest.fixture
def quick(built_library: Path) -> ctypes.PyDLL:
    return native.quick_library()


@pytest.fixture
def mailbox(quick: ctypes.PyDLL) -> Iterator[int]:
    made = quick.xk_mailbox_create(50, 20)
    assert made
    yield made
    quick.xk_mailbox_destroy(made)


def test_python_hands_over_in_order(
    waiting: ctypes.CDLL, quick: ctypes.PyDLL, mailbox: int
) -> None:
    items: deque[int] = deque()
    answers: list[int] = []

    def work() -> None:
        done = 0
        while (count := waiting.xk_mailbox_next(mailbox, done)) != native.CLOSED:
            if count == native.INTERRUPTED:
                continue
            while done < count:
                answers.append(items.popleft() ** 2)
                done += 1

    worker = threading.Thread(target=work)
    worker.start()
    for number in range(2000):
        items.append(number)
        ticket = quick.xk_mailbox_post(mailbox)
        assert ticket == number + 1
        while waiting.xk_mailbox_await(mailbox, ticket, -1) == native.INTERRUPTED:
            pass
        assert answers[number] == number**2
    quick.xk_mailbox_close(mailbox)
    worker.join()
    assert len(answers) == 2000
    assert quick.xk_mailbox_post(mailbox) == native.CLOSED


def test_a_waiting_main_thread_still_runs_signal_handlers(
    waiting: ctypes.CDLL, quick: ctypes.PyDLL, mailbox: int
) -> None:
    """It waits in slices: a signal may come in the instant before it sleeps."""
    ticket = quick.xk_mailbox_post(mailbox)
    main = threading.main_thread().ident
    assert main is not None
    heard = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())

    def call() -> None:
        while not heard.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    caller = threading.Thread(target=call)
    try:
        caller.start()
        results = set()
        while not heard.is_set():
            results.add(waiting.xk_mailbox_await(mailbox, ticket, 10_000))
    finally:
        heard.set()
        caller.join()
        signal.signal(signal.SIGUSR1, before)
    assert results <= {native.INTERRUPTED, native.TIMED_OUT}


@pytest.mark.parametrize("ticket", [0, -1, 2, 2**62])
def test_await_refuses_what_no_item_can_have(
    waiting: ctypes.CDLL, quick: ctypes.PyDLL, mailbox: int, ticket: int
) -> None:
    assert quick.xk_mailbox_post(mailbox) == 1
    assert waiting.xk_mailbox_await(mailbox, ticket, 0) == native.INVALID_ARGUMENT


@pytest.mark.parametrize("done", [0, 3])
def test_next_refuses_what_cannot_be_done(
    waiting: ctypes.CDLL, quick: ctypes.PyDLL, mailbox: int, done: int
) -> None:
    """Of two items one is done: it cannot be undone, nor can a third be."""
    for ticket in (1, 2):
        assert quick.xk_mailbox_post(mailbox) == ticket
    assert waiting.xk_mailbox_next(mailbox, 1) == 2
    assert waiting.xk_mailbox_next(mailbox, done) == native.INVALID_ARGUMENT
    assert waiting.xk_mailbox_await(mailbox, 2, 0) == native.TIMED_OUT


@pytest.mark.parametrize(("spin_us", "grace_us"), [(-1, 0), (0, -1)])
def test_no_mailbox_waits_less_than_no_time(
    quick: ctypes.PyDLL, spin_us: int, grace_us: int
) -> None:
    assert quick.xk_mailbox_create(spin_us, grace_us) is None


def test_no_mailbox_is_refused(waiting: ctypes.CDLL, quick: ctypes.PyDLL) -> None:
    assert quick.xk_mailbox_post(None) == native.INVALID_ARGUMENT
    assert waiting.xk_mailbox_next(None, 0) == native.INVALID_ARGUMENT
    assert waiting.xk_mailbox_await(None, 1, 0) == native.INVALID_ARGUMENT
    quick.xk_mailbox_close(None)
    quick.xk_mailbox_destroy(None)
