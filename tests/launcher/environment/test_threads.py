# SPDX-License-Identifier: Apache-2.0
"""Thread variables beyond OpenMP's: only for what is installed, only where they do no harm."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, run, two_cpus, xlaunch
from tests.launcher.environment.made_up import environment

from xlaunch.environment.python_environment import InstalledPackages, find_installed
from xlaunch.environment.threads import VARIABLES, thread_settings


def settings(*packages: str, python=(3, 13), threads: int = 4, **variables: str) -> dict[str, str]:
    installed = InstalledPackages(dict.fromkeys(packages, "1.0"), python)
    return {p.name: p.value for p in thread_settings(threads, installed, variables)}


def test_variables_of_what_is_installed():
    for package, name in {
        "numexpr": "NUMEXPR_MAX_THREADS",
        "tokenizers": "RAYON_NUM_THREADS",
        "polars": "POLARS_MAX_THREADS",
        "tensorflow": "TF_NUM_INTRAOP_THREADS",
        "tensorflow-cpu": "TF_NUM_INTRAOP_THREADS",
        "joblib": "LOKY_MAX_CPU_COUNT",
    }.items():
        assert settings(package, python=(3, 12)) == {name: "4"}
    assert settings("numpy", "torch", python=(3, 12)) == settings(python=(3, 12)) == {}


def test_python_s_own_count_since_it_has_one():
    for python, is_set in (((3, 12), False), ((3, 13), True), ((3, 14), True), (None, True)):
        assert ("PYTHON_CPU_COUNT" in settings(python=python)) is is_set


def test_accelerate_is_apple_s(monkeypatch: pytest.MonkeyPatch):
    assert "VECLIB_MAXIMUM_THREADS" not in settings()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert settings()["VECLIB_MAXIMUM_THREADS"] == "4"


@pytest.mark.parametrize("value", ["1", "8"])
def test_value_that_contradicts_openmp_s_is_shown(value: str, needs):
    needs(find_spec("numpy"), "numpy")
    assert settings("numpy", python=(3, 12), OPENBLAS_NUM_THREADS=value) == {
        "OPENBLAS_NUM_THREADS": "4"  # a proposal, over which the user's own wins
    }
    assert settings("numpy", python=(3, 12), OPENBLAS_NUM_THREADS="4") == {}
    env = clean_environment(OPENBLAS_NUM_THREADS=value, OMP_NUM_THREADS="2")
    text = ask("plan", "--explain", Path(__file__), env=env).out.decode()
    assert f"OPENBLAS_NUM_THREADS={value}  (already set" in text


def test_every_row_says_why_and_where_from():
    for row in VARIABLES:
        assert row.reason, row.name
        assert row.source, row.name
        assert row.packages or row.since_python or row.platform, row.name


@pytest.mark.parametrize(
    "directory",
    ["polars-1.2.dist-info", "Polars-1.2.dist-info", "polars-1.2-py3.13.egg-info"],
)
def test_packages_are_told_by_their_directories_names(tmp_path: Path, directory: str):
    site = environment(tmp_path, "tensorflow_cpu-2.0", "unheard_of-1")
    (site / directory).mkdir()
    (site / "numexpr").mkdir()  # what is left after an uninstall
    found = find_installed(str(tmp_path), f"{tmp_path}/bin/python")
    assert found.python == (3, 13)
    assert found.packages is not None
    assert found.packages.keys() == {"polars", "tensorflow-cpu", "unheard-of"}
    assert (found.packages["polars"], found.packages["tensorflow-cpu"]) == ("1.2", "2.0")


def test_directories_that_pth_files_name(tmp_path: Path):
    """As an editable install, or a directory of packages that several environments share."""
    site = environment(tmp_path / "prefix")
    for name, package in (("shared", "torch-2.13.0"), ("below", "polars-1"), ("hidden", "x-1")):
        (tmp_path / name / f"{package}.dist-info").mkdir(parents=True)
    (site / "a.pth").write_text(f"# a comment\n\nimport sys; 1 / 0\n{tmp_path}/shared\n/absent\n")
    (site / "b.pth").write_text("../../../../below \r\n")
    (site / ".c.pth").write_text(f"{tmp_path}/hidden\n")
    (site / "d.pth").mkdir()
    (site / "e.pth").write_bytes(b"\xff\xfe\0\n")
    found = find_installed(str(tmp_path / "prefix"), f"{tmp_path}/prefix/bin/python").packages
    assert found == {"torch": "2.13.0", "polars": "1"}


def test_environment_that_lets_the_system_s_packages_in(tmp_path: Path):
    base = tmp_path / "prefix-base"
    (base / "lib/python3.13/site-packages/polars-1.dist-info").mkdir(parents=True)
    environment(tmp_path / "prefix")
    prefix, python = str(tmp_path / "prefix"), str(tmp_path / "prefix/bin/python")
    assert find_installed(prefix, python).packages == {}
    with open(f"{prefix}/pyvenv.cfg", "a") as stream:
        stream.write("include-system-site-packages = true\n")
    assert find_installed(prefix, python).packages == {"polars": "1"}


def test_prefix_of_the_program_counts_and_each_instance_has_its_own_values(tmp_path: Path):
    environment(tmp_path, "polars-1.0")
    env = clean_environment(VIRTUAL_ENV=str(tmp_path))
    layout = ("--instances", "2", "--ncores", "1", "--oversubscribe")
    made = json.loads(ask("plan", "--json", *layout, __file__, env=env).out)
    for instance in made["instances"]:
        variables = instance["environment"]
        assert "POLARS_MAX_THREADS" not in variables  # it counts the mask
        assert "PYTHON_CPU_COUNT" in variables  # its Python is a 3.13
        assert "LOKY_MAX_CPU_COUNT" not in variables


def test_program_without_python_gets_what_is_harmless():
    env = json.loads(ask("plan", "--json", "true").out)["instances"][0]["environment"]
    names = {row.name for row in VARIABLES} & set(env)
    assert names == {"PYTHON_CPU_COUNT"}


def test_joblib_gives_each_worker_its_share(golden: Golden, tmp_path: Path, needs):
    needs(find_spec("joblib"), "joblib (of scikit-learn)")
    cpus = two_cpus(needs)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, joblib\n"
        "def ask():\n"
        "    return {n: os.environ.get(n) for n in ('OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')}\n"
        "if __name__ == '__main__':\n"
        "    print(joblib.cpu_count(), joblib.Parallel(n_jobs=2)([joblib.delayed(ask)()])[0])\n"
    )
    # Of 2 CPUs each of 2 workers has 1, which it would not have with the variables set.
    out = xlaunch("--cpus", ",".join(map(str, cpus)), script).out.decode()
    golden(out)


def test_launch_that_needs_no_library_searches_for_none(tmp_path: Path):
    code = (
        "import os, sys\n"
        "from xlaunch.environment import prepare_environment\n"
        "from xlaunch.machine import read_machine\n"
        "from xlaunch.planning import LayoutRequest, ProgramRequest, plan\n"
        f"asked = ProgramRequest(({__file__!r},), allocator='glibc-tuned')\n"
        "made = plan(LayoutRequest(), read_machine())\n"
        "prepare_environment(made, asked, os.environ)\n"
        "costly = {'libraries', 'preload'}\n"
        "print(sorted(n for n in costly if f'xlaunch.environment.{n}' in sys.modules))\n"
    )
    env = clean_environment(PYTHONPATH=str(Path(find_spec("xlaunch").origin).parents[1]))
    assert run((sys.executable, "-c", code), env=env) == (0, b"[]\n", "")
