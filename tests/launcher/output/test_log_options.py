# SPDX-License-Identifier: Apache-2.0
"""`--log-format json` and `--log-size`: every line once and whole, in files and on the terminal."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, xlaunch

from xlaunch.output.destinations import LINE_CAP, JsonLines, LogFile

TWO = ("--instances", "2", "--ncores", "1", "--oversubscribe")
SAYS = (
    "import os, sys; n = os.environ['XLAUNCH_INSTANCE_INDEX']\n"
    "print('out', n); print('ünï \"quoted\"', n, file=sys.stderr)\n"
    "sys.stdout.buffer.write(b'\\xff no end')"
)


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert list(one) == ["time", "instance", "stream", "line"]
        assert datetime.fromisoformat(one["time"]).tzinfo is not None
    return found


def lines_of(found: list[dict[str, Any]], instance: int | None, stream: str) -> list[str]:
    return [it["line"] for it in found if (it["instance"], it["stream"]) == (instance, stream)]


def test_every_line_is_an_object():
    done = xlaunch(*TWO, "--log-format", "json", "--timeout", "1h", sys.executable, "-c", SAYS)
    assert done.code == 0
    out, err = objects(done.out.decode()), objects(done.err)
    for index in (0, 1):
        assert lines_of(out, index, "out") == [f"out {index}", "\ufffd no end"]
        assert lines_of(err, index, "err") == [f'ünï "quoted" {index}']
    own = lines_of(err, None, "xlaunch")
    assert any(line.startswith("xlaunch: 2 instances succeeded") for line in own)
    assert len(out) + len(err) == 6 + len(own)


@pytest.mark.parametrize("tee", [(), ("--tee",)])
def test_files_of_json(tmp_path: Path, tee: tuple[str, ...]):
    options = (*TWO, "-q", "--log-format", "json", "--log-dir", "logs", *tee)
    done = xlaunch(*options, sys.executable, "-c", SAYS, cwd=tmp_path)
    assert done.code == 0, done.err
    for index in (0, 1):
        found = objects((tmp_path / f"logs/instance-{index}.out").read_text())
        assert lines_of(found, index, "out") == [f"out {index}", "\ufffd no end"]
    assert len(objects(done.out.decode())) == (4 if tee else 0)
    assert len(objects(done.err)) == (2 if tee else 0)


def test_single_instance_and_metrics_under_json(tmp_path: Path):
    done = xlaunch(
        *("--log-format", "json", "--log-dir", "logs", "--metric", "x/s", "--report", "report"),
        *("-q", "sh", "-c", "echo 3 x/s; echo 5 x/s"),
        cwd=tmp_path,
    )
    assert (done.code, done.out, done.err) == (0, b"", "")
    report = json.loads((tmp_path / "report").read_text())
    assert report["instances"][0]["metrics"][0]["last"] == 5


def test_lines_are_cut_and_joined_over_chunks():
    lines = JsonLines(3, "err")
    assert lines.feed(b"a") == b""
    assert lines_of(objects(lines.feed(b"b\r\n\nc").decode()), 3, "err") == ["ab", ""]
    long = lines.feed(b"x" * 2 * LINE_CAP).decode()
    assert [len(line) for line in lines_of(objects(long), 3, "err")] == [LINE_CAP] * 2
    assert lines_of(objects(lines.finish().decode()), 3, "err") == ["x"]
    assert lines.finish() == b""
    whole = lines.feed(b"x" * LINE_CAP + b"yz\n" + b"x" * LINE_CAP + b"\n").decode()
    assert [line[-2:] for line in lines_of(objects(whole), 3, "err")] == ["xx", "yz", "xx"]


@pytest.mark.parametrize("options", [(), ("--tee",), ("--log-format", "json")])
def test_files_stay_below_their_size(tmp_path: Path, options: tuple[str, ...]):
    code = "for i in range(3000): print(i, flush=not i % 50)"
    done = xlaunch(
        *("-q", "--log-dir", "logs", "--log-size", "4KiB", *options, sys.executable, "-c", code),
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    old, new = [(tmp_path / f"logs/instance-0.out{end}").read_text() for end in (".1", "")]
    assert old.endswith("\n")
    found = (old + new).splitlines()
    if "json" in options:
        found = [json.loads(line)["line"] for line in found]
    assert found == [str(i) for i in range(3000 - len(found), 3000)]  # nothing lost, nothing twice
    assert len(new) < 100_000
    assert bool(done.out) == ("--tee" in options)


def test_file_is_moved_at_the_end_of_a_line(tmp_path: Path):
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = LogFile(descriptor, str(path), 10)
    for data in (b"0123456789ab", b"cd", b"ef\nnew", b"\n", b"12345\n", b"x\n"):
        assert log.write(data) is None
    log.close()
    assert (path.read_bytes(), (tmp_path / "log.1").read_bytes()) == (b"x\n", b"new\n12345\n")


def test_size_without_files_is_refused(golden: Golden):
    golden(
        ask("--log-size", "1MB", "true").refused(),
        ask("--log-size", "x", "true").refused(),
        ask("--log-format", "x", "true").refused(),
    )
