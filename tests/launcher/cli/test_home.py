# SPDX-License-Identifier: Apache-2.0
"""Home directories that are absent or cannot be written, and commands that must leave one alone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.commands import XLAUNCH, ask, clean_environment, run


def at_home(home: Path) -> dict[str, str]:
    """An environment whose directories are all below HOME."""
    own = {"HOME": str(home)}
    moved = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    return {name: value for name, value in clean_environment(**own).items() if name not in moved}


@pytest.mark.parametrize(
    "command",
    ["doctor", "libraries", "plan", "topology", "ps", "env python x.py", "cache ls", "cache du", "cache verify",
     "--dry-run python x.py", "--dry-run --omp gnu python x.py"],
)  # fmt: skip
def test_a_command_that_shows_something_makes_nothing(command: str, tmp_path: Path):
    (tmp_path / "x.py").touch()
    before = sorted(tmp_path.rglob("*"))
    for home in ("absent/home", "."):
        done = ask(*command.split(), env=at_home(tmp_path / home), cwd=tmp_path)
        assert done.code in (0, 1, 2), done.err
        assert "Traceback" not in done.err
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("options", [(), ("--supervise",), ("--explain",)])
def test_a_home_that_does_not_exist_is_not_made(options: tuple[str, ...], tmp_path: Path):
    home = tmp_path / "absent" / "home"
    env = at_home(home)
    done = run((*XLAUNCH, *options, sys.executable, "-c", ""), env=env)
    assert done.code == 0
    assert f"compile caches stay where they are: HOME {home} does not exist" in done.err
    assert not home.parent.exists()


@pytest.mark.machine
def test_caches_that_a_launch_cannot_make_are_not_shown(needs, tmp_path: Path):
    mount = 'mount -t tmpfs -o ro none "$HOME" && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", mount, "sh")
    env = at_home(tmp_path)
    possible = shutil.which("unshare") and run((*inside, "true"), env=env).code == 0
    needs(possible, "unshare (util-linux), as root")
    done = run((*inside, *XLAUNCH, "--dry-run", "--explain", "true"), env=env)
    assert done.code == 0
    told = done.out.decode()
    assert f"compile caches stay where they are: {tmp_path} is not writable" in told
    assert "INDUCTOR_CACHE_DIR" not in told
