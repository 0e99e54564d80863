# SPDX-License-Identifier: Apache-2.0
"""The Python processes that we start run no file of the current directory, whatever its name."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import SHOW, ask, clean_environment, run
from tests.launcher.launching import wait_until
from tests.libraries import find_library

from xlaunch.cache.use import STAMP
from xlaunch.children import SCRIPTS, without_current_directory

ROOT = Path(__file__).parents[2]
PRODUCT = ("launcher", "tuner", "runtime_ext")

PROGRAM = "starts what the user names, which is not ours"
SHADOWED = "its path is tried below"

STARTS = {
    ("launcher/xlaunch/cache/bundle.py", "_ssh_keygen"): "ssh-keygen",
    ("launcher/xlaunch/cache/use.py", "_detach"): f"the pruner; {SHADOWED}",
    ("launcher/xlaunch/cli/torchrun.py", "run_torchrun"): f"torchrun; {SHADOWED}",
    ("launcher/xlaunch/doctor/checks/libraries.py", "_import"): SHADOWED,
    ("launcher/xlaunch/environment/optimization.py", "_find_hook"): SHADOWED,
    ("launcher/xlaunch/environment/preload.py", "_try"): f"-I, in the directory /; {SHADOWED}",
    (
        "launcher/xlaunch/environment/start_hook/startup/sitecustomize.py",
        "hide",
    ): "the program's own calls, which it wraps",
    ("launcher/xlaunch/launching.py", "_run_on_other_system"): PROGRAM,
    ("launcher/xlaunch/supervision/instance_start.py", "_exec"): PROGRAM,
    (
        "launcher/xlaunch/supervision/exporter_process.py",
        "__init__",
    ): "with -P; its path is tried by test_exporter",
    ("launcher/xlaunch/supervision/keeper_client.py", "__init__"): f"the keeper; {SHADOWED}",
    ("launcher/xlaunch/supervision/probes.py", "_spawn"): "the user's exec: of --health",
    ("runtime_ext/xruntime/operator_library.py", "build"): "the C++ compiler",
    ("tuner/xtune/launches/services.py", "run_command"): PROGRAM,
}
"""The functions that start a process, and why no file of the current directory can be run by them."""

FLAGS = {
    ("launcher/xlaunch/cache/use.py", "start_pruner"): "with -P: our own Python is 3.11 or newer",
    ("launcher/xlaunch/cli/torchrun.py", "torchrun_command"): "with -P, as above",
    ("launcher/xlaunch/cli/launch.py", ""): "the words of programs, of which it only tells",
    ("launcher/xlaunch/environment/preload.py", "_try"): "with -I",
    ("launcher/xlaunch/environment/program.py", "resolve_program"): "the user's -m, for a program",
    ("launcher/xlaunch/supervision/exporter_process.py", "__init__"): "with -P, as above",
    ("launcher/xlaunch/supervision/keeper_client.py", "__init__"): "with -P, as above",
    ("tuner/xtune/cli/comparing.py", "_measure_of"): "of a shell, for the user's command",
}
"""The functions that pass -c or -m to a Python, and why they may."""

CALLS = {
    "subprocess": ("Popen", "run", "call", "check_call", "check_output", "getoutput"),
    "os": ("system", "popen", "exec", "spawn", "posix_spawn"),
    "asyncio": ("create_subprocess",),
    "multiprocessing": ("Process", "Pool", "get_context", "set_start_method"),
    "pty": ("spawn",),
}

NAMES = (
    *("abc", "argparse", "ast", "bisect", "codecs", "collections", "contextlib", "copy", "ctypes"),
    *("dataclasses", "datetime", "enum", "fnmatch", "functools", "glob", "hashlib", "heapq"),
    *("importlib", "inspect", "io", "json", "keyword", "logging", "operator", "os", "pathlib"),
    *("pickle", "random", "re", "runpy", "shutil", "signal", "site", "socket", "string", "struct"),
    *("subprocess", "tempfile", "threading", "tokenize", "types", "typing", "warnings", "weakref"),
    *("sitecustomize", "usercustomize", "torch", "xlaunch", "xruntime", "click", "numpy"),
)
"""More than forty names that Python or we import early, each a file of the current directory."""


class Trap:
    """A directory whose files tell that they were run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "cloned"
        self.sprung = directory / "sprung"
        self.directory.mkdir()
        for name in NAMES:
            text = f"with open({str(self.sprung)!r}, 'a') as file:\n    file.write({name!r})\n"
            (self.directory / f"{name}.py").write_text(text)
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()

    def xlaunch(self, *words: str | Path) -> None:
        done = run((sys.executable, "-P", "-m", "xlaunch", *words), cwd=self.directory)
        assert (done.code, self.names()) == (0, ""), done.err

    def names(self) -> str:
        """The names of the files that were run."""
        return self.sprung.read_text() if self.sprung.exists() else ""


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def test_the_trap_springs(trap: Trap):
    run((sys.executable, "-m", "xlaunch", "true"), cwd=trap.directory)
    assert trap.names()


@pytest.mark.parametrize(
    "words",
    [
        ("--dry-run", "--optimize", "auto"),
        ("plan", "--optimize", "auto"),
        ("env", "--optimize", "auto"),
        ("--optimize", "auto"),
        ("--supervise",),
        ("--allocator", "tcmalloc", "--dry-run"),
    ],
)
def test_launches_and_what_only_answers(trap: Trap, words: tuple[str, ...], needs):
    if "tcmalloc" in words:
        needs(find_library("tcmalloc", None, {}), "tcmalloc (Debian: libtcmalloc-minimal4)")
    empty_cache = ("--env", f"XDG_CACHE_HOME={trap.elsewhere}")
    trap.xlaunch(*words, *empty_cache, sys.executable, SHOW)


def test_doctor_imports_modules_from_pythonpath_alone(golden: Golden, trap: Trap, needs):
    needs(find_spec("torch"), "torch")
    (trap.directory / "mine.py").write_text((trap.directory / "json.py").read_text())
    golden(ask("doctor", "--import", "mine", cwd=trap.directory).refused())
    (trap.elsewhere / "mine.py").write_text("")
    words = (
        sys.executable,
        "-P",
        "-m",
        "xlaunch",
        "doctor",
        "--import",
        "json",
        "--import",
        "mine",
    )
    env = clean_environment(PYTHONPATH=str(trap.elsewhere))
    done = run(words, cwd=trap.directory, env=env)
    assert (done.code in (0, 1), trap.names()) == (True, ""), done.err


@pytest.mark.long
def test_every_rank(trap: Trap, needs):
    needs(find_spec("torch"), "torch")
    trap.xlaunch("--nproc-per-node", "2", SHOW)


def test_launches_of_the_library(trap: Trap):
    script = trap.elsewhere / "launches.py"
    script.write_text(
        "import sys, xlaunch\n"
        "made = xlaunch.plan(xlaunch.Request().layout, xlaunch.read_machine())\n"
        f"report = xlaunch.launch(made, xlaunch.ProgramRequest((sys.executable, {str(SHOW)!r})))\n"
        "sys.exit(report.exit_code)\n"
    )
    done = run((sys.executable, script), cwd=trap.directory)
    assert (done.code, trap.names()) == (0, ""), done.err


def test_a_search(trap: Trap, needs):
    needs(find_spec("optuna"), "optuna")
    script = trap.elsewhere / "nap.py"
    script.write_text("import sys, time\ntime.sleep(float(sys.argv[1]))\n")
    names = ("STATE_HOME", "CACHE_HOME", "CONFIG_HOME", "RUNTIME_DIR")
    own = {f"XDG_{name}": str(trap.elsewhere) for name in names}
    words = ("--only-params", "--param", "n=0.01,0.02", "--budget", "2", script, "{n}")
    command = (sys.executable, "-P", "-m", "xtune", *words)
    done = run(command, cwd=trap.directory, env=clean_environment(**own))
    assert (done.code, trap.names()) == (0, ""), done.err


def test_the_pruner_of_caches(trap: Trap):
    base = trap.elsewhere / "caches"
    trap.xlaunch("--cache-dir", base, "true")
    os.utime(base / STAMP, (0, 0))
    trap.xlaunch("--cache-dir", base, "true")
    wait_until(lambda: time.time() - (base / STAMP).stat().st_mtime < 60, "the pruner")
    assert trap.names() == ""


def test_an_entry_of_pythonpath_for_the_current_directory(trap: Trap):
    """It reaches the program, which the user starts so, but not the processes that we start for ourselves."""
    for mine in (":", ".", "./:", ":/mine"):
        env = clean_environment(PYTHONPATH=mine)
        for words in (("--dry-run", "--optimize", "auto"), ("env", "--optimize", "auto")):
            done = ask(*words, sys.executable, SHOW, env=env, cwd=trap.directory)
            assert (done.code, trap.names()) == (0, ""), done.err
            assert mine in done.out.decode()


def test_pythonpath_keeps_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for before, after in ((":/mine", "/mine"), ("src:.", "src"), (f"{tmp_path}", f"{tmp_path}")):
        assert without_current_directory({"PYTHONPATH": before, "A": "1"}) == {
            "PYTHONPATH": after,
            "A": "1",
        }
    assert without_current_directory({"PYTHONPATH": ".:"}) == {}


def test_scripts_hide_no_module():
    """Python puts their directory first on its path."""
    names = {path.stem for path in Path(SCRIPTS).iterdir()} - {"__pycache__"}
    assert names == {"find_hook", "import_modules", "run_module"}
    assert names.isdisjoint(sys.stdlib_module_names)
    for name in names:
        tree = ast.parse(Path(SCRIPTS, f"{name}.py").read_text())
        statements = [it for it in tree.body if not isinstance(it, ast.Expr)]
        first = [it.names[0].name for it in statements[:2] if isinstance(it, ast.Import)]
        assert first == ["os", "sys"], "loaded before any script"
        assert ast.unparse(statements[2]).startswith("sys.path[:] =")


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Each node of a module with the name of the innermost function around it."""

    def below(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        yield name, node
        for child in ast.iter_child_nodes(node):
            yield from below(child, name)

    return below(tree, "")


def starts_process(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    if node.value.id == "os":
        return node.attr.startswith(CALLS["os"])
    return node.attr in CALLS.get(node.value.id, ())


def passes_flag(node: ast.AST) -> bool:
    """Whether a list or tuple of words has -c or -m among others, as a command line does."""
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) < 2:
        return isinstance(node, ast.List) and [getattr(it, "value", "") for it in node.elts] == [
            "-m"
        ]
    return any(isinstance(it, ast.Constant) and it.value in ("-c", "-m") for it in node.elts)


def test_every_start_of_a_process_is_known():
    """A new one is listed above with its reason, and tried by a test if it starts a Python."""
    starts, flags, imported = set(), set(), set()
    for path in [it for part in PRODUCT for it in (ROOT / part).rglob("*.py")]:
        where = str(path.relative_to(ROOT))
        for function, node in functions(ast.parse(path.read_text())):
            if starts_process(node):
                starts.add((where, function))
            if passes_flag(node):
                flags.add((where, function))
            if isinstance(node, ast.ImportFrom) and node.module in CALLS:
                called = [it.name for it in node.names if it.name in CALLS[node.module]]
                imported.update([(where, name) for name in called])
    assert not imported, "call them through their module, so that this test sees them"
    assert starts == set(STARTS)
    assert flags == set(FLAGS)
