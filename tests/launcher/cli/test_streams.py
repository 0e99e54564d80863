# SPDX-License-Identifier: Apache-2.0
"""Standard streams: whose they are, also when they are closed, full or without a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    PATIENCE_S,
    SHOW,
    XLAUNCH,
    ask,
    clean_environment,
    run,
    xlaunch,
)
from tests.launcher.launching import is_alive

from xlaunch.files import MIN_DESCRIPTOR

SEVERAL = ("--instances", "2", "--ncores", "1", "--oversubscribe", "-q", "--no-tag")
IN_PLACE_AND_SUPERVISED = pytest.mark.parametrize(
    "options", [(), ("--supervise", "-q")], ids=["in place", "supervised"]
)


@pytest.mark.parametrize(
    "options",
    [(), ("--supervise", "-q"), SEVERAL, (*SEVERAL, "--instance-index", "1")],
    ids=["in place", "supervised", "several", "one of several"],
)
def test_what_a_program_starts_with(options: tuple[str, ...]):
    for told in xlaunch(*options, "--no-cache", SHOW, input=b"typed").shown():
        if options is SEVERAL:
            assert (told["stdin"], told["stdin_text"]) == ("/dev/null", "")
        else:
            assert told["stdin_text"] == "typed"
        assert told["descriptors"][:3] == [0, 1, 2]
        # A program that replaces the launcher holds the lock of its record, and nothing else of ours.
        is_in_place = options is not SEVERAL and "--supervise" not in options
        assert len(told["descriptors"]) == 3 + is_in_place
        assert all(number >= MIN_DESCRIPTOR for number in told["descriptors"][3:])
        assert (told["blocked"], told["sigint_ignored"]) == ([], False)


@IN_PLACE_AND_SUPERVISED
def test_program_has_the_descriptors_that_hold_caches(options: tuple[str, ...]):
    # A shell may start anything, so every cache is held.
    told = xlaunch(*options, "sh", "-c", f"exec {sys.executable} {SHOW}").only()
    assert told["descriptors"][:3] == [0, 1, 2]
    assert told["descriptors"][3:]
    assert all(number >= MIN_DESCRIPTOR for number in told["descriptors"][3:])


@IN_PLACE_AND_SUPERVISED
def test_writer_without_reader_ends_quietly(options: tuple[str, ...]):
    """Python ignores SIGPIPE; a program that inherited that would complain, or never end."""
    done = xlaunch(*options, "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert (done.code, done.out, done.err) == (0, b"y\n141\n", "")


@IN_PLACE_AND_SUPERVISED
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(tmp_path: Path, closed: str, options: tuple[str, ...]):
    proof = tmp_path / "proof"
    line = f'"$@" {closed}'
    command = ("sh", "-c", f"echo ran >> {proof}; echo out; echo err >&2; exit 3")
    done = run(("sh", "-c", line, "sh", *XLAUNCH, *options, *command))
    assert (done.code, proof.read_text()) == (3, "ran\n")
    assert done.out == (b"" if ">&- " in f"{closed} " and closed != "2>&-" else b"out\n")


def test_closed_streams_of_several(tmp_path: Path):
    command = ("sh", "-c", f"echo out; echo err >&2; cat; echo ran >> {tmp_path}/proof")
    done = run(("sh", "-c", '"$@" <&- >&- 2>&-', "sh", *XLAUNCH, *SEVERAL, *command))
    assert (done.code, (tmp_path / "proof").read_text()) == (0, "ran\nran\n")


@pytest.mark.parametrize(
    "words",
    [
        ("plan",),
        ("--version",),
        ("topology", "--json"),
        # The program wrote to a pipe and succeeded: only the launcher knows that its output is lost.
        (*SEVERAL, "echo", "out"),
    ],
    ids=" ".join,
)
def test_full_disk_under_standard_output_is_one_line(golden: Golden, words: tuple[str, ...]):
    with open("/dev/full", "wb") as full:
        message = xlaunch(*words, stdout=full).refused(125)
    golden(message)


def test_error_that_cannot_be_printed_keeps_its_exit_code():
    with open("/dev/full", "wb") as full:
        assert xlaunch("no-such-program", stderr=full).code == 127
        relayed = ("--supervise", "--tag", "-q", "sh", "-c", "echo err >&2; exit 3")
        assert xlaunch(*relayed, stderr=full).code == 3
    assert run(("sh", "-c", '"$@" 2>&-', "sh", *XLAUNCH, "no-such-program")).code == 127


def test_reader_that_has_enough_of_a_plan_gets_no_complaint():
    line = '"$@" | true; exit ${PIPESTATUS[1]}'
    for words in (("plan", "--explain"), ("--version",)):
        done = run(("bash", "-c", line, "bash", *XLAUNCH, *words))
        assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_any_name_can_be_printed_anywhere(golden: Golden, encoding: str):
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    name = b"\xff-\xc3\xbc-\xe2\x82\xac.py"
    golden(ask(name, env=env).refused(127))
    done = ask("plan", "--", "echo", name, env=env)
    assert (done.code, done.err) == (0, "")


def test_launcher_leaves_its_own_process_group_and_mask_alone():
    """What starts the launcher is as it was: mask, and still the group it was in."""
    code = (
        "import os, subprocess, sys; before = os.sched_getaffinity(0), os.getpgrp();"
        "subprocess.run(sys.argv[1:], check=True);"
        "assert (os.sched_getaffinity(0), os.getpgrp()) == before"
    )
    one_cpu = ("--ncores", "1", "-q", "--supervise", "true")
    subprocess.run([sys.executable, "-c", code, *XLAUNCH, *one_cpu], check=True)


def test_what_a_shell_left_running_before_it_became_the_launcher_lives_on(tmp_path: Path):
    """`server & exec xlaunch ...`: the server is not the launcher's to end."""
    line = 'cat & echo $!; exec 0<&- 1>&-; exec "$@"'
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = (*XLAUNCH, "--supervise", "-q", "--", "sh", "-c", "sleep 600 & exit 3")
    with subprocess.Popen(
        ("bash", "-c", line.replace("cat", f"sh -c 'cat {fifo} >&2'"), "bash", *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as launcher:
        server = int(launcher.stdout.readline())
        assert launcher.wait(PATIENCE_S) == 3
        assert is_alive(server)
        fifo.write_text("it still serves")
        assert launcher.stderr.read() == b"it still serves"
