# SPDX-License-Identifier: Apache-2.0
"""Output of several instances: tagged, whole, complete."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import Golden
from tests.launcher.cli.commands import XLAUNCH, Word, ask, run, xlaunch
from tests.launcher.launching import PATIENCE_S, children_of, state_of, wait_until
from tests.tiers import quick_first

from xlaunch.output.destinations import LINE_CAP, LineTagger, last_lines

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")


def begun(*words: Word, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A launch of two instances whose output the test reads, or does not."""
    return subprocess.Popen([*XLAUNCH, *TWO, *words], stdout=subprocess.PIPE, stderr=stderr)


def tagged(chunks: list[bytes], *, terminal: bool = False) -> bytes:
    tagger = LineTagger("3", terminal=terminal)
    return b"".join(tagger.feed(chunk) for chunk in chunks) + tagger.finish()


def test_every_line_gets_the_tag_and_the_last_one_an_end():
    assert tagged([b"a\nb", b"\n\nc\nlast"]) == b"[3] a\n[3] b\n[3] \n[3] c\n[3] last\n"


def test_no_tag_means_whole_lines_without_one():
    tagger = LineTagger("", terminal=False)
    assert tagger.feed(b"a\nb") + b"|" + tagger.finish() == b"a\n|b\n"


@pytest.mark.parametrize("size", [LINE_CAP - 1, LINE_CAP, LINE_CAP + 1, 3 * LINE_CAP + 7])
@pytest.mark.parametrize("step", [4096, 65536])
def test_long_line_is_cut_and_marked(size, step):
    line = bytes(ord("a") + index % 26 for index in range(size)) + b"\nend\n"
    out = tagged([line[at : at + step] for at in range(0, len(line), step)])
    pieces = out.split(b"\n")[:-1]
    assert pieces[-1] == b"[3] end"
    assert all(piece.startswith(b"[3]+ ") for piece in pieces[1:-1])
    assert all(len(piece) <= LINE_CAP + 5 for piece in pieces)
    joined = b"".join(piece.split(b" ", 1)[1] for piece in pieces[:-1])
    assert joined == line[:size]


def test_progress_bar_is_one_line_in_a_file_and_updates_on_a_terminal():
    updates = [b"\r 10%", b"\r 20%", b"\r100%\n"]
    assert tagged(updates) == b"[3] \r 10%\r 20%\r100%\n"
    shown = tagged(updates, terminal=True)
    assert re.sub(rb"\x1b\[K|\[3\] ", b"", shown) == b"\r 10%\r 20%\r100%\n"
    assert shown.count(b"[3] ") == 4


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r", b"\r\n"]), max_size=12),
    st.booleans(),
)
def test_taking_the_tags_away_gives_the_bytes_back(chunks, terminal):
    # The tag's own bytes must not occur in the input for this way of taking it away.
    chunks = [chunk.replace(b"[", b"(").replace(b"\x1b", b"e") for chunk in chunks]
    data = b"".join(chunks)
    out = tagged(chunks, terminal=terminal).replace(b"\x1b[K", b"").replace(b"[3] ", b"")
    assert out == data + (b"\n" if data and not data.endswith(b"\n") else b"")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_how_the_bytes_arrive_does_not_matter(data, cuts):
    cuts = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    chunks = [data[low:high] for low, high in itertools.pairwise(cuts)]
    assert tagged(chunks) == tagged([data])


WRITER = r"""
import os, sys
index = os.environ["XLAUNCH_INSTANCE_INDEX"]
for number in range(400):
    line = f"{index}:{number}:" + "x" * (number * 7 % 900) + "\n"
    for at in range(0, len(line), 97):
        os.write(1, line[at:at+97].encode())
    os.write(2, f"{index}:err:{number}\n".encode())
os.write(1, b"last of " + index.encode())
"""


def test_lines_of_four_instances_never_mix_and_streams_stay_apart():
    layout = ("--instances", "4", "--ncores", "1", "--oversubscribe", "-q")
    done = xlaunch(*layout, "--", sys.executable, "-c", WRITER)
    lines, all_errors = done.out.decode().splitlines(), done.err.splitlines()
    for index in range(4):
        mine = [line[4:] for line in lines if line.startswith(f"[{index}] ")]
        expected = [f"{index}:{n}:" + "x" * (n * 7 % 900) for n in range(400)]
        assert mine == [*expected, f"last of {index}"]
        errors = [f"[{index}] {index}:err:{n}" for n in range(400)]
        assert [line for line in all_errors if line.startswith(f"[{index}]")] == errors
    assert len(lines) == 4 * 401


def test_log_files_get_the_very_bytes_and_keep_the_earlier_run(tmp_path):
    logs = tmp_path / "logs"
    data = bytes(range(256)) * 300 + b"no newline"
    every = "bytes(range(256)) * 300 + b'no newline'"
    program = f"import os; os.write(1, {every}); os.write(2, bytes([255]))"
    options = (*TWO, "--log-dir", logs, "-q", "--", sys.executable)
    assert xlaunch(*options, "-c", program) == (0, b"", "")
    for index in (0, 1):
        assert (logs / f"instance-{index}.out").read_bytes() == data
        assert (logs / f"instance-{index}.err").read_bytes() == b"\xff"
    assert xlaunch(*options, "-c", "print('second')").code == 0
    assert (logs / "instance-0.out").read_bytes() == b"second\n"
    assert (logs / "instance-0.out.1").read_bytes() == data


@pytest.mark.parametrize("more", quick_first([(), ("--tee",)]))
def test_logs_of_a_running_launch_are_left_alone(
    golden: Golden, tmp_path: Path, more: tuple[str, ...]
):
    logs = tmp_path / "logs"
    options = (*TWO, "--log-dir", logs, *more, "-q", "--instance-index")
    first = [*XLAUNCH, *options, "0", "--", "sh", "-c", "echo first; exec sleep 100"]
    with subprocess.Popen(first, stdout=subprocess.DEVNULL) as running:
        log = logs / "instance-0.out"
        wait_until(lambda: log.exists() and log.read_text() == "first\n", "its output")
        problem = xlaunch(*options, "0-1", "echo", "second").refused(2)
        golden(problem)
        # Other instances of the same layout have files of their own.
        assert xlaunch(*options, "1", "echo", "second").code == 0
        assert sorted(os.listdir(logs)) == sorted(
            [f"instance-{index}.{stream}" for index in (0, 1) for stream in ("out", "err")]
        )
        running.terminate()
    assert log.read_text() == "first\n"
    assert xlaunch(*options, "0", "echo", "second").code == 0
    assert log.read_text() == "second\n"


def test_a_failed_instance_shows_the_end_of_its_log(tmp_path):
    logs = tmp_path / "logs"
    program = (
        "import os, sys\n"
        "for n in range(20): print('line', n, file=sys.stderr)\n"
        "if os.environ['XLAUNCH_INSTANCE_INDEX'] == '1': sys.exit('half\\rno data')\n"
        "import time; time.sleep(100)"
    )
    options = (*TWO, "--log-dir", logs)
    done = xlaunch(*options, sys.executable, "-c", program)
    assert done.code == 1
    shown = [f"  line {n}" for n in range(11, 20)] + ["  no data"]
    lines = done.err.splitlines()
    begin = lines.index(f"xlaunch: the end of {logs}/instance-1.err:") + 1
    assert lines[begin : begin + 10] == shown
    assert "the end of" not in xlaunch(*options, "-q", sys.executable, "-c", program).err


def test_last_lines_of_any_file(tmp_path):
    path = tmp_path / "log"
    assert last_lines(str(path)) == []
    for text, lines in (
        (b"", []), (b"\n\n", []), (b"a\r\nb", ["a", "b"]), (b"\xff", ["\ufffd"]),
        (b"x" * 20_000 + b"\nlast\n", ["last"]),
    ):  # fmt: skip
        path.write_bytes(text)
        assert last_lines(str(path)) == lines


def test_reader_that_leaves_ends_the_instances_as_sigpipe_would():
    code = "import sys\nwhile True: sys.stdout.write('x' * 1000 + '\\n')"
    with begun("-q", "--", sys.executable, "-c", code, stderr=subprocess.PIPE) as run:
        run.stdout.readline()
        run.stdout.close()
        errors = run.stderr.read()
    assert run.returncode == 1
    assert b"BrokenPipeError" in errors


def waits_for_pipe(pid: int) -> bool:
    """Whether a process sleeps in write() and has not written for a while."""
    before = Path(f"/proc/{pid}/io").read_text()
    time.sleep(0.1)
    # One that is ready to run and waits for a CPU does not sleep.
    return state_of(pid) == "S" and before == Path(f"/proc/{pid}/io").read_text()


def test_slow_reader_does_not_make_the_supervisor_deaf():
    """Nobody reads its output, and it still ends its instances when told to."""
    code = "while True: print('x' * 1000)"
    with begun("-q", "--", sys.executable, "-c", code) as run:
        run.stdout.readline()  # nothing more, so that every buffer on the way fills up
        (supervisor,) = children_of(run.pid)
        for instance in children_of(supervisor):
            wait_until(lambda pid=instance: waits_for_pipe(pid), f"{instance} to be held up")
        run.terminate()
        rest = run.stdout.read()
    assert run.returncode == 143
    assert len(rest) > 100_000
    assert rest.endswith(b"\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_ends_the_wait_for_a_reader(tmp_path, name):
    """The instances have ended, and nobody takes what they wrote."""
    report = tmp_path / "report.json"
    code = "print('x' * 150_000)"
    with begun("--report", report, "-q", "--", sys.executable, "-c", code) as run:
        os.read(run.stdout.fileno(), 1)  # no more of it
        (supervisor,) = children_of(run.pid)
        wait_until(lambda: not children_of(supervisor), "the end of the instances")
        run.send_signal(signal.Signals[name])
        assert run.wait(PATIENCE_S) == 128 + signal.Signals[name]
    assert json.loads(report.read_text())["reason"] == (
        f"{name} came while output waited for its reader"
    )


def test_nobody_waits_for_a_reader_after_a_kill():
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True: print('x' * 1000)"
    )
    with begun("--grace", "100ms", "-q", "--", sys.executable, "-c", code) as run:
        os.read(run.stdout.fileno(), 1)
        run.terminate()
        assert run.wait(PATIENCE_S) in (137, 143)  # 143: it came before the program ignored it


def test_report_goes_to_a_file_and_the_table_to_stderr(tmp_path):
    report = tmp_path / "report.json"
    code = "import os, time\nwhile time.process_time() < 0.4: pass\nx = bytearray(64 << 20)"
    done = xlaunch(*TWO, "--report", report, "--", sys.executable, "-c", code)
    assert done.out == b""
    assert "2 instances succeeded" in done.err
    values = json.loads(report.read_text())
    assert values["exit_code"] == 0
    assert [instance["index"] for instance in values["instances"]] == [0, 1]
    for instance in values["instances"]:
        assert instance["cpus_observed"] == instance["cpus_asked"]
        assert instance["cpu_s"] >= 0.4
        assert instance["wall_s"] > 0
        assert 64 << 20 < instance["peak_rss_bytes"] < 200 << 20
        assert set(instance) - {"pid", "signal", "leftover_processes"} == set(values["columns"])


@pytest.mark.machine
def test_report_says_when_a_program_moves_itself(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two CPUs to move between")
    report = tmp_path / "report.json"
    code = (
        f"import os, time; os.sched_setaffinity(0, {{{allowed[1]}}})\n"
        "while time.process_time() < 0.5: pass"
    )
    xlaunch("--cpus", str(allowed[0]), "--report", report, "-q", "--", sys.executable, "-c", code)
    values = json.loads(report.read_text())
    assert allowed[1] in values["instances"][0]["cpus_observed"]
    assert "changed its own affinity" in values["warnings"][-1]


TEE = ("--log-dir", "logs", "--tee", "--allocator", "glibc")


@pytest.mark.parametrize("count", [1, 2])
def test_tee_writes_to_the_files_and_shows_the_same(tmp_path: Path, count: int) -> None:
    program = "import sys; print('out', end=''); print('first\\nlast', file=sys.stderr)"
    layout = TWO if count == 2 else ()
    done = xlaunch(*layout, *TEE, "-q", sys.executable, "-c", program, cwd=tmp_path)
    assert done.code == 0
    for index in range(count):
        assert (tmp_path / f"logs/instance-{index}.out").read_bytes() == b"out"
        assert (tmp_path / f"logs/instance-{index}.err").read_bytes() == b"first\nlast\n"
    tags = [b"[%d] " % index for index in range(count)] if count > 1 else [b""]
    assert sorted(done.out.splitlines()) == [tag + b"out" for tag in tags]
    shown = [tag.decode() + line for tag in tags for line in ("first", "last")]
    assert sorted(done.err.splitlines()) == sorted(shown)


def test_a_log_is_complete_when_the_reader_has_gone(tmp_path: Path) -> None:
    command = " ".join([*XLAUNCH, *TEE, "-q", "seq", "100000"])
    done = run(("bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"), cwd=tmp_path)
    assert (done.code, done.out) == (0, b"1\n")
    lines = (tmp_path / "logs/instance-0.out").read_text().splitlines()
    assert (len(lines), lines[-1]) == (100_000, "100000")


def test_a_file_that_cannot_grow_ends_the_log_and_the_run_has_lost_output(tmp_path: Path) -> None:
    command = " ".join([*XLAUNCH, *TEE, "--no-cache", "--report", "/dev/fd/9", "seq", "1000"])
    read, write = os.pipe()  # the file of a report could not grow, either
    limited = f"ulimit -f 1; exec {command} 9>&{write}"
    done = run(("bash", "-c", limited), cwd=tmp_path, pass_fds=(write,))
    os.close(write)
    with open(read) as stream:
        report = json.load(stream)
    assert done.code == report["exit_code"] == 125, done.err
    assert report["reason"] == "output was lost"
    (warning,) = [it for it in report["warnings"] if "cannot write a log file" in it]
    assert str(Path("logs/instance-0.out")) in warning
    assert done.out.split()[-1] == b"1000"
    assert done.err.count("instance 0 is no longer logged") == 1
    assert "cannot write a log file: File too large" in done.err
    assert (tmp_path / "logs/instance-0.out").stat().st_size == 1024


def test_metrics_and_failures_under_tee(golden: Golden, tmp_path: Path) -> None:
    program = "print('5.0 items/s'); raise SystemExit(3)"
    report = tmp_path / "run.json"
    options = (*TEE, "--metric", "items/s", "--report", report)
    done = xlaunch(*options, sys.executable, "-c", program, cwd=tmp_path)
    assert done.code == 3
    (instance,) = json.loads(report.read_text())["instances"]
    assert [metric["count"] for metric in instance["metrics"]] == [1]
    assert "the end of" not in done.err  # it was shown already
    golden(ask("--tee", "true").refused())
