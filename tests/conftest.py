# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how a test says that it needs something which may be absent.

With XLAUNCH_TESTS_MUST_NOT_SKIP, which `.ci/run` sets, each skip is a failure, whatever skipped: all that can
be installed is installed there. Only a test that is marked `machine` may skip: it needs what no package
brings, such as root, two CPUs or readable energy counters. With XLAUNCH_TESTS_SKIPPED, the names of what else
skips are written to the file of that name, for a second run on a machine that has what they need.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from unittest import mock

import hypothesis
import pytest

# Otherwise every process would compile its modules again, and a start of xlaunch take twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A difference of recorded outputs is shown line by line.
pytest.register_assert_rewrite("tests.golden")

from tests.golden import Golden  # noqa: E402
from tests.inductor import SETTINGS  # noqa: E402

# On a busy machine any example may take long.
hypothesis.settings.register_profile("xlaunch", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xlaunch")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector leaves out modules and tests: to look through all of them takes a third of a second.

    Files of any directory import torch._inductor, which reads its settings then, and sets one variable.
    """
    gc.disable()
    with mock.patch.dict(os.environ, SETTINGS):
        found = yield
    gc.freeze()
    gc.enable()
    return found


@pytest.fixture(scope="session", autouse=True)
def _own_records(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Launches of one test process do not see those of another one, whose cores they would avoid."""
    os.environ["XLAUNCH_RECORDS_DIR"] = str(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def needs() -> Callable[[object, str], None]:
    """`needs(found, what)`: skip where `found` is nothing.

    **Ex.:** ``needs(shutil.which("readelf"), "readelf (Debian: binutils)")``
    """

    def check(found: object, what: str) -> None:
        if not found:
            pytest.skip(f"needs {what}")

    return check


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(output, ...)`: compare what was printed with what is recorded in `TEST_FILE.golden`.

    The test's directory is recorded as TMP, and the interpreter as PYTHON.
    """
    names = {sys.executable: "PYTHON"}
    if "tmp_path" in request.fixturenames:
        names = {str(request.getfixturevalue("tmp_path")): "TMP"} | names
    return Golden(request.path.with_suffix(".golden"), request.node.name, names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("machine") is None:
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that skips as a whole, by `pytest.importorskip`."""
    report = yield
    _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("XLAUNCH_TESTS_MUST_NOT_SKIP") or hasattr(report, "wasxfail"):
        return
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"XLAUNCH_TESTS_MUST_NOT_SKIP is set, and this skips: {report.longrepr}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    path = os.environ.get("XLAUNCH_TESTS_SKIPPED")
    if path:
        skipped = terminalreporter.stats.get("skipped", [])
        names = [it.nodeid for it in skipped if "machine" not in it.keywords]
        with Path(path).open("a") as stream:  # a second run of what failed adds nothing
            stream.writelines([f"{name}\n" for name in names])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is in one tier: `-m long` would run what is marked `full` too."""
    both = [
        item.nodeid for item in items if {"long", "full"} <= {m.name for m in item.iter_markers()}
    ]
    if both:
        raise pytest.UsageError(f"marked `long` and `full`, and one is allowed: {', '.join(both)}")
