# SPDX-License-Identifier: Apache-2.0
"""`xlaunch cache`, as it is typed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cache.entries import fill
from tests.launcher.cli.commands import ask, clean_environment, own_lines, xlaunch

COMPILER = """
import os, sys
directory = os.environ["TORCHINDUCTOR_CACHE_DIR"]
os.makedirs(os.path.join(directory, "locks"), exist_ok=True)
open(os.path.join(directory, "locks", str(os.getpid()) + ".lock"), "w").close()
new = os.urandom(4).hex() if "always" in sys.argv else "same"
path = os.path.join(directory, new + ".cpp")
if not os.path.exists(path):
    with open(path, "w") as stream:
        stream.write("int main() {}")
sys.exit(3 if "fails" in sys.argv else 0)
"""


MODEL = """
import os, pathlib, shutil, sys
words = pathlib.Path("/proc/self/environ").read_bytes().split(b"\\0")
cache = pathlib.Path(os.environ["XRUNTIME_CACHE_DIR"])
killed = cache / f".partial-{os.getpid()}-x"
killed.mkdir()
(killed / "model.cpp").write_bytes(b"half")
if not (cache / "0123abcd").exists():
    new = cache / f".partial-{os.getpid()}-y"
    new.mkdir()
    shutil.copyfile(sys.executable, new / "model.so")
    asked = [it.decode() for it in words if it.startswith(b"XLAUNCH_OPTIMIZE=")]
    (new / "description.json").write_text('{"asked": "%s"}' % "".join(asked))
    (cache / "0123abcd.lock").touch()
    new.rename(cache / "0123abcd")
"""
"""Writes what `xruntime.optimize` does: a form appears whole. A compilation is killed in each run."""


def script(text: str, path: Path) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A program that compiles a model."""
    return script(MODEL, tmp_path / "model.py")


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A program that compiles: it writes a source into Inductor's cache."""
    return script(COMPILER, tmp_path / "compiler.py")


@pytest.fixture
def base(tmp_path: Path) -> tuple[str, str]:
    """The option that names a new directory of caches."""
    return "--cache-dir", str(tmp_path / "caches")


def listed(*options: str) -> dict[str, dict[str, object]]:
    done = ask("cache", "ls", *options, "--json")
    return {it["cache"]: it for it in json.loads(done.out)["caches"]}


def test_without_a_command_it_shows_them(golden: Golden):
    golden(ask("cache"))


def test_warm_runs_until_nothing_new_is_compiled(golden: Golden, base, compiler):
    first = xlaunch("cache", "warm", *base, compiler)
    assert first.code == 0
    assert listed(*base)["inductor"]["files"] == 3  # two locks
    explained = ask("--dry-run", "--explain", *base, compiler).out.decode()
    assert "; used: it has code of earlier launches" in explained
    assert "; cold: it is empty" in explained
    again = xlaunch("cache", "warm", *base, compiler)
    golden(own_lines(first.err), own_lines(again.err))


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("always", 1, "still compiles after 3 runs: inductor (sources 1)"),
        ("fails", 3, "not warm"),
        ("", 0, "nothing was compiled"),
    ],
)
def test_how_warm_ends(base, compiler, word: str, code: int, said: str):
    done = xlaunch("cache", "warm", *base, *((compiler, word) if word else ("true",)))
    assert (done.code, said in done.err) == (code, True), done.err


@pytest.mark.parametrize(
    ("options", "asked"), [((), ""), (("--optimize", "auto"), "XLAUNCH_OPTIMIZE=auto wait")]
)
def test_warm_has_models_compiled_before_a_run_ends(
    golden: Golden, base, model, options, asked: str
):
    done = xlaunch("cache", "warm", *options, *base, model)
    assert done.code == 0, done.err
    golden(own_lines(done.err))
    kinds = json.loads(ask("cache", "du", *base, "--json").out)["kinds"]
    files = {it["kind"]: it["files"] for it in kinds if it["cache"] == "optimized"}
    assert files == {"compiled models": 1, "descriptions": 1, "locks": 1, "unfinished files": 2}
    (written,) = Path(base[1], "optimized").glob("*/*/description.json")
    assert json.loads(written.read_text()) == {"asked": asked}


def test_bundles_with_and_without_weights(golden: Golden, base, model, compiler, tmp_path):
    for program in (model, compiler):
        assert xlaunch("-q", *base, program).code == 0
    file = tmp_path / "x.tar"
    out = ask("cache", "export", file, *base).out.decode()
    assert re.fullmatch(
        rf"{file}: inductor, optimized; 3 files, .*, of it .* with a model's weights\n", out
    )
    there = ("--cache-dir", str(tmp_path / "there"))
    golden(ask("cache", "import", file, *there), hide=r"(?<=\()[\d.]+ KiB")
    (moved,) = Path(there[1], "optimized").glob("*/0123abcd")
    assert sorted(os.listdir(moved)) == ["description.json", "model.so"]
    assert ask("cache", "verify", *there).code == 0
    out = ask("cache", "export", file, *base, "--no-weights").out.decode()
    assert re.fullmatch(rf"{file}: inductor; 1 file, [^,]*\n", out)
    words = ("--only", "optimized", "--no-weights")
    golden(ask("cache", "export", file, *base, *words).refused())


@pytest.mark.long
def test_warm_of_a_service_ends_by_its_timeout(base, compiler):
    service = "import sys, time; exec(open(sys.argv[1]).read().replace('sys.exit', 'print')); time.sleep(600)"
    words = ("--timeout", "2", sys.executable, "-c", service, compiler)
    done = xlaunch("cache", "warm", *base, *words)
    assert (done.code, "warm after 2 runs" in done.err) == (0, True), done.err


def test_list_and_sizes(golden: Golden, base, tmp_path):
    golden(ask("cache", "ls", *base))
    fill(Path(base[1]), "inductor")
    out = ask("cache", "ls", *base).out.decode()
    assert out.splitlines()[0] == base[1]
    assert "inductor" in out
    kinds = json.loads(ask("cache", "du", *base, "--json").out)["kinds"]
    assert ("inductor", "sources", 1) in [(it["cache"], it["kind"], it["files"]) for it in kinds]
    golden(ask("cache", "du", *base), hide=r"\d+ (B|KiB)")  # file systems differ


def test_a_cache_is_in_use_while_a_program_runs(base):
    show = (sys.executable, "-m", "xlaunch", "cache", "ls", *base, "--json")
    for options in ((), ("--supervise", "-q")):
        done = xlaunch(*options, *base, *show)
        used = {it["cache"]: it["in_use"] for it in json.loads(done.out)["caches"]}
        assert used["inductor"]
        assert not listed(*base)["inductor"]["in_use"]


@pytest.mark.parametrize("words", [("clear", "inductor"), ("prune", "--max-size", "0")])
def test_clear_and_prune(base, words: tuple[str, ...]):
    fill(Path(base[1]), "inductor")
    would = ask("cache", *words, "--dry-run", *base)
    assert "would be removed" in would.out.decode()
    assert "inductor" in listed(*base)
    removed = json.loads(ask("cache", *words, *base, "--json").out)["removed"]
    assert [it["cache"] for it in removed] == ["inductor"]
    assert all(it["size_bytes"] == 0 for it in listed(*base).values())


def test_bad_input_is_one_line(golden: Golden, tmp_path: Path):
    env = clean_environment(XLAUNCH_CACHE_MAX_SIZE="3 parsecs")
    said = []
    for words in (
        "prune --max-size big", "prune --max-size ٣G", "prune --max-size 1_0", "prune --older-than soon",
        "prune", "clear frobnicate", "ls --cache-dir /etc/passwd", "ls --cache-dir /etc/passwd/x", "warm",
        "warm --no-cache true", "frobnicate", "prun",
    ):  # fmt: skip
        line = ask("cache", *words.split(), env=env, cwd=tmp_path).refused()
        said += [f"$ xlaunch cache {words}", line]
    golden(said)


def test_name_that_no_bundle_can_have(golden: Golden, base, compiler, tmp_path: Path):
    assert xlaunch("-q", *base, compiler).code == 0
    before = sorted(os.listdir(tmp_path))
    exports = [("export", name) for name in ("", "-", "x.tar.xz", "x.tar/", "/proc/x.tar")]
    commands = (*exports, ("import", ""), ("import", "none.tar"))
    golden([ask("cache", *words, *base, cwd=tmp_path).refused() for words in commands])
    assert sorted(os.listdir(tmp_path)) == before


def test_a_listing_changes_nothing(tmp_path):
    for mode in (0o1777, 0o2755, 0o777):
        tmp_path.chmod(mode)
        for words in (("ls",), ("du",), ("verify",), ("prune", "--dry-run")):
            ask("cache", *words, "--cache-dir", tmp_path)
        ask("--dry-run", "--cache-dir", tmp_path, "true")
        assert tmp_path.stat().st_mode & 0o7777 == mode
        assert not list(tmp_path.iterdir())


def test_verify_reports_problems_as_json(base):
    (directory,) = fill(Path(base[1]), "inductor")
    path = Path(directory.path, "24", "c24.so")
    path.write_bytes(b"x")
    done = ask("cache", "verify", *base, "--json")
    assert done.code == 1
    (problem,) = json.loads(done.out)["problems"]
    what = "it is not an ELF file"
    assert problem == {"path": str(path), "check": "format", "what": what, "fixed": False}
    assert ask("cache", "verify", *base, "--fix").out.decode().endswith("files, whole\n")


def test_a_shared_directory_has_one_for_each_user(tmp_path, compiler):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    base = ("--cache-dir", shared)
    assert xlaunch(*base, compiler).code == 0
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert [it.name for it in shared.iterdir()] == [f"xlaunch-{os.geteuid()}"]
    assert listed(*base)["inductor"]["files"] == 2
    assert ask("cache", "clear", *base).code == 0
    assert listed(*base) == {}


def test_what_is_not_a_cache_is_left_and_named(golden: Golden, base, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x" * 1000)
    fill(Path(base[1]), "inductor")
    link = Path(base[1], "inductor", "mylink")
    link.symlink_to(tmp_path / "precious")
    for words in (("prune", "--max-size", "0"), ("clear",)):
        done = ask("cache", *words, *base)
        assert done.code == 0
        golden(done.err)
    assert (tmp_path / "precious" / "file").exists()
    assert link.is_symlink()


def test_an_import_keeps_to_the_size_of_the_variable(golden: Golden, base, compiler, tmp_path):
    xlaunch(*base, compiler)
    bundle = tmp_path / "x.tar"
    assert ask("cache", "export", bundle, *base).code == 0
    old = tmp_path / "there" / "inductor" / f"old-{'0' * 8}"
    old.mkdir(parents=True)
    (old / "code").write_bytes(b"x" * 100_000)
    os.utime(old, (0, 0))
    there = ("--cache-dir", tmp_path / "there")
    env = clean_environment(XLAUNCH_CACHE_MAX_SIZE="50KiB")
    done = ask("cache", "import", bundle, *there, env=env)
    golden(done.err, hide=r"(?<=file, )\d+ KiB")
    assert not old.exists()
    assert listed(*there)["inductor"]["files"] == 1
    small = clean_environment(XLAUNCH_CACHE_MAX_SIZE="1")
    golden(ask("cache", "import", bundle, *there, env=small).refused())


def test_the_report_of_a_run_has_its_caches(base, compiler, tmp_path):
    report = tmp_path / "report.json"
    done = xlaunch(*base, "--report", report, compiler)
    assert "cache inductor: cold at the start; 1 new file" in done.err
    values = json.loads(report.read_text())
    (inductor,) = [it for it in values["caches"] if it["cache"] == "inductor"]
    assert (inductor["warmth"], inductor["new_files"]) == ("cold", 1)
    assert inductor["directory"].startswith(base[1])
    assert values["compilation"] is None  # no process told
    assert not [name for name in os.listdir(base[1]) if name.startswith(".")]
    xlaunch(*base, "--report", report, sys.executable, "-c", "pass")
    (inductor,) = [
        it for it in json.loads(report.read_text())["caches"] if it["cache"] == "inductor"
    ]
    assert (inductor["warmth"], inductor["new_files"]) == ("used", 0)
