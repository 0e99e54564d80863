# SPDX-License-Identifier: Apache-2.0
"""Subjects of studies, and a worker that can be run as a process of its own."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

from tests.tuner.search.scripted import RATE, SPACE, ScriptedMeasurer

from xtune.search.budget import Budget
from xtune.search.events import SearchOutcome
from xtune.search.storage import Storage, open_storage
from xtune.search.strategy import Strategy
from xtune.search.study import Subject, open_study
from xtune.search.study_store import StudyStore
from xtune.search.workers import SearchWorker, Watch, host_locked, this_worker
from xtune.space.identities import MachineIdentity, ProgramIdentity
from xtune.tuning import Search

SUBJECT = Subject(
    MachineIdentity((("processor", "made up"), ("cores", "4, 1 thread each"))),
    ProgramIdentity("c0ffee", "/srv/train.py", "abc", ("train.py", "--batch", "{batch}")),
    SPACE,
    RATE,
)


def store_of(
    storage: Storage, worker: SearchWorker | None = None, watch: Watch | None = None
) -> StudyStore:
    return StudyStore(open_study(storage, SUBJECT), worker=worker or this_worker(), watch=watch)


def worker(name: str, **fields: object) -> SearchWorker:
    """A worker of another system."""
    made = SearchWorker(name, f"boot of {name}", "pid:[1]", 1, 1)
    return made._replace(**fields)  # type: ignore[arg-type]


def search(
    url: str,
    directory: Path,
    launches: int,
    seed: int,
    hang_at: int | None = None,
    host: str | None = None,
) -> SearchOutcome:
    """A search whose launches are written down in `directory`; one of them may never end.

    host
        A name, to play a worker of another system: nobody can look up whether it is there.
    """

    def on_launch(number: int) -> None:
        (directory / f"{time.monotonic_ns()} {seed} began").touch()
        if number == hang_at:
            print("hanging", flush=True)
            time.sleep(600)

    study = open_study(open_storage(url), SUBJECT)
    if host is None:
        store, locks = StudyStore(study), directory
    else:
        locks = directory / host
        locks.mkdir()
        me = this_worker()._replace(name=host, boot=host)
        store = StudyStore(study, worker=me, watch=Watch(me, lease_s=1.0), beat_s=0.1)
    measurer = ScriptedMeasurer(noise=0.03, seed=seed, on_launch=on_launch)
    strategy = Strategy(SPACE, measurer.plan_hash, RATE, host=store.host, seed=seed)
    budget = Budget(launches=launches)
    found = Search(
        SPACE,
        strategy,
        measurer,
        store,
        RATE,
        budget,
        host_lock=partial(host_locked, directory=locks),
    ).run()
    store.update_results(is_last=True)
    return found


if __name__ == "__main__":
    found = search(sys.argv[1], Path.cwd(), **json.loads(sys.argv[2]))
    print(f"made {found.launches}, {found.verdict.kind.value}")
