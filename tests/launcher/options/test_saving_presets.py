# SPDX-License-Identifier: Apache-2.0
"""What is saved is what is read again: every option, any value."""

from __future__ import annotations

import os
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from tests.golden import Golden
from tests.launcher.cli.commands import ask, xlaunch
from tests.launcher.options.settings import ALL_VALUES, Home, home, typed, values_of

from xlaunch.cli import run
from xlaunch.options.definitions import FLAG, IN_FILES, Option
from xlaunch.options.precedence import request_from
from xlaunch.options.presets import preset_text
from xlaunch.planning.request import find_contradiction

__all__ = ["home"]

ROUND_TRIPS = settings(
    max_examples=100,
    # The directory is the same for all examples, and each writes all that it reads.
    suppress_health_check=[
        HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much,
    ],
)  # fmt: skip


@ROUND_TRIPS
@given(values=ALL_VALUES)
@example(values={"env": (("A b", 'it\'s "quoted" \\ \n\t\r\x01\x7f\x85\u2028'),)})
@example(values={"log_dir": "", "env": ()})
def test_saved_preset_gives_the_same_request(home: Home, values: dict[str, Any]):
    assume(find_contradiction(values) is None)
    (home.here / "saved.toml").write_bytes(preset_text(values, use="saved").encode())
    request = typed("--isolated", "--preset", "saved", "program").request
    assert request == request_from(values | {"program": ("program",)})


@pytest.mark.parametrize(
    "option",
    [option for option in IN_FILES if option.name != "verbose"],  # it contradicts --quiet
    ids=lambda option: option.name,
)
def test_every_option_is_saved_by_the_command_line(home: Home, option: Option):
    """One option at a time, typed, saved, and read again."""

    @settings(ROUND_TRIPS, max_examples=10)
    @given(value=values_of(option))
    def check(value: Any) -> None:
        name = option.name
        if option.kind is FLAG:
            if not value and not option.opposite:
                return
            words = [f"--{name}" if value else f"--no-{name}"]
        elif option.multiple:
            items = value if name != "env" else ["=".join(pair) for pair in value]
            words = [f"--{name}={item}" for item in items]
        else:
            text = preset_text({option.key: value}, use="x")
            (written,) = tomllib.loads(text).values()
            words = [f"--{name}={written}"]
        (home.here / "saved.toml").unlink(missing_ok=True)
        assert run([*words, "--quiet", "--save-preset", "saved.toml"]) == 0
        direct = typed(*words, "program")
        if option.name != "quiet":
            text = (home.here / "saved.toml").read_text()
            kept = {key.replace("-", "_") for key in tomllib.loads(text)} - {"quiet"}
            assert kept == ({option.key} if words else set())
            assert typed("--preset", "saved", "program").request == direct.request

    check()


def test_saved_preset_is_readable(golden: Golden, home: Home):
    words = ("--instances", "4", "--env", "A=1", "--timeout", "10m", "--cpus", "0,1,2,5")
    done = ask(*words, "--save-preset", "best.toml", cwd=home.here)
    assert (done.code, done.out) == (0, b"")
    golden(done.err, (home.here / "best.toml").read_text())


def test_program_runs_after_saving(home: Home):
    done = xlaunch("-q", "--ncores", "1", "--save-preset", "a.toml", "echo", "ran", cwd=home.here)
    assert done == (0, b"ran\n", "")
    assert tomllib.loads((home.here / "a.toml").read_text()) == {"ncores": 1, "quiet": True}


def test_saved_preset_holds_what_came_from_elsewhere(home: Home):
    home.write("user", "grace = 3")
    home.write("project", "smt = true\nreserve-cores = 1")
    home.write("preset", "mode = 'latency'")
    words = ("--preset", "best", "--no-smt", "--instances", "1", "--save-preset", "all.toml")
    assert ask(*words, cwd=home.here, env=dict(os.environ)).code == 0
    saved = tomllib.loads((home.here / "all.toml").read_text())
    # smt is at its default, but the project's file would set it again.
    assert saved == {"instances": 1, "reserve-cores": 1, "smt": False, "grace": 3}


def test_nothing_is_replaced_that_is_no_preset(golden: Golden, home: Home):
    (home.here / "train.py").write_text("print('work of a week')")
    (home.here / "other.toml").write_text("[tool.other]\nkey = 1")
    (home.here / "directory.toml").mkdir()
    paths = ("train.py", "other.toml", "directory.toml", "gone/a.toml")
    golden([ask("--save-preset", path, cwd=home.here).refused() for path in paths])
    assert (home.here / "other.toml").read_text() == "[tool.other]\nkey = 1"


def test_preset_is_replaced_whole_and_a_link_stays_one(home: Home):
    home.write("preset", "ncores = 1")
    (home.here / "link.toml").symlink_to("best.toml")
    assert ask("--reserve-cores", "1", "--save-preset", "link.toml", cwd=home.here).code == 0
    assert (home.here / "link.toml").is_symlink()
    assert tomllib.loads((home.here / "best.toml").read_text()) == {"reserve-cores": 1}
    assert sorted(path.name for path in home.here.iterdir()) == ["best.toml", "link.toml"]


def test_what_cannot_be_kept_is_not_saved(golden: Golden, home: Home):
    message = ask("--env", b"A=\xff", "--save-preset", "a.toml", cwd=home.here).refused()
    assert "not UTF-8" in message
    words = ("--mode", "latency", "--instances", "2")
    message = ask(*words, "--save-preset", "a.toml", cwd=home.here).refused()
    golden(message)
    assert list(home.here.iterdir()) == []
