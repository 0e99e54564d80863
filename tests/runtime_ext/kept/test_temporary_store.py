# SPDX-License-Identifier: Apache-2.0
"""Where nothing is kept, compiled code lies in a temporary directory, which no end of a process leaves for good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import quick_first

from xlaunch.files import remove_dead

OPEN = """
import os, sys
from xruntime.kept.store import open_store
store = open_store("nothing is kept")
with open(os.path.join(store.path, "model.so"), "w") as file:
    file.write("weights")
print(store.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ended", quick_first(["killed", "at its end"]))
def test_temporary_store_is_gone_after_its_process(ended: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPEN],
        env={"PATH": "", "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().split()[0])
        assert path.parent == tmp_path
        remove_dead(str(tmp_path))
        assert (path / "model.so").exists()
        if ended == "killed":
            process.kill()
    assert path.exists() is (ended == "killed")
    remove_dead(str(tmp_path))
    assert not path.exists()
