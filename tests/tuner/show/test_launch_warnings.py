# SPDX-License-Identifier: Apache-2.0
"""What launches alone warn of: work of others, drift, hosts that differ."""

from __future__ import annotations

from tests.golden import Golden
from tests.tuner.show.made_up import FOUR, launch, recorded

from xtune.evidence.finals import FinalPlan
from xtune.launches.launch import Goal, Objective, Secondary
from xtune.search.records import FinalDetails, Record, Stage
from xtune.show.warnings import launch_warnings
from xtune.space.parameters import BARE

RATE = Objective("images/s", Goal.MAXIMIZE)

BUSY = "CPU 0 is busy with other work (80%): make (PID 42); --cpus takes others"


def told(*records: Record) -> list[tuple[str, str]]:
    return [(one.about, one.text) for one in launch_warnings(records, RATE)]


def test_work_of_others_beside_a_tenth_of_the_launches(golden: Golden) -> None:
    busy = launch(FOUR, 100.0, shared_cpus=("earlier", "note"))
    last = busy._replace(shared_cpus=(BUSY,))
    calm = [launch(FOUR, 100.0)] * 17
    golden(told(*recorded([*calm, busy, busy, last])))
    assert told(*recorded([*calm, *calm, last])) == []


def test_commands_after_launches_that_failed() -> None:
    failed = launch(FOUR, 100.0, notes=("--cleanup 'rm x' failed with exit code 1",))
    said = "after 2 launches of 3: --cleanup 'rm x' failed with exit code 1"
    assert told(*recorded([failed, launch(FOUR, 100.0), failed])) == [("cleanup", said)]


def test_a_final_in_which_the_bare_command_waited_for_others() -> None:
    def block(number: int, bare_waited: float) -> list[Record]:
        waits = {BARE: bare_waited, FOUR: 0.02}
        made = recorded(
            launch(one, 100.0, secondary=Secondary(1.0, waited=share))
            for one, share in waits.items()
        )
        final = FinalDetails(0, number, 0, FinalPlan(BARE, ()), ())
        return [
            one._replace(step=one.step._replace(stage=Stage.FINAL, details=final)) for one in made
        ]

    quiet, busy = [block(number, 0.03) for number in range(2)], [block(n, 0.5) for n in (2, 3, 4)]
    ((about, text),) = told(*quiet[0], *busy[0], *busy[1], *busy[2], *quiet[1])
    assert about == "waiting"
    assert text.startswith("whether the settings made the difference is not known: in 3 of 5 pairs")
    assert told(*quiet[0], *busy[0], *quiet[1]) == []


def test_drift_of_the_bare_command() -> None:
    bare = [launch(BARE, 100.0 * 1.02**at, began_s=60.0 * at) for at in range(20)]
    ((about, text),) = told(*recorded(bare))
    assert about == "drift"
    assert text.startswith("the machine drifted")
    assert told(*recorded(one._replace(value=100.0) for one in bare)) == []
    # What is tuned may well change.
    assert told(*recorded(one._replace(configuration=FOUR) for one in bare)) == []


def test_hosts_that_differ(golden: Golden) -> None:
    here, there = [launch(BARE, 100.0)] * 3, [launch(BARE, 130.0)] * 3
    # One bad launch, or one without a value, makes no difference.
    more = [launch(BARE, None), launch(BARE, 0.0), launch(BARE, 500.0), *there]
    golden(told(*recorded(here), *recorded(more, "there")))
    near = [launch(BARE, 109.0)] * 3
    assert told(*recorded(here), *recorded(near, "there")) == []
