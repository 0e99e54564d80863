# SPDX-License-Identifier: Apache-2.0
"""Studies of earlier formats: `formats/3.journal` was written by the xtune that had format 3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.tuner.cli.commands import Desk
from tests.tuner.search.scripted import SMALL
from tests.tuner.search.studies import SUBJECT

from xtune.errors import StudyError
from xtune.search.records import Stage
from xtune.search.storage import Storage, open_storage
from xtune.search.study import earlier_winners, find_study, list_studies, open_study
from xtune.search.study_store import StudyStore
from xtune.space.parameters import BARE

SUBJECT_OF_3 = SUBJECT._replace(space=SMALL)
OLD = Path(__file__).parent / "formats" / "3.journal"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    shutil.copy(OLD, tmp_path / "studies.journal")
    return open_storage(str(tmp_path / "studies.journal"))


def test_every_launch_of_format_3_is_read(storage: Storage) -> None:
    study = find_study(storage, "old")
    assert (study.subject, study.version) == (SUBJECT_OF_3, 3)
    assert study.notes["options"]["folder"] == "/"
    assert study.notes["verdict"]["kind"] == "gain"
    store = StudyStore(study)
    records = store.records()
    assert (len(records), store.damaged) == (23, {})
    assert records[0].step.stage is Stage.BASELINE
    assert records[0].step.configuration == BARE
    for record in records:
        assert record.launch is not None
        assert record.host == "node1 boot"
        assert [one.values for one in record.launch.series] == [(record.launch.value or 0.0, 2.0)]
    assert sum(one.step.stage is Stage.FINAL for one in records) == 8


def test_a_study_of_format_3_is_not_continued(storage: Storage) -> None:
    before = storage.backend.get_all_studies()[0].user_attrs
    said = "'old' was begun by an earlier xtune: xtune report and xtune export read it"
    with pytest.raises(StudyError, match=said) as caught:
        open_study(storage, SUBJECT_OF_3, "old")
    assert "\n" not in str(caught.value)
    new = open_study(storage, SUBJECT_OF_3)
    assert new.name != "old"
    studies, problems = list_studies(storage)
    assert [study.name for study in studies] == ["old", new.name]
    assert problems == {}
    (seed,) = earlier_winners(storage, SUBJECT_OF_3._replace(space=SUBJECT.space))
    assert seed.configuration["allocator"] == "tcmalloc"
    assert storage.backend.get_all_studies()[0].user_attrs == before


def test_commands_read_a_study_of_format_3(desk: Desk) -> None:
    shutil.copy(OLD, desk.directory / "s.journal")
    where = ("--storage", "s.journal")
    (row,) = desk.xtune("list", "--json", *where).found
    assert (row["study"], row["launches"], row["verdict"]) == ("old", 23, "gain")
    found = desk.xtune("export", *where).found
    values = [one.get("value", 0.0) for one in found["launches"]]
    assert [one["series"][0]["values"][0] for one in found["launches"]] == values
    assert found["launches"][0]["configuration"] == {"xlaunch": False}
    assert desk.xtune("report", *where).out.startswith("gain: 1.23 times as good")
    for command in (("resume",), ("resume", "old", "--budget", "2")):
        done = desk.xtune(*command, *where)
        assert done.code == 2
        assert done.message.startswith("study 'old' was begun by an earlier xtune: ")
    assert json.loads(OLD.read_text().splitlines()[0])["study_name"] == "old"
    assert (desk.directory / "s.journal").read_bytes() == OLD.read_bytes()
