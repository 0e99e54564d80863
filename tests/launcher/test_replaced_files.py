# SPDX-License-Identifier: Apache-2.0
"""What options name to be written replaces an earlier file of the same kind, and nothing else."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import Done, ask, clean_environment, run, xlaunch

from xlaunch.errors import UsageError
from xlaunch.files import OutputKind, check_output, write_output

SCRIPT = "print('work of a week')\n"
LETTERS = OutputKind("a letter", lambda head: head.startswith(b"Dear "))
REPORT = '{"schema_version": 1, "argv": []}'
USED = "that this command itself uses; choose another name"


def report(directory: Path, path: str, *words: str) -> Done:
    """A launch in `directory`; of a script there unless `words` name another program."""
    program = words or (sys.executable, "train.py")
    return xlaunch("-q", "--report", path, *program, cwd=directory)


def refused_report(directory: Path, path: str, *words: str) -> str:
    """Why such a launch starts nothing."""
    program = words or (sys.executable, "train.py")
    return ask("-q", "--report", path, *program, cwd=directory).refused()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "notes.txt").write_text("mine\n")
    return tmp_path


def test_only_what_is_ours_is_replaced(golden: Golden, here: Path):
    refused = report(here, "notes.txt").refused()
    golden(refused)
    assert (here / "notes.txt").read_text() == "mine\n"
    for earlier in ("", REPORT, json.dumps(json.loads(REPORT), indent=4)):
        (here / "report.json").write_text(earlier)
        assert report(here, "report.json").code == 0
        assert json.loads((here / "report.json").read_text())["exit_code"] == 0
        assert report(here, "report.json").code == 0, "its own report"
    assert report(here, "notes.txt", "--force", sys.executable, "train.py").code == 0
    assert json.loads((here / "notes.txt").read_text())["exit_code"] == 0


def test_other_json_is_not_a_report(golden: Golden, here: Path):
    said = set()
    for text in ('{"argv": []}', '{"schema_version": 1, "study": "x"}', "[1]", '"schema_version'):
        (here / "other.json").write_text(text)
        said.add(refused_report(here, "other.json"))
        assert (here / "other.json").read_text() == text
    golden(*said)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("train.py", (sys.executable, "train.py")),
        ("./train.py", ("train.py",)),
        ("hard.json", ("train.py",)),
        ("link.json", ("train.py",)),
        ("run", ("./run",)),
        ("data.json", ("train.py", "data.json")),
        ("data.json", ("train.py", "--data=data.json")),
        ("data.json", ("train.py", "@data.json")),
        ("absent.json", ("train.py", "--out", "absent.json")),
        ("package/train.py", ("-m", "package.train")),
        ("logs/instance-0.out", ("--log-dir", "logs", "train.py")),
        ("logs/instance-1.err.1", ("--log-dir", "logs", "--instances", "2", "--oversubscribe", "true")),
        ("old/instance-0.out", ("--log-dir", "old", "train.py")),
    ],
)  # fmt: skip
def test_the_program_its_files_and_its_logs_are_never_replaced(
    here: Path, path: str, words: tuple[str, ...]
):
    os.link(here / "train.py", here / "hard.json")
    (here / "link.json").symlink_to("train.py")
    (here / "run").write_text("#!/bin/sh\n")
    (here / "run").chmod(0o755)
    (here / "data.json").write_text(REPORT)
    (here / "package").mkdir()
    (here / "package" / "train.py").write_text("")
    (here / "old").mkdir()
    (here / "old" / "instance-0.out").write_text("")
    before = {it: it.read_bytes() for it in here.rglob("*") if it.is_file()}
    for force in ((), ("--force",)):
        assert refused_report(here, path, *force, *words).endswith(USED)
    assert {it: it.read_bytes() for it in here.rglob("*") if it.is_file()} == before
    assert not (here / "logs").exists()


def test_what_the_program_writes_meanwhile_is_kept(here: Path):
    done = report(here, "late.json", "sh", "-c", "echo mine >late.json")
    assert done.code == 125
    assert done.err.startswith("xlaunch: error: no report is written: --report 'late.json' exists")
    assert (here / "late.json").read_text() == "mine\n"


def test_devices_pipes_and_descriptors_are_written_to(here: Path):
    assert report(here, "/dev/null").code == 0
    done = report(here, "/dev/stdout")
    first, _, rest = done.out.decode().partition("\n")
    assert (first, json.loads(rest)["exit_code"]) == ("work of a week", 0)
    with (here / "notes.txt").open("ab") as stream:
        command = (
            sys.executable,
            "-m",
            "xlaunch",
            "--report",
            f"/dev/fd/{stream.fileno()}",
            "true",
        )
        assert run(command, cwd=here, pass_fds=(stream.fileno(),)).code == 0
    assert (here / "notes.txt").read_text().startswith('mine\n{\n "schema_version"')


def test_a_file_that_cannot_be_read_is_kept(here: Path):
    (here / "notes.txt").chmod(0o200)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65534)
        with pytest.raises(UsageError, match="cannot be read to see what it is: Permission denied"):
            check_output(str(here / "notes.txt"), LETTERS, option="-o")
    finally:
        if is_root:
            os.seteuid(0)


def test_directories_and_names_that_are_none(here: Path):
    for path, said in ((str(here), "is a directory; name a file"), ("a\0b", "is not a file name")):
        with pytest.raises(UsageError, match=said):
            check_output(path, LETTERS, option="-o", force=True)
    check_output(str(here / "gone" / "x"), LETTERS, option="-o")
    check_output(str(here / "notes.txt" / "x"), LETTERS, option="-o")


def test_what_is_written_is_checked_again(here: Path):
    path = str(here / "letter")
    write_output(path, "Dear reader", option="-o", kind=LETTERS)
    write_output(path, "Dear writer", option="-o", kind=LETTERS)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    (here / "letter").write_text("no letter")
    with pytest.raises(UsageError, match="exists and is not a letter; choose another name"):
        write_output(path, "Dear me", option="-o", kind=LETTERS)
    with pytest.raises(UsageError, match="itself uses"):
        write_output(path, "Dear me", option="-o", kind=LETTERS, force=True, inputs=[path])
    assert (here / "letter").read_text() == "no letter"


def test_captures(golden: Golden, here: Path):
    (here / "other.tar.xz").write_text("mine\n")
    words = ("topology", "--capture", "other.tar.xz")
    golden(ask(*words, cwd=here).refused())
    assert (here / "other.tar.xz").read_text() == "mine\n"
    assert ask(*words, "--force", cwd=here).code == 0
    assert ask(*words, cwd=here).code == 0, "a capture is there now"
    read = ask("plan", "--sysroot", "other.tar.xz", cwd=here)
    assert read.code == 0, read.err


def test_bundles_of_caches(golden: Golden, here: Path):
    base = here / "caches"
    env = clean_environment()
    compile_something = "import os; open(os.environ['TRITON_CACHE_DIR'] + '/mine', 'w').close()"
    xlaunch("-q", "--cache-dir", base, sys.executable, "-c", compile_something, env=env)
    for name in ("other.tar", "other.tar.gz"):
        (here / name).write_text("mine\n" * 1000)
        words = ("cache", "export", "--cache-dir", base, name)
        golden(ask(*words, cwd=here, env=env).refused())
        assert (here / name).read_text() == "mine\n" * 1000
        done = ask(*words, "--force", cwd=here, env=env)
        assert done.code == 0, done.err
        assert ask(*words, cwd=here, env=env).code == 0, "a bundle is there now"


def test_presets(golden: Golden, here: Path):
    words = ("--ncores", "1", "--save-preset", "best.toml")
    said = []
    for text in ("# my notes\n", "[tool.other]\n", "no toml"):
        (here / "best.toml").write_text(text)
        said.append(ask(*words, cwd=here).refused())
        assert (here / "best.toml").read_text() == text
    assert ask(*words, "--force", cwd=here).code == 0
    assert ask(*words, cwd=here).code == 0, "a preset is there now"
    used = ask(*words, "--force", sys.executable, "train.py", "best.toml", cwd=here)
    golden(*said, used.refused(), hide=r"(?<=is not TOML: )[^)]*\)")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177])
def test_what_may_hold_a_secret_is_for_this_user_only(tmp_path: Path, umask: int):
    """Command lines and values of --env; a file that is there already keeps its mode."""
    words = ("--ncores", "1", "--env", "TOKEN=secret", "--save-preset", "best.toml", "-q")
    command = (sys.executable, "-m", "xlaunch", *words, "--report", "report.json", "true", "secret")
    for mode in (0o600, 0o664):
        before = os.umask(umask)
        try:
            done = run(command, cwd=tmp_path)
        finally:
            os.umask(before)
        assert done.code == 0, done.err
        for name in ("best.toml", "report.json"):
            path = tmp_path / name
            assert "secret" in path.read_text()
            assert stat.S_IMODE(path.stat().st_mode) == (mode if mode != 0o600 else mode & ~umask)
            path.chmod(0o664)
