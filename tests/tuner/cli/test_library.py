# SPDX-License-Identifier: Apache-2.0
"""`xtune.tune` is the command as a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tuner.cli.commands import RATE

import xtune
from xlaunch.errors import UsageError
from xtune.cli import main
from xtune.evidence.verdicts import VerdictKind
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


def test_a_contradiction_is_an_error_of_the_call() -> None:
    with pytest.raises(UsageError, match="--only-params"):
        xtune.tune("rate.py", only_params=True)
    with pytest.raises(AttributeError, match="nothing"):
        xtune.nothing  # noqa: B018
