# SPDX-License-Identifier: Apache-2.0
"""What launches were made with, kept host by host, and told where it differs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.tuner.search.studies import SUBJECT, store_of, worker
from tests.tuner.search.test_study import again, launch, step

from xlaunch.planning import Request
from xtune.search.provenance import Provenance, keep_provenance, made_with, outdated
from xtune.search.storage import Storage, open_storage
from xtune.search.study import open_study
from xtune.space.installed import installed

OLD = Provenance("abc", {"program": {"torch": "2.11.0", "numpy": "2.2"}, "system": {}, "tuner": {}})
NEW = Provenance("abc", {"program": {"torch": "2.13.0", "numpy": "2.2"}, "system": {}, "tuner": {}})


@pytest.fixture(params=["studies.db", "studies.journal"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / request.param))


def make(
    storage: Storage, host: str, number: int, made: Provenance, value: float | None = 1.5
) -> None:
    """A launch of a host, as a worker that has just been started there would make it."""
    store = store_of(again(storage), worker=worker(host))
    keep_provenance(open_study(again(storage), SUBJECT), store.host, store.records(), made)
    claimed = store.claim(step(number))
    assert claimed is not None
    assert store.finish(claimed, launch(value))


def test_each_launch_is_known_by_what_it_was_made_with(storage: Storage) -> None:
    for number, (host, made) in enumerate(
        [("node1", OLD), ("node2", NEW), ("node1", OLD), ("node1", NEW), ("node2", NEW)]
    ):
        make(storage, host, number, made)
    study, records = open_study(again(storage), SUBJECT), store_of(again(storage)).records()
    found = made_with(study, records)
    assert [(one.provenance, one.numbers) for one in found] == [(OLD, (1, 3)), (NEW, (2, 4, 5))]
    assert outdated(found, NEW) == ((1, 3), ("torch 2.11.0 (now 2.13.0)",))
    assert outdated(found, OLD) == ((2, 4, 5), ("torch 2.13.0 (now 2.11.0)",))


def test_launches_that_failed_are_nobodys(storage: Storage) -> None:
    for number, value in enumerate((1.5, None, 2.5)):
        make(storage, "node1", number, OLD, value)
    (found,) = made_with(open_study(again(storage), SUBJECT), store_of(again(storage)).records())
    assert found.numbers == (1, 3)


def test_launches_of_before_it_was_kept_are_nobodys(storage: Storage) -> None:
    store = store_of(storage, worker=worker("node1"))
    first = store.claim(step(0))
    assert first is not None
    store.finish(first, launch())
    make(storage, "node1", 1, NEW)
    (found,) = made_with(open_study(again(storage), SUBJECT), store_of(again(storage)).records())
    assert found.numbers == (2,)


def test_what_differs_is_told() -> None:
    edited = OLD._replace(content="def")
    assert OLD.differences(edited) == ("the program as it was before an edit",)
    fewer = OLD._replace(installed={"program": {"torch": "2.11.0"}, "system": {"kernel": "6.1"}})
    assert OLD.differences(fewer) == ("numpy 2.2 (now none)", "kernel none (now 6.1)")
    moved = OLD._replace(
        installed={
            **OLD.installed,
            "program": {**OLD.installed["program"], "interpreter": "/opt/python"},
            "tuner": {"plotly": "7.1.0"},
        }
    )
    assert OLD.differences(moved) == (), "where Python lies, and what draws pages, is no difference"
    newer = OLD._replace(installed={**OLD.installed, "tuner": {"xtune": "0.2.0"}})
    assert OLD.differences(newer) == ("xtune none (now 0.2.0)",)


def test_what_is_installed_here() -> None:
    found = installed(Request.of(sys.executable, "-c", "pass"))
    version = ".".join(map(str, sys.version_info[:2]))
    assert found["program"]["Python"] == version
    assert found["program"]["interpreter"] == sys.executable
    assert found["program"]["torch"].startswith("2.")
    assert found["tuner"]["xtune"]
    assert found["system"]["kernel"].startswith("Linux ")
