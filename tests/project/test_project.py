# SPDX-License-Identifier: Apache-2.0
"""The project agrees with itself: versions, commands, licence lines, floors."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import xlaunch
import xruntime
import xtune

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LICENCE_LINE = "SPDX-License-Identifier: Apache-2.0"
CODE = ("", ".py", ".cpp", ".h", ".map")
DIRECTORIES = (
    ".ci",
    "benchmarks",
    "examples",
    "kernels",
    "launcher",
    "runtime_ext",
    "tests",
    "tuner",
)


def test_one_version() -> None:
    versions = {module.__version__ for module in (xlaunch, xruntime, xtune)}
    assert versions == {PROJECT["project"]["version"]}
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['project']['version']}\n" in citation


def test_addresses_are_those_of_pyproject() -> None:
    urls = PROJECT["project"]["urls"]
    lines = (ROOT / "mkdocs.yml").read_text().splitlines()
    assert f"site_url: {urls['Documentation']}" in lines
    assert f"repo_url: {urls['Repository']}" in lines
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"repository-code: {urls['Repository']}" in citation
    assert f"url: {urls['Homepage']}" in citation
    assert f"]({urls['Repository']})" in (ROOT / "SECURITY.md").read_text()


def test_everything_for_users_is_without_what_only_examples_need() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    wanted = set(everything.removeprefix("xlaunch[").removesuffix("]").split(","))
    assert not wanted & {"examples", "docs", "test", "full"}
    assert {"gpu", "int8", "report"} <= wanted


@pytest.mark.parametrize("name", ["bug_report", "performance"])
def test_an_issue_asks_for_the_machine(name) -> None:
    yaml = pytest.importorskip("yaml")
    template = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    asked = {part["id"]: part["attributes"]["description"] for part in template["body"]}
    assert "`xlaunch doctor --json`" in asked["doctor"]
    assert "`xlaunch topology --capture machine.tar.xz`" in asked["capture"]


@pytest.mark.parametrize("package", ["xlaunch", "xruntime", "xtune"])
def test_every_command_prints_the_version(package: str) -> None:
    words = [sys.executable, "-m", package, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{package} {PROJECT['project']['version']}\n"


@pytest.mark.parametrize("package", [xlaunch, xruntime, xtune])
def test_packages_are_typed(package) -> None:
    assert any(Path(directory, "py.typed").is_file() for directory in package.__path__)


def test_every_source_names_its_licence() -> None:
    files = [path for directory in DIRECTORIES for path in sorted((ROOT / directory).rglob("*"))]
    sources = [
        path
        for path in files
        if path.is_file() and (path.suffix in CODE or path.name == "CMakeLists.txt")
    ]
    assert len(sources) > 20
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources}
    # Typing markers and files that only make a directory a package are empty.
    bare = [name for name, text in texts.items() if text and LICENCE_LINE not in text[:200]]
    assert bare == []


def test_every_constraint_is_exact_and_covers_what_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line for line in pins)
    pinned = {line.split("==")[0].lower() for line in pins}
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {text.split(">")[0].split("[")[0].strip().lower() for text in declared}
    assert names - {"xlaunch"} <= pinned


def test_importing_everything_of_xlaunch_brings_no_torch() -> None:
    """The contract of import-linter, seen from a running interpreter."""
    modules = sorted(
        ".".join(path.relative_to(ROOT / "launcher").with_suffix("").parts)
        for path in (ROOT / "launcher" / "xlaunch").rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    )
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'numpy', 'optuna', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
