# SPDX-License-Identifier: Apache-2.0
"""What launches were made with, kept host by host, and told where it differs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.tuner.search.studies import store_of, worker
from tests.tuner.search.test_study import again, launch, step

from xlaunch.environment.program import resolve_program
from xlaunch.planning.request import ProgramRequest
from xtune.search.records import Provenance, outdated
from xtune.search.storage import Storage, open_storage
from xtune.space.identities import installed

OLD = Provenance("abc", {"program": {"torch": "2.11.0", "numpy": "2.2"}, "system": {}, "tuner": {}})
NEW = Provenance("abc", {"program": {"torch": "2.13.0", "numpy": "2.2"}, "system": {}, "tuner": {}})


@pytest.fixture(params=["studies.db", "studies.journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / request.param))


def test_each_launch_is_known_by_what_it_was_made_with(storage: Storage) -> None:
    for number, (host, made, value) in enumerate(
        [("node1", OLD, 1.0), ("node2", NEW, 2.0), ("node1", OLD, None), ("node1", OLD, 3.0)]
    ):
        store = store_of(again(storage), worker=worker(host))
        store.made = made
        assert store.finish(store.claim(step(number)), launch(value))
    records = store_of(again(storage)).records()
    assert [record.made for record in records] == [OLD, NEW, OLD, OLD]
    assert outdated(records, NEW) == ((1, 4), ("torch 2.11.0 (now 2.13.0)",)), "not the failed one"
    assert outdated(records, OLD) == ((2,), ("torch 2.13.0 (now 2.11.0)",))


def test_what_differs_is_told(golden: Golden) -> None:
    edited = OLD._replace(content="def")
    golden(OLD.differences(edited))
    fewer = OLD._replace(installed={"program": {"torch": "2.11.0"}, "system": {"kernel": "6.1"}})
    golden(OLD.differences(fewer))
    moved = OLD._replace(
        installed={
            **OLD.installed,
            "program": {**OLD.installed["program"], "interpreter": "/opt/python"},
            "tuner": {"plotly": "7.1.0"},
        }
    )
    assert OLD.differences(moved) == (), "where Python lies, and what draws pages, is no difference"
    newer = OLD._replace(installed={**OLD.installed, "tuner": {"xtune": "0.2.0"}})
    golden(OLD.differences(newer))


def test_what_is_installed_here() -> None:
    words = (sys.executable, "-c", "pass")
    found = installed(resolve_program(ProgramRequest(words), os.environ))
    version = ".".join(map(str, sys.version_info[:2]))
    assert found["program"]["Python"] == version
    assert found["program"]["interpreter"] == sys.executable
    assert found["program"]["torch"].startswith("2.")
    assert found["tuner"]["xtune"]
    assert found["system"]["kernel"].startswith("Linux ")
