# SPDX-License-Identifier: Apache-2.0
"""Sampling during real runs, explained messages, and samples that are merged."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import xlaunch

from xlaunch.report.device_use import DeviceSample, Reading
from xlaunch.report.device_watch import MAX_SAMPLES, MESSAGES, DeviceWatch, KnownMessages, merge

WORKS = """
import sys, time
end = time.monotonic() + 0.6
while time.monotonic() < end: pass
sys.stderr.write("Overriding a previously "); sys.stderr.flush()
sys.stderr.write("registered kernel for aten::add\\n")
print("result")
sys.exit(3)
"""


def test_launch_reports_devices_and_keeps_its_exit_code(tmp_path: Path):
    report = tmp_path / "report.json"
    words = ("--ncores", "1", "--verify-device", "--report", report, sys.executable, "-c", WORKS)
    done = xlaunch(*words)
    assert (done.code, done.out) == (3, b"result\n")
    written = json.loads(report.read_text())
    values, (instance,) = written["devices"], written["instances"]
    assert values["cpus"] == 1
    # Other work may share the CPU; the program itself keeps one busy.
    assert values["cpus_used"] == pytest.approx(instance["utilisation"], rel=0.5)
    assert f"device: {values['verdict']}" in done.err
    (message,) = values["messages"]
    assert message.startswith('"Overriding a previously registered kernel" is harmless')
    assert message in done.err


def test_launch_without_it_has_no_such_part(tmp_path: Path):
    report = tmp_path / "report.json"
    assert "device:" not in xlaunch("--ncores", "1", "--report", report, "true").err
    assert json.loads(report.read_text())["devices"] is None


def test_message_in_pieces_is_explained_once():
    messages = KnownMessages()
    text = MESSAGES[0].text
    for _ in range(2):
        for byte in range(len(text)):
            messages.feed(0, text[byte : byte + 1])
            messages.feed(1, b"another instance writes between")
    assert len(messages.explanations()) == 1


def sample(at_s: float, busy: float | None, memory: int | None) -> DeviceSample:
    return DeviceSample(at_s, 1.0, 2.0, (Reading(busy, None, memory, None, 100.0),))


def test_merged_samples_have_the_mean_and_the_largest_memory():
    merged = merge(sample(1, 0.2, 5), sample(2, 0.6, 3))
    assert merged == DeviceSample(2, 2.0, 2.0, (Reading(pytest.approx(0.4), None, 5, None, 100.0),))
    assert merge(merged, sample(3, None, None)).readings[0].busy == pytest.approx(0.4)


def test_long_run_keeps_its_means_in_few_samples():
    watch = DeviceWatch(0.0, 1, {})
    for tick in range(1, 2 * MAX_SAMPLES):
        watch.look(0.25 * tick, ())
    report = watch.report()
    assert MAX_SAMPLES / 2 <= len(report.samples) < MAX_SAMPLES
    assert sum(one.length_s for one in report.samples) == pytest.approx(
        0.25 * (2 * MAX_SAMPLES - 1)
    )
    assert report.samples[-1].at_s == pytest.approx(0.25 * (2 * MAX_SAMPLES - 1))


def on_terminal(*words: str) -> bytes:
    """What a launch writes to a terminal that is its standard error."""
    master, slave = os.openpty()
    code = "import sys, time; time.sleep(0.8); print('printed', file=sys.stderr)"
    with open(master, "rb", buffering=0) as terminal:
        xlaunch(*words, "--ncores", "1", sys.executable, "-c", code, stderr=slave)
        os.close(slave)
        data = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := terminal.read(1 << 16):
                data += more
    return data


def test_live_line_is_erased_before_other_output():
    data = on_terminal("--verify-device")
    assert b"of 1 CPUs" in data
    before, _, after = data.partition(b"printed\r\n")
    assert before.endswith(b"\r\x1b[K")
    # What is shown at the end is no live line.
    assert b"of 1 CPUs" not in after.rpartition(b"\x1b[K")[2].partition(b"device:")[0]


@pytest.mark.parametrize("words", [("--verify-device", "-q"), ("--supervise",)])
def test_live_line_is_for_those_who_want_it(words: tuple[str, ...]):
    assert b"\x1b[K" not in on_terminal(*words)


def test_program_on_a_pseudo_terminal_still_has_one():
    master, slave = os.openpty()
    words = ("--pty", "--verify-device", "-q", "--ncores", "1", "sh", "-c", "test -t 1 && exit 7")
    with open(master, "rb", buffering=0):
        done = xlaunch(*words, stdout=slave, stderr=slave)
        os.close(slave)
    assert done.code == 7
