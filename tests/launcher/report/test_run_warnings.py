# SPDX-License-Identifier: Apache-2.0
"""Warnings of a run are text that keeps its kind on the way to the caller."""

from __future__ import annotations

import json
import pickle

import xlaunch
from xlaunch.errors import RunWarning, WarningKind, kind_of
from xlaunch.planning import Request


def test_a_warning_is_its_text() -> None:
    warning = RunWarning("CPU 0 is busy", WarningKind.SHARED_CPUS)
    assert warning == "CPU 0 is busy"
    assert json.dumps([warning]) == '["CPU 0 is busy"]'
    assert kind_of(warning) is WarningKind.SHARED_CPUS
    assert kind_of("CPU 0 is busy") is WarningKind.OTHER


def test_a_warning_keeps_its_kind_between_processes() -> None:
    sent = pickle.loads(pickle.dumps(RunWarning("text", WarningKind.UNSEEN_METRIC)))
    assert (sent, kind_of(sent)) == ("text", WarningKind.UNSEEN_METRIC)


def test_the_report_of_a_launch_has_kinds() -> None:
    request = Request.of("true", metric=("items/s",))
    plan = xlaunch.plan(request.layout, xlaunch.read_machine())
    report = xlaunch.launch(plan, request.program, request.run)
    unseen = [text for text in report.warnings if kind_of(text) is WarningKind.UNSEEN_METRIC]
    assert unseen == ["--metric 'items/s': no line has it, nor any other number"]
