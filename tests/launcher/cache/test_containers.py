# SPDX-License-Identifier: Apache-2.0
"""docs/containers.md without a container: an image is built, moved, and started by another user."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.launcher.cache.compiling import (
    NET,
    NO_PRECOMPILED_HEADERS,
    PATIENCE_S,
    STAND_IN,
    XLAUNCH,
    default_base,
    environment,
    files_below,
    find_compiler,
    is_root,
    only_cache,
)
from tests.launcher.other_user import AS_NOBODY, NOBODY, open_directory, opened

from xlaunch.cache.use import SEED_VARIABLE as SEED

STRANGER = 65533
Needs = Callable[[object, str], None]


place = pytest.fixture(open_directory)
place_of_module = pytest.fixture(open_directory, scope="module")


@pytest.fixture(scope="module")
def nobody_can_start(place_of_module: Path, needs: Needs) -> None:
    needs(is_root() and shutil.which("setpriv"), "root, and setpriv (util-linux)")
    # In /: the current directory may be one that the other user cannot read.
    version = [*opened(place_of_module), *AS_NOBODY, *XLAUNCH, "--version"]
    done = subprocess.run(version, check=False, capture_output=True, text=True, cwd="/")
    needs(done.returncode == 0, f"a mount namespace: {done.stderr}")


@pytest.fixture
def as_nobody(place: Path, nobody_can_start: None) -> tuple[str, ...]:
    """The start of a command that runs as another user."""
    return (*opened(place), *AS_NOBODY)


class Image:
    """A root directory with a program, and with the caches that a run of it has filled."""

    def __init__(self, root: Path, program: str, **variables: str) -> None:
        """Build it as a Dockerfile does, as root."""
        self.root = root
        self.variables = variables
        for name in ("app", "opt"):
            (root / name).mkdir(parents=True)
        self.program.write_text(program)
        home = root.parent / "home-of-root"
        home.mkdir()
        words = ["cache", "warm", "--ncores", "1", "--cache-dir", self.seed, "--", self.program]
        subprocess.run([*XLAUNCH, *map(str, words)], check=True, env=environment(home, **variables))
        subprocess.run(["chmod", "-R", "a=rX", self.seed], check=True)

    @property
    def program(self) -> Path:
        return self.root / "app" / "net.py"

    @property
    def seed(self) -> Path:
        return self.root / "opt" / "caches"

    def copied(self, root: Path) -> Image:
        """The same image under another path."""
        subprocess.run(["cp", "-a", self.root, root], check=True)
        other = copy.copy(self)
        other.root = root
        return other


class User:
    """Another user with a home, who starts the program of an image."""

    def __init__(self, words: tuple[str, ...], place: Path, image: Image) -> None:
        self.words = words
        self.home = place / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, NOBODY, NOBODY)
        self.image = image

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Begin a launch of the program."""
        return self._begin("--ncores", "1", *options, "--", str(self.image.program))

    def run(self, *options: str) -> tuple[int, str]:
        """Launch the program; its exit code, and what it printed."""
        return self._end(self.start(*options))

    def xlaunch(self, *words: str) -> tuple[int, str]:
        return self._end(self._begin(*words))

    def _begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.words, *XLAUNCH, *words],
            cwd=self.image.root,
            env=environment(self.home, **{SEED: str(self.image.seed)}, **self.image.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
        with process:
            printed = process.communicate(timeout=PATIENCE_S)[0]
        return process.returncode, printed

    def run_at_once(self, count: int) -> list[tuple[int, str]]:
        """Begin so many launches before the first ends."""
        with ExitStack() as stack:
            begun = [stack.enter_context(self.start()) for _ in range(count)]
            return [(it.wait(PATIENCE_S), it.stdout.read() if it.stdout else "") for it in begun]

    @property
    def base(self) -> Path:
        return default_base(self.home)


@pytest.fixture(scope="module")
def image(place_of_module: Path) -> Image:
    """An image whose program compiles without torch."""
    return Image(place_of_module / "image", STAND_IN)


@pytest.fixture
def user(place: Path, as_nobody: tuple[str, ...], image: Image) -> User:
    """Another user, and a copy of the image at its path, which tests may change."""
    return User(as_nobody, place, image.copied(place / "image"))


def test_every_user_can_read_the_image(user: User):
    find = [*AS_NOBODY, "find", user.image.root, "!", "-readable", "-o", "-writable"]
    found = subprocess.run(find, check=True, capture_output=True, text=True, cwd="/")
    assert (found.stdout, found.stderr) == ("", "")


def test_a_start_finds_the_caches_under_another_path(user: User):
    assert user.run() == (0, "loaded True\n")
    assert files_below(only_cache(user.base)) == files_below(only_cache(user.image.seed))
    owners = {path.stat().st_uid for path in user.base.rglob("*")}
    modes = {path.stat().st_mode & 0o077 for path in user.base.rglob("*")}
    assert (owners, modes) == ({NOBODY}, {0})
    code, printed = user.xlaunch("cache", "verify")
    assert (code, printed.rpartition(", ")[2]) == (0, "whole\n"), printed


def test_under_its_own_path_the_image_is_used(user: User, image: Image):
    user.image = image
    code, plan = user.run("--dry-run", "--explain")
    assert code == 0
    assert "; used: it has code of earlier launches" in plan
    assert not user.base.exists()


def change_owner(seed: Path) -> Path:
    os.chown(seed, STRANGER, STRANGER)
    return seed


def change_owner_of_a_file(seed: Path) -> Path:
    found = next(seed.rglob("code.cpp"))
    os.chown(found, STRANGER, STRANGER)
    return found


# `test_launches` has other changes, without another user.
@pytest.mark.parametrize("change", [change_owner, change_owner_of_a_file])
def test_a_seed_that_others_could_change_is_refused(user: User, change: Callable[[Path], Path]):
    changed = change(user.image.seed)
    code, printed = user.run()
    assert code == 2
    assert printed.startswith(f"xlaunch: error: {SEED}"), printed
    assert str(changed) in printed
    assert len(printed.splitlines()) == 1
    assert not list(user.home.rglob("code.cpp"))


def test_eight_first_starts_at_once(user: User):
    assert user.run_at_once(8) == [(0, "loaded True\n")] * 8
    assert files_below(only_cache(user.base)) == files_below(only_cache(user.image.seed))
    assert not list(user.base.glob("*/.*"))


@pytest.mark.full
def test_no_start_runs_the_compiler(place: Path, as_nobody: tuple[str, ...], needs: Needs):
    compiler = find_compiler(place, needs)
    image = Image(place / "image", NET, **NO_PRECOMPILED_HEADERS, **compiler.variables())
    built = compiler.runs()
    assert built
    image.root = image.root.rename(place / "moved")
    user = User(as_nobody, place, image)
    code, printed = user.run("--report", str(user.home / "report.json"))
    assert (code, printed.splitlines()[0]) == (0, "correct"), printed
    caches = json.loads((user.home / "report.json").read_text())["caches"]
    assert {it["cache"]: (it["warmth"], it["new_files"]) for it in caches}["inductor"] == (
        "used",
        0,
    )
    shutil.rmtree(user.base)
    assert user.run_at_once(4) == [(0, "correct\n")] * 4
    assert compiler.runs() == built
    assert files_below(only_cache(user.base)) == files_below(only_cache(image.seed))
    code, printed = user.xlaunch("cache", "verify")
    assert (code, printed.rpartition(", ")[2]) == (0, "whole\n"), printed
