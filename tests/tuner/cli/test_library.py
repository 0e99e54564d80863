# SPDX-License-Identifier: Apache-2.0
"""`xtune.tune` is the command as a call."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.tuner.cli.commands import RATE

import xtune
from xtune.cli import main
from xtune.evidence.verdicts import VerdictKind
from xtune.launches.functions import Trial
from xtune.launches.launch import Launch, Outcome
from xtune.space.parameters import BARE


def test_a_call_returns_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "rate.py").write_text(RATE)
    storage = str(tmp_path / "studies.db")
    result = xtune.tune(
        "rate.py",
        "{n}",
        metric="items/s",
        param=["n=1,2"],
        only_params=True,
        budget="3 launches",
        storage=storage,
    )
    assert capfd.readouterr() == ("", "")
    assert result.values(BARE) == [100.0]
    assert result.verdict.kind is VerdictKind.INCONCLUSIVE
    assert result.favourite.configuration["n"] == 2
    assert main(["report", "--storage", storage, "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == result.to_plain()


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return str(tmp_path / "studies.db")


def speed(configuration: Trial) -> float:
    assert configuration.layout is None
    return 100.0 * int(configuration.parameters["n"])


def test_a_function_is_tuned_by_the_number_it_returns(storage: str) -> None:
    search = {"param": "n=1,2", "goal": "maximize", "budget": 14, "storage": storage}
    result = xtune.tune(speed, **search)
    assert result.verdict.kind is VerdictKind.GAIN
    assert result.verdict.gain == pytest.approx(2.0)
    assert dict(result.verdict.best) == {"n": 2}
    assert result.values(BARE)[0] == 100.0
    # The study is continued by the same call.
    again = xtune.tune(speed, **search)
    assert len(again.launches) > len(result.launches)
    assert main(["resume", "--storage", storage]) == 2


def test_a_function_that_follows_layouts_returns_a_launch(storage: str) -> None:
    seen: list[Trial] = []

    def launched(configuration: Trial) -> Launch:
        seen.append(configuration)
        return configuration.launch(
            10.0, metrics={"accuracy": 0.5 if configuration.layout else 0.9}
        )

    result = xtune.tune(
        launched, metric="rate:value", require="accuracy>=0.8", only_params=False, budget=4, storage=storage
    )  # fmt: skip
    assert seen[0] == Trial({})
    layouts = [one for one in seen if one.layout is not None]
    assert layouts
    assert all(len(one.environment) == one.layout.count for one in layouts if one.layout)
    made = next(one for one in result.launches if one.configuration != BARE)
    assert made.requirements == (("accuracy>=0.8", 0.5),)


def fails(configuration: Trial) -> float:
    if configuration.parameters["n"] == 2:
        raise ValueError("too large")
    return math.nan if configuration.parameters["n"] == 4 else 1.0


def test_a_function_that_fails_is_a_failed_launch(storage: str) -> None:
    result = xtune.tune(fails, param="n=1,2,4", goal="maximize", budget=5, storage=storage)
    notes = {one.configuration.get("n"): (one.outcome, one.notes) for one in result.launches}
    assert notes[2] == (Outcome.CRASHED, ("ValueError: too large",))
    assert notes[4] == (Outcome.NOT_FINITE, ("the function returned nan",))


def test_what_cannot_be_searched_is_an_error_of_ours(golden: Golden, storage: str) -> None:
    two: dict[str, object] = {"param": "n=1,2"}
    wrong: tuple[tuple[tuple[object, ...], dict[str, object]], ...] = (
        ((speed, "x"), {}), ((speed,), two), ((speed,), {**two, "goal": "most"}), ((speed,), {**two, "timeout": 3}),
        ((speed,), {**two, "bugdet": 3}), ((lambda _: "fast",), {**two, "goal": "maximize"}),
        ((lambda _: True,), {**two, "goal": "maximize"}),
        ((lambda _: 1.0,), {"only_params": False, "goal": "maximize"}), (("rate.py",), {"ncores": "many"}),
        (("rate.py",), {"smt": 3}), (("rate.py",), {"timeout": "soon"}), (("rate.py",), {"min_effect": "2"}),
    )  # fmt: skip
    golden.errors(
        *[
            partial(xtune.tune, *program, **{"budget": 3, "storage": storage, **options})
            for program, options in wrong
        ],
        lambda: xtune.tune("rate.py", only_params=True),
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        xtune.nothing  # noqa: B018
