# SPDX-License-Identifier: Apache-2.0
"""A search from its first launch to its verdict: budgets, interruptions, errors, what is told."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator

import pytest
from benchmarks.tuner.recorded import MemoryStore
from tests.golden import Golden
from tests.tiers import quick_first
from tests.tuner.search.scripted import (
    BEST,
    RATE,
    SMALL,
    SPACE,
    ScriptedMeasurer,
    follow,
    gain,
    searched,
)

from xtune.errors import BudgetError, MetricNotSeenError, ObjectiveError, StorageError, TunerError
from xtune.evidence.finals import Final
from xtune.evidence.verdicts import MIN_PAIRS, MoreBudget, VerdictKind
from xtune.launches.launch import Goal, Launch, Objective, Outcome, Requirement
from xtune.launches.suspension import Suspended
from xtune.search.budget import MIN_WITH_FINAL, Budget, FinalSize
from xtune.search.events import (
    EndReason,
    Favourite,
    Observer,
    Outline,
    Progress,
    Resolution,
    SearchOutcome,
)
from xtune.search.records import NextLaunch, Record, Stage
from xtune.search.strategy import Strategy
from xtune.space.parameters import BARE, Configuration
from xtune.space.spaces import Space
from xtune.tuning import KEEP_PAUSES_S, LIMIT_MORE_S, LIMIT_TIMES, Search


def search(
    measurer: ScriptedMeasurer,
    budget: Budget,
    *,
    space: Space = SPACE,
    store: MemoryStore | None = None,
    objective: Objective = RATE,
    **options: object,
) -> SearchOutcome:
    strategy = Strategy(space, measurer.plan_hash, objective, host="here", seed=1)
    store = store or MemoryStore()
    return Search(space, strategy, measurer, store, objective, budget, **options).run()  # type: ignore[arg-type]


class Diary(Observer):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.favourites: list[Favourite] = []
        self.progress: list[Progress] = []

    def started(self, outline: Outline) -> None:
        self.lines.append(f"started {outline.size} {outline.plans}")

    def stage_changed(self, stage: Stage) -> None:
        self.lines.append(f"stage {stage.value}")

    def launching(self, step: NextLaunch, progress: Progress) -> None:
        self.lines.append("launching")
        self.progress.append(progress)

    def launched(self, record: Record, progress: Progress) -> None:
        self.lines.append("launched")
        self.progress.append(progress)

    def favourite_changed(self, favourite: Favourite) -> None:
        self.favourites.append(favourite)

    def lost(self, step: NextLaunch) -> None:
        self.lines.append("lost")

    def resolution_known(self, resolution: Resolution) -> None:
        self.lines.append(f"shows gains from {resolution.gain:.1%}")

    def storage_trouble(self, message: str, pause_s: float) -> None:
        self.lines.append(f"trouble, again in {pause_s:g} s")


def test_a_gain_is_found_and_claimed() -> None:
    measurer = ScriptedMeasurer(noise=0.02)
    result = search(measurer, Budget(launches=60))
    assert result.verdict.kind is VerdictKind.GAIN
    assert gain(result.verdict.best) == gain(BEST)
    assert result.verdict.gain == pytest.approx(math.exp(gain(BEST)), rel=0.05)
    assert result.launches == len(result.records) == len(measurer.measured) <= 60
    assert result.final is not None


def test_a_search_goes_on_where_every_finalist_failed() -> None:
    """The fastest allocator crashes in its first final: the rest of the budget is for the others."""
    launched = 0

    def end(one: Configuration) -> Outcome:
        nonlocal launched
        launched += 1
        is_spoilt = launched > 20 and one.get("allocator") == "tcmalloc"
        return Outcome.CRASHED if is_spoilt else Outcome.MEASURED

    measurer = ScriptedMeasurer(noise=0.02, outcomes=end)
    result = search(measurer, Budget(launches=60), space=SMALL)
    finals = [one.step for one in result.records if one.step.stage is Stage.FINAL]
    attempts = {one.details.attempt for one in finals}
    assert attempts == {0, 1}
    assert result.verdict.kind is VerdictKind.GAIN
    assert result.verdict.best == SMALL.complete({"allocator": "jemalloc"})


def test_no_gain_is_an_answer() -> None:
    measurer = ScriptedMeasurer(lambda _: 0.0, noise=0.001)
    result = search(measurer, Budget(launches=60))
    assert result.verdict.kind is VerdictKind.NO_GAIN
    assert result.verdict.best == BARE


@pytest.mark.parametrize(
    ("launches", "time_s", "least", "most"),
    [
        *[(launches, None, 0, launches) for launches in (2, 3, 9, 10, 23, 24, 41)],
        (None, 400.0, 35, 40),
        (30, 100.0, 10, 10),
        (9, 1000.0, 9, 9),
    ],
)
def test_no_more_is_launched_than_allowed(
    golden: Golden, launches: int | None, time_s: float | None, least: int, most: int
) -> None:
    measurer = ScriptedMeasurer(noise=0.05, launch_s=10.0)
    result = search(measurer, Budget(launches, time_s))
    assert least <= len(measurer.measured) == result.launches <= most
    assert time_s is None or measurer.clock_s <= time_s
    if most < MIN_WITH_FINAL:
        assert result.final is None
        assert result.verdict.kind is VerdictKind.INCONCLUSIVE
        golden(result.verdict.reason)


@pytest.mark.parametrize(("launches", "more"), [(2, 11), (6, 9), (8, 9)])
def test_what_would_be_enough_for_a_final_is_told(golden: Golden, launches: int, more: int) -> None:
    """Of two configurations one crashes: after three launches a final is all that is left."""
    space = Space([SPACE.parameter("smt")])
    measurer = ScriptedMeasurer(
        outcomes=lambda one: Outcome.CRASHED if one.get("smt") else Outcome.MEASURED
    )
    store = MemoryStore()
    result = search(measurer, Budget(launches=launches), space=space, store=store)
    golden(result.verdict.reason)
    again = search(measurer, Budget(launches=more), space=space, store=store)
    assert again.final is not None


def finals(result: SearchOutcome) -> int:
    return sum(record.step.stage is Stage.FINAL for record in result.records)


@pytest.mark.parametrize(("first", "second"), [(8, 8), (9, 8), (7, 40)])
def test_a_resumed_search_concludes_from_what_was_launched_before(
    golden: Golden, first: int, second: int
) -> None:
    measurer, store = ScriptedMeasurer(noise=0.02), MemoryStore()
    before = search(measurer, Budget(launches=first), store=store)
    assert before.final is None
    if second < 40:
        golden(before.verdict.reason)
    result = search(measurer, Budget(launches=second), store=store)
    assert result.launches <= second
    assert result.final is not None
    assert result.verdict.kind is VerdictKind.GAIN
    # What was concluded does not count again: nine more are too few for another final.
    again = search(measurer, Budget(launches=9), store=store)
    assert finals(again) == finals(result)


def speed_by_smt(configuration: Configuration) -> float:
    """Gains that a final of a few blocks may settle or not."""
    return 0.0 if configuration == BARE else 0.06 if configuration.get("smt") else 0.03


def settled_as_advised(seed: int) -> bool | None:
    """Whether the launches advised settled an open search; None: it was not open, or had no advice."""
    measurer, store = ScriptedMeasurer(speed_by_smt, noise=0.03, seed=seed), MemoryStore()
    before = search(measurer, Budget(launches=40), store=store)
    more = before.verdict.more
    if more is None:
        return None
    after = search(measurer, Budget(launches=more.launches), store=store)
    assert after.launches <= more.launches
    assert {one.step.stage for one in after.records[before.launches :]} == {Stage.FINAL}
    return after.verdict.kind is not VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize("searches", quick_first([3, 30]))
def test_a_search_resumed_with_the_launches_advised_is_settled(searches: int) -> None:
    seen = [settled_as_advised(seed) for seed in range(searches)]
    known = [one for one in seen if one is not None]
    assert known
    assert sum(known) >= 0.7 * len(known)


@pytest.mark.parametrize("bare_s", [9.0, 11.8, 15.0, 17.0])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_a_time_that_allows_14_launches_gives_every_pair_that_a_verdict_needs(
    bare_s: float, share: float
) -> None:
    """The bare command takes longest: a final takes longer than as many other launches."""
    measurer = ScriptedMeasurer(
        lambda one: 0.0 if one == BARE else 0.5, launch_s=share * bare_s, bare_s=bare_s
    )
    result = search(measurer, Budget(time_s=240.0))
    assert result.final is not None
    assert result.final.blocks >= MIN_PAIRS
    assert result.verdict.kind is VerdictKind.GAIN


class Told(Observer):
    """Keeps what is told about the budget."""

    def __init__(self) -> None:
        self.told: list[tuple[float, MoreBudget]] = []

    def budget_too_small(self, made: float, more: MoreBudget) -> None:
        self.told.append((made, more))


def test_a_budget_too_small_for_a_verdict_is_told_after_the_first_launch() -> None:
    told = Told()
    measurer, store = ScriptedMeasurer(launch_s=30.0), MemoryStore()
    before = search(measurer, Budget(time_s=240.0), store=store, observer=told)
    assert told.told == [(8.0, MoreBudget(0, 13, 390.0))]
    assert before.verdict.more is not None
    after = search(measurer, Budget(launches=before.verdict.more.launches), store=store)
    assert after.final is not None
    assert after.final.blocks >= MIN_PAIRS


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(BudgetError, match="never ends"):
        search(ScriptedMeasurer(), Budget())


def interrupted_at(number: int, store: MemoryStore) -> tuple[SearchOutcome, ScriptedMeasurer]:
    def interrupt(launch: int) -> None:
        if launch == number:
            raise KeyboardInterrupt

    measurer = ScriptedMeasurer(noise=0.05, on_launch=interrupt)
    return search(measurer, Budget(launches=50), store=store), measurer


@pytest.mark.parametrize("number", [0, 1, 2, 12, 45])
def test_an_interruption_at_any_launch_gives_the_verdict_so_far(number: int) -> None:
    store = MemoryStore()
    result, measurer = interrupted_at(number, store)
    assert result.end_reason is EndReason.INTERRUPTED
    assert result.launches == len(measurer.measured) == number
    assert all(record.launch is not None for record in store.records())
    assert (result.favourite is not None) == (number > 1)
    assert (result.final is not None) == (number >= 45)
    assert ("interrupted before the final" in result.verdict.reason) == (number < 45)


def test_an_interrupted_search_goes_on_where_it_was() -> None:
    store = MemoryStore()
    first, _ = interrupted_at(45, store)
    again = search(ScriptedMeasurer(noise=0.05, seed=1), Budget(launches=5), store=store)
    assert again.final.blocks > first.final.blocks
    assert len(again.records) == 45 + again.launches


@pytest.mark.parametrize(
    ("finalists", "launches", "seed", "by_time"),
    quick_first(
        [
            pytest.param(1, 60, 13, False),
            pytest.param(2, 63, 14, True),
            pytest.param(3, 120, 17, False),
        ]
    ),
)
def test_a_search_interrupted_at_any_launch_can_be_resumed(
    finalists: int, launches: int, seed: int, by_time: bool
) -> None:
    def budget(number: int) -> Budget:
        return Budget(time_s=10.0 * number) if by_time else Budget(launches=number)

    whole = search(ScriptedMeasurer(speed_by_smt, noise=0.03, seed=seed), budget(launches))
    assert whole.final is not None
    assert len(whole.verdict.finalists) == finalists
    for number in range(whole.launches + 1):
        store = MemoryStore()
        for record in whole.records[:number]:
            assert store.finish(store.claim(record.step), record.launch)
        measurer = ScriptedMeasurer(speed_by_smt, noise=0.03, seed=seed + number)
        resumed = search(measurer, budget(3), store=store)
        assert resumed.launches <= 3
        assert len(resumed.records) == number + resumed.launches


MAX_BLOCKS_FOLLOWED = 16


def interrupted_everywhere(finalists: int, seed: int) -> bool:
    """Whether a final of equals claims a gain after any launch.

    It is interrupted and resumed once: at the first launch for seed 0, at the second for seed 1, and so on.
    """
    space = Space([SPACE.parameter("smt"), SPACE.parameter("thp")])
    measurer = ScriptedMeasurer(lambda _: 0.0, noise=0.03, seed=seed)
    store = MemoryStore()
    strategy = Strategy(space, measurer.plan_hash, RATE, host="here", seed=seed)
    for record in follow(strategy, measurer, 12):
        assert store.finish(store.claim(record.step), record.launch)
    step = strategy.first_of_final(store.records(), FinalSize(finalists, 8))
    final: Final | None = None
    for made in itertools.count():
        assert step is not None
        launch = measurer.measure(step.configuration)
        assert store.finish(store.claim(step), launch)
        if final is not None:
            final.record(final.next(), launch)
        if final is None or made == seed % (MAX_BLOCKS_FOLLOWED * (finalists + 1)):
            # Another process: nothing but the records is left of the first one.
            process = Strategy(space, measurer.plan_hash, RATE, host="here", seed=seed)
            again = process.final(store.records())
            assert len(again.launches) == made + 1
            if final is not None:
                assert (again.verdict(), again.next()) == (final.verdict(), final.next())
            final = again
        if final.verdict(in_full=False).kind is VerdictKind.GAIN:
            return True
        if final.is_over or final.blocks >= MAX_BLOCKS_FOLLOWED:
            return False
        step = strategy.final_step(final, 100.0)
    raise AssertionError


@pytest.mark.parametrize(
    ("finalists", "searches", "most"),
    quick_first(pytest.param(*case) for case in [(1, 25, 4), (1, 150, 7), (3, 300, 15)]),
)
def test_a_search_interrupted_at_every_launch_claims_no_gain_that_is_none(
    finalists: int, searches: int, most: int
) -> None:
    """Verdicts after each launch, far beyond the plan: 5 % at most claim a gain where nothing differs."""
    claims = sum(interrupted_everywhere(finalists, seed) for seed in range(searches))
    assert claims <= most


def test_an_interruption_while_something_is_told_is_one() -> None:
    class Impatient(Observer):
        def launched(self, record: Record, progress: Progress) -> None:
            if progress.launches == 7:
                raise KeyboardInterrupt

    result = search(ScriptedMeasurer(), Budget(launches=50), observer=Impatient())
    assert (result.end_reason, result.launches) == (EndReason.INTERRUPTED, 7)
    assert len(result.records) == 7


def test_an_interruption_during_the_conclusion_comes_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def interrupt(*_: object) -> None:
        told.append("interrupted")
        if len(told) <= count:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "xtune.tuning.SearchOutcome", lambda *all_: interrupt() or SearchOutcome(*all_)
    )
    count = 1
    result = search(ScriptedMeasurer(), Budget(launches=12))
    assert (result.end_reason, len(told)) == (EndReason.BUDGET, 2)
    told.clear()
    count = 2
    with pytest.raises(KeyboardInterrupt):
        search(ScriptedMeasurer(), Budget(launches=12))


def test_a_launch_that_ctrl_z_ends_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: set[int] = set()

    def press(launch: int) -> None:
        if launch not in measured:
            measured.add(launch)
            raise Suspended

    def stop() -> None:
        measurer.clock_s += 1000.0

    monkeypatch.setattr("xtune.tuning.suspend", stop)
    whole, measurer = ScriptedMeasurer(), ScriptedMeasurer(on_launch=press)
    search(whole, Budget(time_s=500.0))
    found = search(measurer, Budget(time_s=500.0))
    assert measurer.measured == whole.measured
    assert len(measured) == found.launches == len(found.records) > 40


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (Outcome.CRASHED, TunerError, "it crashed with exit code 1: it cannot"),
        (Outcome.TIMED_OUT, TunerError, "it timed out"),
        (Outcome.NO_METRIC, MetricNotSeenError, "'items/s'"),
    ],
)
def test_a_program_that_cannot_be_measured_is_one_clear_line(
    outcome: Outcome, error: type[Exception], said: str
) -> None:
    store = MemoryStore()
    busy = ("CPU 1 is busy with other work (100%): make (PID 7); --cpus takes others",)
    measurer = ScriptedMeasurer(
        outcomes=lambda _: outcome, change=lambda launch: launch._replace(shared_cpus=busy)
    )
    with pytest.raises(error, match=said) as caught:
        search(measurer, Budget(launches=50), store=store)
    assert "\n" not in str(caught.value)
    assert "busy" not in str(caught.value)
    assert len(measurer.measured) == 1
    assert search(ScriptedMeasurer(), Budget(launches=5), store=store).launches == 5


def test_a_loss_below_0_is_minimized_by_differences() -> None:
    """Of values around 0 the ratios would be anything."""
    loss = Objective("loss", Goal.MINIMIZE)
    level = math.log(100.0)

    def as_loss(launch: Launch) -> Launch:
        assert launch.value is not None
        return launch._replace(value=0.3 - 10.0 * (math.log(launch.value) - level))

    measurer = ScriptedMeasurer(noise=0.01, change=as_loss)
    result = search(measurer, Budget(launches=60), objective=loss)
    interval = result.verdict.interval
    assert interval is not None
    assert result.verdict.kind is VerdictKind.GAIN
    assert gain(result.verdict.best) > 0.3
    truth = 10.0 * (gain(result.verdict.best) - gain(BARE))
    low, high = map(interval.in_values, (interval.low, interval.high))
    assert low < truth < high


def test_a_value_that_has_no_ratio_is_one_clear_line() -> None:
    zero = ScriptedMeasurer(change=lambda launch: launch._replace(value=0.0))
    with pytest.raises(ObjectiveError, match="values above 0"):
        search(zero, Budget(launches=50))


def test_everything_is_told_in_order() -> None:
    diary = Diary()
    measurer = ScriptedMeasurer(noise=0.02)
    result = search(measurer, Budget(launches=40), observer=diary)
    assert diary.lines[0] == "started 360 360"
    told = [line for line in diary.lines if line.startswith("stage")]
    assert told == [f"stage {one}" for one in ("baseline", "seed", "search", "ablation", "final")]
    assert diary.lines.count("launching") == diary.lines.count("launched") == result.launches
    assert diary.favourites[0].configuration == SPACE.default
    assert gain(diary.favourites[-1].configuration) > 0.3
    changes = [favourite.configuration for favourite in diary.favourites]
    assert all(one != other for one, other in itertools.pairwise(changes))
    assert [one.launches for one in diary.progress[1::2]] == list(range(1, result.launches + 1))
    assert diary.progress[0].left == 40


def test_which_gains_the_budget_shows_is_told_once_the_noise_is_known() -> None:
    diary = Diary()
    result = search(ScriptedMeasurer(noise=0.03), Budget(launches=40), observer=diary)
    told = [at for at, line in enumerate(diary.lines) if line.startswith("shows gains")]
    assert len(told) == 2, "again with the final"
    assert diary.lines[: told[0]].count("launched") == 7
    assert "final" in "".join(diary.lines[: told[1]])
    assert result.resolution.spread == pytest.approx(0.03, rel=0.5)


def test_what_is_launched_does_not_depend_on_who_watches() -> None:
    watched, alone = (ScriptedMeasurer(noise=0.1) for _ in range(2))
    search(watched, Budget(launches=26), observer=Diary())
    search(alone, Budget(launches=26))
    assert watched.measured == alone.measured


def test_a_launch_may_take_ten_times_what_the_bare_command_took() -> None:
    measurer = ScriptedMeasurer(launch_s=10.0)
    search(measurer, Budget(launches=5))
    assert measurer.limits == [None] + [10.0 * LIMIT_TIMES + LIMIT_MORE_S] * 4
    measurer = ScriptedMeasurer(launch_s=10.0)
    search(measurer, Budget(launches=5), limit_s=7.0)
    assert measurer.limits == [7.0] * 5


def test_nobody_else_launches_meanwhile() -> None:
    inside: list[bool] = []
    entered: list[int] = [0]

    @contextlib.contextmanager
    def host_lock() -> Iterator[None]:
        entered[0] += 1
        inside.append(True)
        yield
        inside.pop()

    def look(_: int) -> None:
        assert inside

    measurer = ScriptedMeasurer(on_launch=look)
    result = search(measurer, Budget(launches=5), host_lock=host_lock)
    assert entered[0] == result.launches + 1
    assert not inside


class Failing(MemoryStore):
    """Fails in some of the calls of one method."""

    def __init__(self, method: str, first: int, times: float) -> None:
        super().__init__()
        working, calls = getattr(self, method), itertools.count(1)

        def failing(*arguments: object) -> object:
            if 0 <= next(calls) - first < times:
                raise StorageError("storage postgresql://node/x cannot be used: it went away")
            return working(*arguments)

        setattr(self, method, failing)


@pytest.mark.parametrize("method", ["records", "claim", "finish"])
def test_a_storage_that_is_away_for_a_while_loses_nothing(method: str) -> None:
    """Others on the host may launch meanwhile."""
    events: list[object] = []

    @contextlib.contextmanager
    def host_lock() -> Iterator[None]:
        events.append("taken")
        yield
        events.append("left")

    diary, store = Diary(), Failing(method, first=4, times=2)
    options = {"store": store, "observer": diary, "host_lock": host_lock, "sleep": events.append}
    result = search(ScriptedMeasurer(), Budget(launches=6), **options)
    assert result.end_reason is EndReason.BUDGET
    assert len(store.records()) == result.launches == 6
    assert "trouble, again in 1 s" in diary.lines
    pauses = [at for at, event in enumerate(events) if isinstance(event, float)]
    assert [events[at] for at in pauses] == list(KEEP_PAUSES_S[:2])
    for at in pauses:
        assert (events[at - 1], events[at + 1]) == ("left", "taken")
    assert events.count("taken") == events.count("left")


def test_a_storage_that_stays_away_ends_the_search_with_a_verdict(golden: Golden) -> None:
    store = Failing("finish", first=4, times=math.inf)
    pauses: list[float] = []
    measurer = ScriptedMeasurer()
    result = search(measurer, Budget(launches=50), store=store, sleep=pauses.append)
    assert result.end_reason is EndReason.STORAGE
    golden(result.trouble)
    assert len(measurer.measured) == len(result.records) == 4, "the last one was seen as well"
    assert result.favourite is not None
    assert pauses == list(KEEP_PAUSES_S)


def test_a_launch_that_others_gave_up_for_lost_does_not_count() -> None:
    class Impatient(MemoryStore):
        def finish(self, number: int, launch: Launch) -> bool:
            if number == 3:
                self.abandon(number, "it took too long")
            return super().finish(number, launch)

    diary = Diary()
    store = Impatient()
    result = search(ScriptedMeasurer(), Budget(launches=6), store=store, observer=diary)
    assert diary.lines.count("lost") == 1
    assert len(result.records) == len(store.records()) == 5


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ((), "all launches except those of the bare command failed"),
        ((False,), "of 4 launches besides the bare command's, 2 broke requirements, and 2 failed"),
        ((False, True), "of 4 launches besides the bare command's, 4 broke requirements"),
    ],
)
def test_a_search_in_which_only_the_bare_command_is_good_says_so(
    broken: tuple[bool, ...], said: str
) -> None:
    bound = Requirement("rss<=1MiB", "rss", True, 2.0**20)

    def end(one: Configuration) -> Outcome:
        is_measured = one == BARE or one["smt"] in broken
        return Outcome.MEASURED if is_measured else Outcome.CRASHED

    def change(launch: Launch) -> Launch:
        size = 2.0 ** (19 if launch.configuration == BARE else 21)
        return launch._replace(requirements=((bound.text, size),))

    result = search(
        ScriptedMeasurer(outcomes=end, change=change),
        Budget(launches=30),
        space=Space([SPACE.parameter("smt")]),
        objective=RATE._replace(requirements=(bound,)),
    )
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.INCONCLUSIVE, said)
    assert (result.favourite, result.final) == (None, None)
    # One bad launch may be chance, so each is launched twice.
    assert set(Counter(searched(result.records)).values()) == {2}
