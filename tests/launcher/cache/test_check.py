# SPDX-License-Identifier: Apache-2.0
"""What is damaged or not private is found and removed; what is whole, or in use, stays."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cache.entries import (
    CONTENT,
    HARDWARE,
    PACKAGES,
    WITH_TESTS,
    elf,
    files,
    fill,
    held,
    numba_index,
    place,
    put,
)

from xlaunch.cache.bundle import export
from xlaunch.cache.bundle_import import import_bundle
from xlaunch.cache.check import MIN_LOCK_AGE_S, Aspect, verify
from xlaunch.cache.contents import entries_of
from xlaunch.cache.formats import damage
from xlaunch.cache.store import DAY_S, CacheDirectory, begin_use, key_of
from xlaunch.cache.table import BY_NAME, Format


@pytest.fixture
def base(tmp_path: Path) -> Path:
    fill(tmp_path / "compiled")
    return tmp_path / "compiled"


def home(base: Path, cache: str = "inductor") -> Path:
    """The directory of a cache's key."""
    return Path(place(base, cache).path)


def found(base: Path, *, fix: bool = False) -> dict[str, Aspect]:
    problems = verify(str(base), fix=fix)
    assert [it.fixed for it in problems] == [fix] * len(problems)
    assert len({it.path for it in problems}) == len(problems)
    return {it.path: it.check for it in problems}


def check_and_fix(base: Path, path: Path, aspect: Aspect) -> None:
    """The only problem is at `path`; fixing removes it, and nothing else."""
    before = files(base)
    assert found(base) == {str(path): aspect}
    assert files(base) == before
    assert found(base, fix=True) == {str(path): aspect}
    assert not os.path.lexists(path)
    assert found(base) == {}
    assert files(base).keys() == before.keys() - {str(path.relative_to(base))}


def age(path: Path, seconds: float = 3600) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def test_whole_and_absent_caches(base: Path, tmp_path: Path):
    assert verify(str(base)) == []
    assert verify(str(tmp_path / "absent")) == []


def stays(base: Path, path: Path, aspect: Aspect) -> None:
    """The only problem of `base` is at `path`, and is not ours to fix."""
    before = path.lstat()
    [problem] = verify(str(base), fix=True)
    assert (problem.path, problem.check, problem.fixed) == (str(path), aspect, False)
    after = path.lstat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_a_base_that_is_not_ours_stays(base: Path, tmp_path: Path):
    link, file = tmp_path / "link", put(tmp_path / "file", b"x")
    link.symlink_to(base)
    for path in (link, file):
        stays(path, path, Aspect.LINK)
    tmp_path.chmod(0o777)
    stays(base, tmp_path, Aspect.OWNER)


def test_base_in_the_directory_for_temporary_files():
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        assert os.stat("/tmp").st_mode & 0o7777 == 0o1777
        assert verify(directory) == []


# Formats

PICKLE = pickle.dumps({"graph": "x" * 100, "sizes": list(range(50))})


def damage_of(path: Path, form: Format, data: bytes) -> str | None:
    path.write_bytes(data)
    with open(path, "rb") as stream:
        return damage(stream, form)


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (Format.ELF, elf()),
        (Format.ELF, Path(sys.executable).resolve().read_bytes()),
        (Format.PICKLE, PICKLE),
        (Format.PICKLE, numba_index("int64", "float64")),
        *[(Format.PICKLE, pickle.dumps(["x", 1 << 300, 1.5], protocol)) for protocol in range(6)],
        (Format.PICKLE, pickle.dumps(["x", 1 << 300, 1.5, b"y"], 2)),
        (Format.JSON, b'{"a": [1, 2.5, "x"]}'),
        (Format.ANY, b""),
        (Format.LOCK, b""),
    ],
)
def test_whole_files_and_every_truncation(tmp_path: Path, form: Format, data: bytes):
    path = tmp_path / "file"
    assert damage_of(path, form, data) is None
    if len(data) < 1000:
        cut = [length for length in range(len(data)) if not damage_of(path, form, data[:length])]
        # The first of numba's two pickles is one, as far as anybody can see.
        version = pickle.dumps("0.68.1")
        assert cut == ([len(version)] if data.startswith(version) else [])


@pytest.mark.parametrize(
    ("form", "data"),
    [
        *[
            (Format.PICKLE, data)
            for data in (
                bytes(4096),
                PICKLE + b"x",
                PICKLE + bytes(10),
                b"\x80\x04\x8e" + b"\xff" * 8 + b"x.",  # a length of 16 exabytes
                b"\x80\x05\x96" + b"\xff" * 7 + b"\x00x.",
                b"I12x\n.",
                b"I12",
                b"cos\nmkdir",
                b"\xff",
            )
        ],
        (Format.ELF, elf()[:40]),
        (Format.ELF, elf()[:64]),
        (Format.ELF, b"\x7fELF\x03" + elf()[5:]),
    ],
)
def test_damaged_files(tmp_path: Path, form: Format, data: bytes):
    assert damage_of(tmp_path / "file", form, data) is not None


def test_pickles_are_not_executed(tmp_path: Path):
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(tmp_path / "evil"),)

    assert damage_of(tmp_path / "file", Format.PICKLE, pickle.dumps(Evil())) is None
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("length", ["half", "empty"])
def test_truncated_entries(base: Path, length: str):
    for cache, names in {
        "inductor": ["24/c24.so", "fxgraph/wc/fwc/w3o", "aotautograd/a1/h2", "gu/k.best_config"],
        "numba": ["m_1/f-1.py311.nbi", "m_1/f-1.py311.1.nbc"],
        "triton": ["QX/k.cubin", "QX/k.json"],
        "optimized": ["0123abcd/model.so", "0123abcd/description.json"],
    }.items():
        for name in names:
            path = home(base, cache) / name
            data = path.read_bytes()[: path.stat().st_size // 2 if length == "half" else 0]
            check_and_fix(base, put(path, data), Aspect.FORMAT)


def test_files_of_any_content(base: Path):
    for name in ("24/c25.cpp", "24/x.py", "unknown"):
        put(home(base) / name, b"")
    # Neither Inductor, numba nor Triton reads files of such names.
    put(home(base) / "fxgraph/wc/fwc/.7.8.tmp", PICKLE[:20])
    put(home(base, "numba") / "m_1/f-1.py311.nbi.tmp.0123456789abcdef", b"x")
    put(home(base, "triton") / "QX/tmp.pid_12_ab/k.cubin", elf()[:9])
    assert found(base) == {}


def test_damaged_record_of_a_key(base: Path):
    path = Path(f"{home(base)}.json")
    check_and_fix(base, put(path, b'{"parts": 1}'), Aspect.FORMAT)


def test_damaged_record_of_a_directory_in_use_stays(base: Path):
    # Removing it would remove the lock that says so.
    directory = place(base)
    with held(directory):
        record = put(Path(directory.record), b"{")
        stays(base, record, Aspect.FORMAT)


def test_file_in_a_directory_in_use_may_be_being_written(base: Path):
    new, old = (put(home(base) / f"24/{name}.so", elf()[:70]) for name in ("c30", "c31"))
    os.utime(new)
    with held(place(base)):
        check_and_fix(base, age(old), Aspect.FORMAT)
    check_and_fix(base, new, Aspect.FORMAT)


@pytest.mark.parametrize("how", ["renamed", "written"])
def test_file_that_is_replaced_while_it_is_checked_stays(
    base: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    path = put(home(base) / "24/c30.so", elf()[:70])

    def replace_then_tell(*arguments: Any) -> str | None:
        told = damage(*arguments)
        if told is not None and how == "renamed":
            os.replace(put(path.with_suffix(".new"), elf()), path)  # its time is the same
        elif told is not None:
            path.write_bytes(elf())
        return told

    monkeypatch.setattr("xlaunch.cache.formats.damage", replace_then_tell)
    assert found(base, fix=True) == {}
    assert path.read_bytes() == elf()


def test_file_that_is_removed_while_it_is_checked_is_no_problem(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    path = put(home(base) / "24/c30.so", elf()[:70])

    def remove_then_tell(cache: str, relative: str) -> Any:
        path.unlink(missing_ok=True)
        return entries_of(cache, relative)

    monkeypatch.setattr("xlaunch.cache.contents.entries_of", remove_then_tell)
    assert found(base) == {}


# What was imported


@pytest.fixture
def imported(base: Path, tmp_path: Path) -> Path:
    """A base that was filled from a bundle."""
    export(str(base), [place(base, name) for name in CONTENT], str(tmp_path / "x.tar"))
    import_bundle(str(tmp_path / "imported"), str(tmp_path / "x.tar"), HARDWARE, PACKAGES)
    return tmp_path / "imported"


def test_changed_content_of_an_imported_file(imported: Path):
    for name in ("24/c24.so", "24/c24.cpp"):
        path = home(imported) / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        check_and_fix(imported, put(path, bytes(data)), Aspect.CHECKSUM)  # its time is the same


def test_imported_file_that_a_program_has_replaced(imported: Path):
    path = home(imported, "numba") / "m_1/f-1.py311.nbi"
    path.write_bytes(numba_index("int64", "float64"))
    assert found(imported) == {}
    path.write_bytes(numba_index("int64", "float64")[:-1])
    check_and_fix(imported, path, Aspect.FORMAT)


def test_damaged_record_of_an_import(imported: Path):
    (home(imported) / "24/c24.so").unlink()  # pruned
    assert found(imported) == {}
    check_and_fix(imported, put(Path(f"{home(imported)}.imported"), b'{"files'), Aspect.FORMAT)


# Owner, mode and links


@pytest.mark.parametrize("name", ["{}", "{}/24", "{}/24/c24.so", "{}.json"])
@pytest.mark.parametrize("added", [0o002, 0o020])
def test_modes_are_repaired(base: Path, name: str, added: int):
    path = base / name.format(f"inductor/{home(base).name}")
    mode = path.stat().st_mode & 0o777
    path.chmod(mode | added)
    assert found(base) == {str(path): Aspect.MODE}
    assert path.stat().st_mode & 0o777 == mode | added
    assert found(base, fix=True) == {str(path): Aspect.MODE}
    assert path.stat().st_mode & 0o777 == mode
    assert found(base) == {}


def test_files_that_others_can_read_are_no_problem(base: Path):
    (home(base) / "24/c24.so").chmod(0o755)
    (home(base) / "24").chmod(0o755)
    assert found(base) == {}


@pytest.mark.parametrize("name", ["inductor/{}/x", "inductor/{}/24/x"])
@pytest.mark.parametrize("target", ["directory", "file", "nothing"])
def test_links_are_removed(base: Path, tmp_path: Path, name: str, target: str):
    (tmp_path / "directory").mkdir()
    put(tmp_path / "directory" / "inside", b"x").chmod(0o666)
    put(tmp_path / "file", b"x").chmod(0o666)
    path = base / name.format(home(base).name)
    path.symlink_to(tmp_path / target)
    check_and_fix(base, path, Aspect.LINK)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "directory" / "inside").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("name", ["", "inductor"])
def test_what_xlaunch_may_not_have_made_is_not_repaired(base: Path, name: str):
    (base / name).chmod(0o770)
    stays(base, base / name, Aspect.MODE)


@pytest.mark.parametrize("name", ["inductor/x", "inductor/x.json", "triton/{}"])
def test_what_xlaunch_did_not_make_stays(base: Path, tmp_path: Path, name: str):
    """A user may name a directory for caches that holds other things."""
    for mine in (base / "mine", base / "inductor/mine"):
        put(mine / "file", b"x").chmod(0o666)
        (mine / "link").symlink_to(tmp_path)
        mine.chmod(0o777)
    put(base / "inductor" / "mine.json", b"no record").chmod(0o666)
    link = base / name.format(home(base).name)
    link.symlink_to(base / "mine")
    before = {path: path.lstat().st_ctime_ns for path in base.rglob("*")}
    problems = {it.path: it.fixed for it in verify(str(base), fix=True)}
    assert problems == {str(base / "inductor" / "mine"): False, str(link): False}
    assert {path: path.lstat().st_ctime_ns for path in base.rglob("*")} == before


def test_special_files_are_removed(base: Path):
    path = home(base) / "24" / "pipe.so"
    os.mkfifo(path)
    check_and_fix(base, path, Aspect.LINK)


@pytest.mark.machine
@pytest.mark.parametrize(
    ("cache", "name"),
    [
        ("inductor", "24/c24.so"),
        ("inductor", "24/c24.cpp"),
        ("inductor", "gu"),
        ("optimized", "0123abcd/model.so"),
    ],
)
def test_file_or_directory_of_another_user(base: Path, needs, cache: str, name: str):
    path = give_away(home(base, cache) / name, needs)
    assert found(base) == {str(path): Aspect.OWNER}
    assert found(base, fix=True) == {str(path): Aspect.OWNER}
    assert not path.exists()
    assert (home(base) / "fxgraph/wc/fwc/w3o").exists()
    assert found(base) == {}


@pytest.mark.machine
def test_base_of_another_user_stays(base: Path, needs):
    stays(base, give_away(base, needs), Aspect.OWNER)
    assert home(base).exists()


def give_away(path: Path, needs: Callable[[object, str], None]) -> Path:
    needs(os.geteuid() == 0, "root, which alone can give a file away")
    os.chown(path, 65534, -1)
    return path


@pytest.mark.machine
def test_what_cannot_be_removed_is_not_called_fixed(needs):
    needs(os.geteuid() == 0, "root, to become another user")
    with tempfile.TemporaryDirectory() as directory:  # pytest's are closed to other users
        os.chmod(directory, 0o755)
        base = Path(directory, "compiled")
        fill(base)
        path = put(home(base) / "24/c24.so", b"")
        for it in (base, *base.rglob("*")):
            os.chown(it, 65534, -1)
        os.chown(home(base) / "24/c24.cpp", 0, -1)
        # Its directory is the file's, and not another user's to repair.
        os.chown(home(base) / "24", 65533, -1)
        os.chmod(home(base) / "24", 0o755)
        done = subprocess.run(
            [sys.executable, "-c", VERIFY_AS_NOBODY, str(base)],
            env=WITH_TESTS,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == [
            [str(path.parent), "it belongs to another user (65533)", False]
        ]
        assert path.exists()


VERIFY_AS_NOBODY = """
import fcntl, json, os, shutil, sys  # which another user may be unable to read
from xlaunch.cache.check import verify
os.setresuid(65534, 65534, 65534)
print(json.dumps([(it.path, it.what, it.fixed) for it in verify(sys.argv[1], fix=True)]))
"""


# Locks and leftovers


def lock(base: Path, cache: str, name: str) -> tuple[CacheDirectory, Path]:
    directory = begin_use(str(base), key_of(BY_NAME[cache], HARDWARE, PACKAGES))
    return directory, put(Path(directory.path, name), b"")


@pytest.mark.parametrize(
    ("cache", "name"), [("torch_extensions", "my_ops/lock"), ("sycl", "dev/1/2/0.lock")]
)
def test_stale_locks_are_removed(base: Path, cache: str, name: str):
    _, path = lock(base, cache, name)
    check_and_fix(base, age(path, MIN_LOCK_AGE_S + 60), Aspect.LOCK)


def test_locks_of_a_running_program_stay(base: Path):
    directory, path = lock(base, "torch_extensions", "my_ops/lock")
    age(path, MIN_LOCK_AGE_S + 60)
    with held(directory):
        assert found(base) == {}
    check_and_fix(base, path, Aspect.LOCK)


def test_young_locks_and_those_that_are_only_files_stay(base: Path):
    age(home(base) / "locks/c24.lock", 10**6)
    age(lock(base, "torch_extensions", "my_ops/lock")[1], MIN_LOCK_AGE_S - 60)
    assert found(base) == {}


def test_leftover_of_a_killed_import(base: Path):
    path = base / ".importing-0123456789abcdef"
    put(path / "inductor-0", b"x")
    check_and_fix(base, path, Aspect.LEFTOVER)


def test_leftover_of_a_killed_copy_of_a_seed(base: Path, monkeypatch: pytest.MonkeyPatch):
    path = base / "inductor" / ".seeding-01234567"
    put(path / "24/c24.so", elf()[:9])
    os.utime(path)
    assert found(base) == {}  # it may still be going on
    later = time.time() + DAY_S
    monkeypatch.setattr(time, "time", lambda: later + 60)
    check_and_fix(base, path, Aspect.LEFTOVER)


def test_leftover_of_a_killed_compilation(base: Path):
    """A young one may be going on, and so may one whose name has the number of a process."""
    optimized = home(base, "optimized")
    day = 1.1 * DAY_S
    running = age(optimized / ".partial-7-x", 0.9 * DAY_S), optimized / f".partial-{os.getpid()}-x"
    put(running[1] / "model.so", elf()[:9])
    age(running[1], day)
    assert found(base) == {}
    path = optimized / f".partial-{2**22 + 1}-x"
    put(path / "model.so", elf()[:9])
    age(path, day)
    check_and_fix(base, path, Aspect.LEFTOVER)
    assert all(it.is_dir() for it in running)


def test_files_that_vanish_are_no_problem(base: Path):
    code = (
        "import os, shutil, sys\n"
        "while True:\n"
        "    os.makedirs(sys.argv[1] + '/a/b', 0o700)\n"
        "    for n in range(50): open(f'{sys.argv[1]}/a/b/{n}.json', 'w').write('{}')\n"
        "    print(flush=True)\n"
        "    shutil.rmtree(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(home(base, "triton") / "busy")]
    remover = subprocess.Popen(command, stdout=subprocess.PIPE)
    with remover, held(place(base, "triton")):
        assert remover.stdout is not None
        try:
            for _ in range(10):
                remover.stdout.readline()
                assert found(base) == {}
        finally:
            remover.kill()


# Real programs


@pytest.mark.full
def test_caches_of_programs_that_are_killed_while_they_compile(tmp_path: Path, needs):
    needs(find_spec("torch"), "torch")
    base = tmp_path / "compiled"
    [directory] = fill(base, "inductor")
    shutil.rmtree(directory.path)
    program = (
        "import torch, sys\n"
        "for n in range(1, 50):\n"
        "    f = torch.compile(lambda x: (x * n).sin().relu() + n)\n"
        "    f(torch.ones(10 + n)); print(flush=True)\n"
    )
    for lines in (1, 2, 4):
        running = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": directory.path},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with running:
            assert running.stdout is not None
            for _ in range(lines):
                running.stdout.readline()
            os.killpg(running.pid, signal.SIGKILL)
        for problem in verify(str(base), fix=True):
            # The linker writes a library in its place, and torch would load what is there.
            assert problem.path.endswith(".so"), problem
            assert problem.fixed, problem
        assert verify(str(base)) == []
    assert len(files(base)) > 10
