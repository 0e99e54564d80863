# SPDX-License-Identifier: Apache-2.0
"""What xruntime asks for: a cache of the process's own, where a launch would have put it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cache.entries import elf, put
from tests.launcher.cli.commands import ask

from xlaunch.cache.prune import clear
from xlaunch.cache.store import CacheDirectory
from xlaunch.cache.use import SEED_VARIABLE as SEED
from xlaunch.cache.use import check_directory, own_directory
from xlaunch.errors import UsageError

VERSIONS = {"torch": "2.13.0", "xlaunch": "0.1.0"}


@contextmanager
def owned(environment: Mapping[str, str]) -> Iterator[CacheDirectory]:
    """Its own directory, until it is released."""
    directory = own_directory("optimized", environment, VERSIONS)
    try:
        yield directory
    finally:
        for number in os.listdir("/proc/self/fd"):
            if os.path.realpath(f"/proc/self/fd/{number}") == directory.record:
                os.close(int(number))


def refusal(**environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        own_directory("optimized", environment, VERSIONS)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_it_is_where_a_launch_puts_it(needs):
    needs(find_spec("torch"), "torch")
    installed = {name: version(name) for name in ("torch", "xlaunch")}
    directory = own_directory("optimized", os.environ, installed)
    told = json.loads(ask("env", "--format", "json", "--python", sys.executable).out)
    assert told["environment"]["XRUNTIME_CACHE_DIR"] == directory.path
    assert directory.parts() is not None


def test_it_is_private_and_held(tmp_path: Path):
    base = str(tmp_path / ".cache" / "xlaunch" / "compiled")
    with owned({"HOME": str(tmp_path)}) as directory:
        assert Path(directory.path).is_relative_to(base)
        assert os.stat(directory.path).st_mode & 0o777 == 0o700
        assert os.listdir(directory.path) == []
        assert clear(base, [directory], dry_run=True) == []
    assert clear(base, [directory], dry_run=True) != []


def test_other_versions_have_another(tmp_path: Path):
    with owned({"HOME": str(tmp_path)}) as one:
        newer = own_directory("optimized", {"HOME": str(tmp_path)}, VERSIONS | {"xlaunch": "0.2.0"})
        assert newer.path != one.path
        assert "xlaunch0.2.0" in newer.key


def test_it_begins_with_what_an_image_ships(tmp_path: Path):
    with owned({"XDG_CACHE_HOME": str(tmp_path / "image")}) as shipped:
        put(Path(shipped.path, "0123abcd", "model.so"), elf())
    home = {"HOME": str(tmp_path), SEED: str(tmp_path / "image" / "xlaunch" / "compiled")}
    with owned(home) as directory:
        assert Path(directory.path, "0123abcd", "model.so").read_bytes() == elf()
    assert SEED in refusal(HOME=str(tmp_path / "x"), **{SEED: "/no/such/seed"})


def test_where_there_can_be_none(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    golden(refusal())
    (tmp_path / "file").touch()
    assert refusal(HOME=str(tmp_path / "file")).startswith(f"{tmp_path / 'file'}")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    golden(refusal(HOME=str(shared)))
    monkeypatch.setattr("xlaunch.cache.store.parse_fields", lambda _: {})
    golden(refusal(HOME=str(tmp_path)))


@contextmanager
def another_user(directory: Path) -> Iterator[None]:
    """As a user for whom modes count, and whose the directory is."""
    user = os.geteuid()
    if user == 0:
        directory.chmod(0o755)
        for it in (directory, *directory.rglob("*")):
            os.chown(it, 65534, -1)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_read_only_home():
    with tempfile.TemporaryDirectory() as directory, another_user(Path(directory)):
        os.chmod(directory, 0o555)
        expected = f"{directory}/.cache: Permission denied"
        assert refusal(HOME=directory) == expected
        os.chmod(directory, 0o755)


# A directory that the variable names


def test_a_directory_of_one_s_own_is_accepted(tmp_path: Path):
    check_directory(str(tmp_path))
    check_directory(str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []


def test_a_named_directory_that_is_refused(tmp_path: Path):
    shared, link, file = (tmp_path / name for name in ("shared", "link", "file"))
    shared.mkdir()
    shared.chmod(0o770 | 0o007)
    link.symlink_to(tmp_path)
    file.touch()
    reasons = {
        shared: f"{shared} may be written by others, whose code may be in it; use another directory",
        shared / "below": f"every user may write {shared}",
        link: f"{link} is a symbolic link; name the directory that it leads to",
        file: f"{file} is not a directory",
    }
    for path, reason in reasons.items():
        with pytest.raises(UsageError) as caught:
            check_directory(str(path))
        assert str(caught.value) == reason


@pytest.mark.machine
def test_a_named_directory_of_another_user(tmp_path: Path, needs):
    needs(os.geteuid() == 0, "root, which alone can give a directory away")
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(UsageError, match=f"{tmp_path} belongs to another user"):
        check_directory(str(tmp_path))


def test_asking_imports_nothing_heavy():
    code = (
        "import sys, xlaunch.cache.use\n"
        "heavy = {'click', 'json', 'numpy', 'pickletools', 'psutil', 'shutil', 'tarfile', 'torch'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
