# SPDX-License-Identifier: Apache-2.0
"""The report of a run as text and as JSON: what stands for what is unknown, and what is left out."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pexpect
import pytest
from tests.golden import Golden

from xlaunch.metrics.collector import InstanceMetric, MetricTotal
from xlaunch.report import CacheReport, InstanceReport, Report, TorchCompilation
from xlaunch.report.json_file import (
    COLUMNS,
    check_report_path,
    report_to_dict,
    write_report,
    write_report_or_complain,
)
from xlaunch.report.run_table import EXPLANATION, describe_total, render_report

FIRST = InstanceReport(
    index=0, pid=42, cpus_asked=(0, 1), cpus_observed=(0,), numa_nodes=(0,), exit_code=0, signal=None,
    wall_s=2.0, cpu_s=3.0, utilisation=0.75, peak_rss_bytes=5 << 20, context_switches=7,
    migrations=1, leftover_processes=0,
)  # fmt: skip
KILLED = FIRST._replace(
    index=1, pid=43, cpus_asked=(2, 3, 8), cpus_observed=(2, 8), exit_code=137, signal="SIGKILL"
)
NEVER_RAN = FIRST._replace(
    index=2, cpus_observed=(), numa_nodes=(), exit_code=127, wall_s=0.0, cpu_s=0.0, peak_rss_bytes=0,
    context_switches=0, migrations=None, started=False,
)  # fmt: skip
RUN = Report(
    exit_code=137, reason="instance 1 failed: SIGKILL", wall_s=2.345, count=3,
    instances=(FIRST, KILLED, NEVER_RAN), warnings=("a warning",), argv=("echo", "ü", "\udcff"),
)  # fmt: skip
LATENCY = MetricTotal("latency", "latency", "ms", 9.8, 40, None, 2.5, 2.0, 3.0, 12345.6, ())
RATE = MetricTotal(
    "items/s", "rate", None, None, 12, 246.08, None, None, None, None, ("no window",)
)


def test_table_shows_what_each_instance_did(golden: Golden):
    golden(render_report(RUN))


def test_table_fits_80_columns(golden: Golden):
    lines = render_report(RUN, width=80).splitlines()[1:]
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines[0].split())
    golden(shown)
    stacked = render_report(RUN, width=80, explain=True).splitlines()
    assert stacked[1] == "instance 0"
    golden(stacked)


def test_table_explains_its_columns_on_request():
    lines = render_report(RUN, explain=True).splitlines()
    assert tuple(lines[5:]) == EXPLANATION


def test_restarts_have_a_column_where_there_were_some():
    run = RUN._replace(instances=(FIRST, KILLED._replace(restarts=2)))
    for width in (None, 80):
        lines = render_report(run, width=width).splitlines()[1:]
        assert [line.split()[-1] for line in lines] == ["restarts", "0", "2"]


def test_run_without_instances_has_one_line():
    assert render_report(RUN._replace(instances=()), explain=True).count("\n") == 0


def test_caches_are_named_where_something_new_is_in_them(golden: Golden):
    run = RUN._replace(
        instances=(),
        caches=(
            CacheReport("inductor", "/c/inductor", "cold", 1, 1536),
            CacheReport("triton", "/c/triton", "used", 0, 0),
            CacheReport("numba", "/c/numba", "used", 2, 20 << 30),
        ),
        compilation=TorchCompilation(2, 1.26, 1, 3),
    )
    golden(render_report(run))


def test_metrics_have_a_table_of_instances_and_a_line_for_all(golden: Golden):
    values = (
        InstanceMetric("items/s", 12, 123.4567, 120.0),
        InstanceMetric("latency", 0, None, None),
    )
    run = RUN._replace(instances=(FIRST._replace(metrics=values),), metrics=(RATE, LATENCY))
    golden(render_report(run))


def test_line_of_a_metric(golden: Golden):
    totals = (
        RATE._replace(count=0, notes=()),
        RATE._replace(count=0, notes=("a",)),
        RATE._replace(unit="items/s", notes=()),  # no unit twice
        RATE._replace(sum=0.0, notes=("a", "b")),
    )
    golden([describe_total(total) for total in totals])


# JSON


def test_json_is_text_whatever_the_program_was_given():
    values = report_to_dict(RUN._replace(metrics=(RATE,)))
    assert json.loads(json.dumps(values)) == values
    assert values["argv"] == ["echo", "ü", "\\udcff"]
    assert values["instances"][1]["cpus_asked"] == [2, 3, 8]
    assert values["instances"][2]["migrations"] is None
    assert values["metrics"][0]["notes"] == ["no window"]
    assert (values["compilation"], values["caches"]) == (None, [])


def test_every_key_of_an_instance_is_explained_or_plain():
    plain = {"pid", "signal", "leftover_processes"}
    assert report_to_dict(RUN)["instances"][0].keys() == COLUMNS.keys() | plain


def test_report_goes_after_what_a_pipe_has(tmp_path: Path):
    """As `--report /dev/stdout` does, where the program has written."""
    out, into = os.pipe()
    os.write(into, b"the program's\n")
    write_report(RUN, f"/proc/{os.getpid()}/fd/{into}")
    os.close(into)
    with open(out) as stream:
        first, *rest = stream.read().splitlines()
    assert (first, json.loads("\n".join(rest))["exit_code"]) == ("the program's", 137)


@pytest.mark.parametrize(("code", "ends_with"), [(0, 125), (7, 7)])
def test_report_that_cannot_be_written_fails_a_run_that_succeeded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, ends_with: int
):
    run = RUN._replace(exit_code=code)
    assert write_report_or_complain(run, None) == code
    assert write_report_or_complain(run, str(tmp_path / "report.json")) == code
    assert capsys.readouterr().err == ""
    assert write_report_or_complain(run, str(tmp_path / "gone" / "report.json")) == ends_with
    assert capsys.readouterr().err.startswith("xlaunch: --report: [Errno 2] No such file")


def test_report_overwrites_a_file_that_cannot_be_replaced():
    """Such as one that is mounted into a container, or lies in a directory of another user."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "report.json")
        path.write_text("x" * 100_000)
        path.chmod(0o666)
        os.chmod(directory, 0o555)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)
            write_report(RUN, str(path))
        finally:
            if root:
                os.seteuid(0)
            os.chmod(directory, 0o700)
        assert json.loads(path.read_text())["exit_code"] == 137
        assert os.listdir(directory) == ["report.json"]


def test_report_may_lie_in_a_log_directory_that_is_about_to_be_made(tmp_path: Path):
    logs = str(tmp_path / "new" / "logs")
    for place in (logs, str(tmp_path / "new")):
        check_report_path(f"{place}/report.json", log_directory=logs)
    for path, directory in ((f"{logs}/below/report.json", logs), (f"{logs}/report.json", None)):
        with pytest.raises(Exception, match="does not exist"):
            check_report_path(path, log_directory=directory)


@pytest.mark.parametrize(("columns", "shown"), [(200, True), (80, False)])
def test_terminal_gets_the_columns_that_fit(columns: int, shown: bool):
    words = ["-m", "xlaunch", "--supervise", "--ncores", "1", "true"]
    with pexpect.spawn(sys.executable, words, dimensions=(24, columns), timeout=60) as run:
        run.expect(pexpect.EOF)
        lines = run.before.decode().splitlines()
    table = [line for line in lines if "CPUs asked" in line]
    assert len(table) == 1
    assert ("migrations" in table[0]) == shown
    assert len(table[0]) <= columns
