# SPDX-License-Identifier: Apache-2.0
"""What tests launch keeps nothing in the user's directories and reads nothing there."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

from tests.launcher.cli.commands import ask, show

from xlaunch.cache.use import default_directory


def test_launches_of_tests_have_a_cache_of_their_own():
    told = show()["env"]
    users_own = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert not Path(told["HOME"]).samefile(users_own)
    assert Path(told["XDG_CACHE_HOME"]) != users_own / ".cache"
    directory = default_directory(os.environ)
    assert directory is not None
    assert directory.startswith(told["XDG_CACHE_HOME"])
    assert told["TORCHINDUCTOR_CACHE_DIR"].startswith(directory)
    assert Path(directory).is_dir()


def test_launches_of_tests_read_no_settings_of_the_user(tmp_path: Path):
    settings = Path(os.environ["XDG_CONFIG_HOME"])
    assert settings != Path.home() / ".config"
    assert list(settings.iterdir()) == []
    values = json.loads(ask("plan", "--json", cwd=tmp_path).out)
    assert values["instance_count"] == 1
