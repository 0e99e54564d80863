# SPDX-License-Identifier: Apache-2.0
"""LD_PRELOAD: the list, and the proof by a real child that a library can be on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import program
from tests.launcher.environment.made_up import library
from tests.libraries import find_library

from xlaunch.environment import join_entries, preload
from xlaunch.environment.contribution import ListEntry
from xlaunch.environment.elf import read_program
from xlaunch.environment.preload import (
    Proof,
    preload_list,
    preloaded,
    prove_entries,
    prove_preload,
    require_library,
)
from xlaunch.environment.program import Program
from xlaunch.errors import UsageError


@pytest.mark.parametrize(
    ("inherited", "ours", "expected"),
    [
        (None, [], ""),
        ("", ["/a/libx.so"], "/a/libx.so"),
        (None, ["/a/libx.so", "/b/liby.so"], "/a/libx.so:/b/liby.so"),
        ("/u/libz.so", ["/a/libx.so"], "/u/libz.so:/a/libx.so"),
        ("/u/libz.so  libw.so", ["/a/libx.so"], "/u/libz.so  libw.so:/a/libx.so"),
        (" /u/libz.so: ", ["/a/libx.so"], "/u/libz.so:/a/libx.so"),
        ("/a/libx.so", ["/a/libx.so"], "/a/libx.so"),
        ("/a/../a/libx.so", ["/a/libx.so"], "/a/../a/libx.so"),
        ("/u/libz.so /a/libx.so", ["/a/libx.so", "/a/libx.so"], "/u/libz.so /a/libx.so"),
        ("libx.so.4", ["/a/libx.so.4.5.10"], "libx.so.4"),
        ("libx.so.4", ["/a/libx.so.40"], "libx.so.4:/a/libx.so.40"),
        ("/u/gone.so", ["/a/libx.so"], "/u/gone.so:/a/libx.so"),
    ],
)
def test_what_is_inherited_stays_and_nothing_comes_twice(inherited, ours, expected: str):
    assert preload_list(inherited, ours) == expected
    assert preload_list(expected, ours) == expected


def test_link_to_a_library_is_the_library(tmp_path: Path):
    path = library(tmp_path / "libx.so.1.2")
    (tmp_path / "libx.so").symlink_to(path)
    assert preload_list(f"{tmp_path}/libx.so", [str(path)]) == f"{tmp_path}/libx.so"


def test_entries_are_separated_by_colons_or_spaces():
    assert preloaded(" a.so:b.so  c.so:") == ["a.so", "b.so", "c.so"]
    assert preloaded(None) == []


def test_several_concerns_share_one_variable(golden: Golden):
    entries = [
        ListEntry("LD_PRELOAD", "/a/x.so", "because of x"),
        ListEntry("PYTHONPATH", "/a/hook", "because of a"),
        ListEntry("LD_PRELOAD", "/b/y.so", "because of y"),
        ListEntry("PYTHONPATH", "/b/hook", "because of b"),
    ]
    joined = join_entries(entries, {"LD_PRELOAD": "/u/z.so", "PYTHONPATH": "/u:"})
    golden([(it.name, it.value, it.reason, it.merged) for it in joined])


# The proof


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose cache is empty."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}


@pytest.fixture
def good(needs) -> str:
    """A library that can be preloaded."""
    found = find_library("gnu", None, {}) or find_library("gnu", sys.prefix, {})
    needs(found, "libgomp.so.1")
    return found.path


@pytest.fixture
def compile_library(tmp_path: Path, needs):
    """Make a library of C code."""
    compiler = shutil.which("gcc")
    needs(compiler, "gcc")

    def compile_it(code: str) -> str:
        source, path = tmp_path / "code.c", tmp_path / "libcode.so"
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path], check=True)
        return str(path)

    return compile_it


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every child that is started."""
    started: list[object] = []
    run = subprocess.run

    def counted(*words, **options):
        started.append(words)
        return run(*words, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return started


@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc", "mimalloc", "intel", "llvm", "gnu"])
def test_real_library_is_proven(name: str, home, needs):
    found = find_library(name, sys.prefix, os.environ)
    needs(found, f"{name}, of Debian or of pip")
    assert prove_preload(found.path, sys.executable, home) == Proof(None, None)


def test_settings_of_the_user_s_do_not_speak_against_a_library(home, needs):
    found = find_library("jemalloc", None, {})
    needs(found, "Debian's libjemalloc2")
    home["MALLOC_CONF"] = "no_such_option:true"  # jemalloc would complain
    assert prove_preload(found.path, sys.executable, home).refusal is None


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ('fputs("bad page size\\n", stderr)', "preloading it says: bad page size"),
        ("_exit(7)", "when it is preloaded"),
        ("*(volatile int *)0 = 0", "when it is preloaded"),
    ],
    ids=["complains", "exits", "crashes"],
)
def test_library_that_disturbs_the_program(compile_library, home, code: str, told: str):
    path = compile_library(
        "#include <stdio.h>\n#include <unistd.h>\n"
        f"__attribute__((constructor)) void f(void) {{ {code}; }}"
    )
    assert told in (prove_preload(path, sys.executable, home).refusal or "")


def test_library_that_needs_another_which_is_absent(compile_library, tmp_path: Path, home):
    path = compile_library("int getpid(void); int f(void) { return getpid(); }")
    data = Path(path).read_bytes().replace(b"libc.so.6\0", b"libq.so.6\0")
    Path(path).write_bytes(data)
    assert "libq.so.6" in (prove_preload(path, sys.executable, home).refusal or "")


def test_interpreter_without_it(golden: Golden, good: str, tmp_path: Path, home):
    def refusal(path: Path) -> str | None:
        return prove_preload(good, str(path), home).refusal

    deaf = f'#!/bin/sh\nunset LD_PRELOAD\nexec {sys.executable} "$@"\n'
    golden(refusal(program(tmp_path / "deaf", deaf)) or "")
    (tmp_path / "python").write_text("")
    golden(refusal(tmp_path / "python") or "")


def test_child_that_hangs_is_ended(good: str, tmp_path: Path, home, monkeypatch, starts):
    slow = program(tmp_path / "python", "#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(preload, "CHILD_TIMEOUT_S", 0.2)
    for _ in range(2):  # not kept: it may have been the machine's fault
        assert "did not end" in (prove_preload(good, str(slow), home).refusal or "")
    assert len(starts) == 2


# What was proven is kept


def kept(home: dict[str, str]) -> Path:
    return Path(home["XDG_CACHE_HOME"]) / "xlaunch" / "preloads"


def proofs(home: dict[str, str]) -> list[tuple[str, str]]:
    """The keys and refusals in the file."""
    words = kept(home).read_text(errors="surrogateescape").split("\0")
    return list(zip(words[::2], words[1::2], strict=False))


def test_proof_is_made_once(good: str, home, starts):
    for _ in range(3):
        assert prove_preload(good, sys.executable, home) == Proof(None, None)
    assert len(starts) == 1
    assert kept(home).parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in kept(home).parent.iterdir()] == ["preloads"]


@pytest.mark.parametrize("change", ["time", "size", "inode", "interpreter", "LD_LIBRARY_PATH"])
def test_proof_is_of_these_very_files(good: str, tmp_path: Path, home, starts, change: str):
    path, interpreter = tmp_path / "libx.so", sys.executable
    shutil.copy2(good, path)
    times = path.stat().st_mtime_ns, path.stat().st_mtime_ns
    assert prove_preload(str(path), interpreter, home).refusal is None
    if change == "time":
        os.utime(path, ns=(times[0] + 1, times[1] + 1))
    elif change == "size":
        with path.open("ab") as stream:
            stream.write(b"\0")
        os.utime(path, ns=times)
    elif change == "inode":
        shutil.copy2(path, tmp_path / "new")
        (tmp_path / "new").replace(path)
    elif change == "interpreter":
        text = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        interpreter = str(program(tmp_path / "python", text))
    else:
        home["LD_LIBRARY_PATH"] = str(tmp_path)
    assert prove_preload(str(path), interpreter, home).refusal is None
    assert len(starts) == 2


@pytest.mark.parametrize("content", [b"", b"x", b"\0", b"\xff\xfe\0", b"x" * 100_000])
def test_damaged_file_proves_nothing(good: str, home, starts, content: bytes):
    kept(home).parent.mkdir(parents=True, mode=0o700)
    kept(home).write_bytes(content)
    for _ in range(2):
        assert prove_preload(good, sys.executable, home) == Proof(None, None)
    assert len(starts) == 1
    key, refusal = proofs(home)[-1]
    assert good in key
    assert refusal == ""


def test_refusal_is_what_the_loader_says_and_is_kept_unless_it_is_cut_off(
    golden: Golden, tmp_path: Path, home, starts
):
    path = tmp_path / "libx.so"
    path.write_bytes(b"not a library")
    first = prove_preload(str(path), sys.executable, home)
    golden(first.refusal or "")
    assert prove_preload(str(path), sys.executable, home) == first
    assert len(starts) == 1
    whole = kept(home).read_bytes()
    for part in (whole[:-1], whole[:-5], whole.split(b"\0")[0] + b"\0"):
        kept(home).write_bytes(part)
        assert prove_preload(str(path), sys.executable, home) == first
    assert len(starts) == 4
    absent = prove_preload(str(tmp_path / "absent.so"), sys.executable, home)
    golden(absent.refusal)


def test_other_proofs_stay_and_the_oldest_go(good: str, home):
    kept(home).parent.mkdir(parents=True, mode=0o700)
    kept(home).write_text("".join(f"old {n}\0\0" for n in range(preload.MAX_PROOFS + 10)))
    prove_preload(good, sys.executable, home)
    names = [key for key, _ in proofs(home)]
    assert len(names) == preload.MAX_PROOFS
    assert names[-2] == f"old {preload.MAX_PROOFS + 9}"
    assert good in names[-1]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": ""},
        {"HOME": "relative", "XDG_CACHE_HOME": "relative"},
        {"HOME": "/proc/no-such-directory"},
        {"XDG_CACHE_HOME": "/dev/null"},
    ],
)
def test_without_a_home_it_is_tried_every_time_with_a_note(good: str, starts, variables):
    for _ in range(2):
        refusal, note = prove_preload(good, sys.executable, variables)
        assert refusal is None
        assert (note or "").startswith("whether a library can be preloaded is tried at every")
    assert len(starts) == 2


def test_file_that_cannot_be_replaced_is_a_note(golden: Golden, good: str, home):
    (kept(home) / "in the way").mkdir(parents=True)
    kept(home).parent.chmod(0o700)
    refusal, note = prove_preload(good, sys.executable, home)
    assert refusal is None
    golden(note or "")
    assert [path.name for path in kept(home).parent.iterdir()] == ["preloads"]


def test_directory_that_others_can_write_is_not_believed(golden: Golden, good: str, home, starts):
    kept(home).parent.mkdir(parents=True)
    prove_preload(good, sys.executable, home)
    kept(home).parent.chmod(0o777)
    golden(prove_preload(good, sys.executable, home).note or "")
    kept(home).parent.chmod(0o770)
    golden(prove_preload(good, sys.executable, home).note or "")
    assert len(starts) == 3


def test_directory_behind_a_link_is_believed_if_it_is_private(
    golden: Golden, good: str, home, tmp_path: Path
):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    kept(home).parent.parent.mkdir()
    kept(home).parent.symlink_to(tmp_path / "elsewhere")
    assert prove_preload(good, sys.executable, home).note is None
    (tmp_path / "elsewhere").chmod(0o777)
    note = prove_preload(good, sys.executable, home).note or ""
    golden(note)


def test_home_is_used_without_xdg(good: str, tmp_path: Path):
    assert prove_preload(good, sys.executable, {"HOME": str(tmp_path)}).note is None
    assert (tmp_path / ".cache/xlaunch/preloads").is_file()


# What a profile asks for


def require(wanted: str, home, prefix: str | None = sys.prefix):
    loads = read_program(sys.executable)
    program = Program(sys.executable, (sys.executable,), prefix=prefix, loads=loads)
    return require_library("--omp x", wanted, program, home)


def test_first_library_that_is_proven_is_taken(tmp_path: Path, good: str, home):
    tmp_path.chmod(0o755)
    # Read, it is a library; loaded, it is not: it has no code.
    library(tmp_path / "lib" / "libgomp.so.1")
    home["LD_LIBRARY_PATH"] = f"{tmp_path}/lib"
    found, notes = require("gnu", home, None)
    assert found.path == find_library("gnu", None, {}).path
    assert notes == ()


def test_library_that_is_nowhere(home, monkeypatch: pytest.MonkeyPatch):
    from xlaunch.environment import libraries

    monkeypatch.setattr(libraries, "_system_directories", lambda _: ["/usr/lib"])
    problem = r"^--omp x: no such library in /usr/lib\..* pip install intel-openmp \(x86-64 only\)$"
    with pytest.raises(UsageError, match=problem):
        require("intel", home, None)


def test_named_file_that_is_refused(tmp_path: Path, home):
    with pytest.raises(UsageError, match=r"--omp x: .*/libgomp.so.1: cannot be read"):
        require(f"{tmp_path}/libgomp.so.1", home)
    tmp_path.chmod(0o755)
    path = library(tmp_path / "libgomp.so.1")
    with pytest.raises(UsageError, match=r"libgomp.so.1: .*preload"):
        require(str(path), home)


def test_named_file_that_every_user_may_write_is_taken_with_a_note(tmp_path: Path, good: str, home):
    path = tmp_path / "libgomp.so.1"
    shutil.copy(good, path)
    path.chmod(0o666)
    found, notes = require(str(path), home)
    assert found.path == str(path)
    assert notes == (f"--omp x: every user may write {path}; used as you named it",)
    home["LD_LIBRARY_PATH"] = str(tmp_path)
    assert require("gnu", home, None)[0].path != str(path)


# The user's own entries


def test_user_s_entries_are_tried_only_where_they_decide_something(tmp_path: Path, home, starts):
    other, gone = str(library(tmp_path / "libother.so")), f"{tmp_path}/libtcmalloc.so.4"
    broken = tmp_path / "libjemalloc.so.2"
    broken.write_text("no library")
    given = home | {"LD_PRELOAD": f"{other} {gone}:{broken}"}
    untried = prove_entries(given, None)
    assert (untried.value, untried.refused) == (f"{other}:{gone}:{broken}", ())
    assert not starts
    tried = prove_entries(given, sys.executable)
    assert tried.value == other
    (first, missing), (second, complaint) = tried.refused
    assert (first, missing) == (gone, "there is no such file")
    assert second == str(broken)
    assert "cannot be preloaded" in complaint
    assert len(starts) == 1
