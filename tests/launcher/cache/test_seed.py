# SPDX-License-Identifier: Apache-2.0
"""A cache that is copied from a seed works in its new place."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.launcher.cache.entries import CONTENT, HARDWARE, PACKAGES, fill

from xlaunch.cache.store import directory_of, key_of
from xlaunch.cache.table import BY_NAME
from xlaunch.cache.use import plant


def test_what_is_not_complete_stays_behind(tmp_path: Path):
    fill(tmp_path / "seed")
    base, key = tmp_path / "compiled", key_of(BY_NAME["optimized"], HARDWARE, PACKAGES)
    assert plant(str(tmp_path / "seed"), str(base), key)
    assert sorted(os.listdir(directory_of(str(base), key).path)) == ["0123abcd", "0123abcd.lock"]


def test_triton_finds_the_files_of_a_kernel(tmp_path: Path):
    # Triton ignores the files of a kernel whose absolute paths in its list do not exist.
    fill(tmp_path / "seed")
    base, key = tmp_path / "compiled", key_of(BY_NAME["triton"], HARDWARE, PACKAGES)
    assert plant(str(tmp_path / "seed"), str(base), key)
    home = Path(directory_of(str(base), key).path)
    group = json.loads((home / "QX/__grp__k.json").read_text())
    assert group == {"child_paths": {"k.json": str(home / "QX/k.json")}}
    assert (home / "QX/k.json").read_bytes() == CONTENT["triton"]["QX/k.json"]
    assert (home / "QX/__grp__k.json").stat().st_mode & 0o777 == 0o600
