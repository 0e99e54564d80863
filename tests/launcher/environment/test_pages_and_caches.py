# SPDX-License-Identifier: Apache-2.0
"""Huge pages asked for or forbidden, and a private home for compile caches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from xlaunch.environment.caches import LOCATIONS, cache_settings, hardware_key, has_intel_gpu
from xlaunch.environment.pages import (
    SystemMode,
    glibc_asks,
    page_settings,
    page_warning,
    system_mode,
)
from xlaunch.errors import UsageError
from xlaunch.planning.request import HugePages

XLAUNCH = [sys.executable, "-m", "xlaunch"]


@pytest.mark.parametrize("supervise", [[], ["--supervise", "-q"]])
@pytest.mark.parametrize(("thp", "enabled"), [("never", "0"), ("auto", "1")])
def test_never_holds_for_the_program_and_what_it_starts(supervise, thp, enabled, needs):
    needs("THP_enabled" in Path("/proc/self/status").read_text(), "a kernel that shows it (5.0)")
    command = [*XLAUNCH, *supervise, "--thp", thp, "--"]
    show = "grep THP_enabled /proc/self/status; sh -c 'grep THP_enabled /proc/self/status'"
    done = subprocess.run([*command, "sh", "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["THP_enabled:", enabled] * 2


@pytest.mark.parametrize("mode", list(SystemMode))
def test_system_mode(mode, tmp_path):
    file = tmp_path / "enabled"
    words = [f"[{m.value}]" if m is mode else m.value for m in list(SystemMode)[:3]]
    file.write_text(" ".join(words) + "\n")
    assert system_mode(str(file)) is mode
    assert system_mode(str(tmp_path / "absent")) is SystemMode.UNKNOWN


@pytest.mark.parametrize(
    ("asked", "mode", "glibc", "asks"),
    [
        (HugePages.AUTO, SystemMode.MADVISE, (2, 36), True),
        (HugePages.AUTO, SystemMode.MADVISE, (2, 34), False),
        (HugePages.AUTO, SystemMode.MADVISE, None, False),
        (HugePages.AUTO, SystemMode.ALWAYS, (2, 36), False),
        (HugePages.AUTO, SystemMode.NEVER, (2, 36), False),
        (HugePages.MADVISE, SystemMode.MADVISE, (2, 36), False),
        (HugePages.NEVER, SystemMode.MADVISE, (2, 36), False),
        (HugePages.ALWAYS, SystemMode.MADVISE, (2, 36), True),
    ],
)
def test_when_glibc_asks(asked, mode, glibc, asks):
    assert glibc_asks(asked, mode, glibc) is asks


def test_always_asks_by_torch_too_and_says_when_it_is_in_vain():
    assert [p.name for p in page_settings(HugePages.ALWAYS)] == ["THP_MEM_ALLOC_ENABLE"]
    assert page_settings(HugePages.AUTO) == ()
    assert "no effect" in (page_warning(HugePages.ALWAYS, SystemMode.NEVER) or "")
    assert page_warning(HugePages.ALWAYS, SystemMode.MADVISE) is None


def test_caches_move_below_one_private_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    settings, warning = cache_settings(None, {"HOME": str(home)}, make=True)
    assert warning is None
    folder = home / ".cache" / "xlaunch" / "compiled" / hardware_key()
    assert folder.stat().st_mode & 0o777 == 0o700
    values = {proposal.name: proposal.value for proposal in settings}
    for name, sub, _ in LOCATIONS:
        assert values[name] == str(folder / sub)
    assert Path(values["NEO_CACHE_DIR"]).is_dir()
    assert ("SYCL_CACHE_PERSISTENT" in values) == has_intel_gpu()


def test_gpu_of_intel_is_told_by_its_vendor(tmp_path):
    assert not has_intel_gpu(str(tmp_path / "absent"))
    for name, vendor in (("card0", "0x8086"), ("renderD128", "0x10de"), ("renderD129", "0x8086")):
        assert not has_intel_gpu(str(tmp_path))
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "vendor").write_text(f"{vendor}\n")
    assert has_intel_gpu(str(tmp_path))


def test_plan_makes_no_folder(tmp_path):
    settings, warning = cache_settings(None, {"XDG_CACHE_HOME": str(tmp_path)}, make=False)
    assert settings
    assert warning is None
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_caches_stay():
    settings, warning = cache_settings(None, {}, make=True)
    assert settings == ()
    assert "no home directory" in (warning or "")


def test_folder_that_others_can_write_is_refused_unless_it_is_named(tmp_path):
    tmp_path.chmod(0o777)
    settings, warning = cache_settings(None, {"XDG_CACHE_HOME": str(tmp_path)}, make=True)
    assert settings == ()
    assert "every user may write" in (warning or "")
    settings, warning = cache_settings(str(tmp_path), {}, make=True)
    assert settings
    assert warning == (
        f"--cache-dir {tmp_path}: every user may write {tmp_path}; used as you named it"
    )


def test_default_folder_that_a_group_can_write_is_refused(tmp_path):
    folder = tmp_path / "xlaunch" / "compiled" / hardware_key()
    folder.mkdir(parents=True)
    folder.chmod(0o770)
    settings, warning = cache_settings(None, {"XDG_CACHE_HOME": str(tmp_path)}, make=True)
    assert settings == ()
    assert f"{folder} is for one user" in (warning or "")
    settings, warning = cache_settings(str(folder.parent), {}, make=True)
    assert (len(settings) > 0, warning) == (True, None)  # the group is the user's own


def test_folder_without_a_name_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--cache-dir: the directory's name is empty.*--no-cache"):
        cache_settings("", {"XDG_CACHE_HOME": str(tmp_path)}, make=True)
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--cache-dir"):
        cache_settings(str(tmp_path / "file"), {}, make=True)


@pytest.mark.long
def test_inductor_compiles_into_the_folder(tmp_path, needs):
    needs(find_spec("torch"), "torch")
    needs(shutil.which("g++") or shutil.which("gcc"), "a C++ compiler")
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: torch.sin(x) + 1)\n"
        "assert torch.allclose(f(torch.ones(8)), torch.sin(torch.ones(8)) + 1)\n"
    )
    command = [*XLAUNCH, "--cache-dir", str(tmp_path), "--", sys.executable, "-c", code]
    clean = {name: v for name, v in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    subprocess.run(command, check=True, env=clean)
    compiled = list((tmp_path / hardware_key() / "inductor").rglob("*.so"))
    assert compiled
