# SPDX-License-Identifier: Apache-2.0
"""A fleet on a real PostgreSQL: workers of several hosts, one of which is killed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.tuner.postgresql import Server
from tests.tuner.search.studies import store_of
from tests.tuner.search.studies import worker as another_host
from tests.tuner.search.test_study import launch, step
from tests.tuner.search.test_workers import complete, launches_begun, output, worker

from xtune.errors import StorageError
from xtune.search.records import Stage
from xtune.search.storage import open_storage
from xtune.search.study import list_studies
from xtune.search.workers import Watch

pytestmark = pytest.mark.full


def wait_until_given_up(url: str) -> None:
    """A dead worker's launch is, once somebody has seen its count stand still for so long."""
    me = another_host("node0")
    with contextlib.closing(open_storage(url)) as storage:
        store = store_of(storage, me, Watch(me, lease_s=0.5))
        until = time.monotonic() + 60.0
        while any(record.launch is None for record in store.records()):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_two_hosts_share_a_study_and_one_is_killed(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path, 40, 1, hang_at=6, host="node1") as first:
        assert first.stdout.readline() == "hanging\n"
        with worker(url, tmp_path, 40, 2, host="node2") as second:
            while launches_begun(tmp_path) < 12:
                assert second.poll() is None
            first.kill()
            said = output(second)
    made = int(said.split()[1].rstrip(","))
    wait_until_given_up(url)
    with worker(url, tmp_path, 20, 3, host="node3") as third:
        more = int(output(third).split()[1].rstrip(","))
    records = complete(url)
    assert len(records) == 6 + made + more == launches_begun(tmp_path) - 1
    hosts = Counter(record.host.split()[0] for record in records)
    assert hosts == {"node1": 6, "node2": made, "node3": more}
    baselines = [r.host.split()[0] for r in records if r.step.stage is Stage.BASELINE]
    assert sorted(baselines) == ["node1", "node2", "node3"]


def test_many_workers_at_once_make_each_launch_once(url: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(worker(url, tmp_path, 15, number, host=f"node{number}"))
            for number in range(4)
        ]
        said = [output(one) for one in workers]
    made = [int(one.split()[1].rstrip(",")) for one in said]
    records = complete(url)
    assert len(records) == sum(made) == launches_begun(tmp_path)
    with contextlib.closing(open_storage(url)) as storage:
        assert len(list_studies(storage)) == 1


def test_a_server_that_restarts_loses_nothing(server: Server, url: str) -> None:
    with contextlib.closing(open_storage(url)) as storage:
        store = store_of(storage)
        first, second = store.claim(step(0)), store.claim(step(1))
        assert first is not None
        assert second is not None
        assert store.finish(first, launch(1.0))
        server.stop()
        with pytest.raises(StorageError, match="cannot be used") as caught:
            store.finish(second, launch(2.0))
        assert "\n" not in str(caught.value)
        with pytest.raises(StorageError, match="cannot be opened"):
            open_storage(url)
        server.start()
        assert store.finish(second, launch(2.0))
    values = [record.launch.value for record in complete(url) if record.launch]
    assert values == [1.0, 2.0]
