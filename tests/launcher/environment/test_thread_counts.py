# SPDX-License-Identifier: Apache-2.0
"""The number of threads that libraries take: of each as `every_library_counts_the_mask` says, and what a plan's program gets.

Under a quota, which is imitated by a plan that binds nothing and has fewer threads than CPUs, the
start-up hook brings the number; its child processes are as they would be without xlaunch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    allowed_cpus,
    ask,
    clean_environment,
    program,
    run,
    two_cpus,
    xlaunch,
)
from tests.launcher.environment.made_up import environment, with_mkl
from tests.libraries import find_library
from tests.tiers import quick_first

from xlaunch.environment import prepare_environment
from xlaunch.environment.program import Program, resolve_program
from xlaunch.environment.threads import HOOK_DIRECTORY, every_library_counts_the_mask
from xlaunch.launching import launch
from xlaunch.machine import read_machine
from xlaunch.planning import LayoutRequest, Plan, ProgramRequest, plan
from xlaunch.planning.request import RunRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks and the hook are Linux's")
Needs = Callable[[object, str], None]
OMP = "OMP_NUM_THREADS"


def under_quota(threads: int = 1, **layout: Any) -> Plan:
    """What planning makes of a quota of so many CPUs: no mask, and fewer threads than CPUs."""
    made = plan(LayoutRequest(**layout), read_machine())
    instances = [it._replace(threads=threads, ncores=threads) for it in made.instances]
    return made._replace(bound=False, cpu_quota=float(threads), instances=tuple(instances))


def outputs(made: Plan, directory: Path, *words: str | Path, **inherited: str) -> list[str]:
    """What each instance of the plan prints."""
    request = ProgramRequest(tuple(map(str, words)))
    logs = str(directory / "logs")
    env = clean_environment(**inherited)
    report = launch(made, request, RunRequest(log_dir=logs), environment=env)
    texts = [path.read_text() for path in sorted(Path(logs).glob("*.out"))]
    errors = [path.read_text() for path in sorted(Path(logs).glob("*.err"))]
    assert report.exit_code == 0, errors
    return texts


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# What a library takes where no variable says it


OPENMP_PROGRAM = """\
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.omp_get_max_threads())
"""


@pytest.mark.parametrize(
    ("kind", "package"),
    [("gnu", "libgomp1"), ("intel", "pip's intel-openmp"), ("llvm", "Debian's libomp5")],
)
def test_openmp_runtimes_count_the_mask(tmp_path: Path, kind: str, package: str, needs: Needs):
    cpus = two_cpus(needs)
    library = find_library(kind, sys.prefix, {})
    needs(library, package)
    script = written(tmp_path / "count.py", OPENMP_PROGRAM)
    for count in (1, 2):
        mask = ",".join(map(str, cpus[:count]))
        words = ("taskset", "-c", mask, sys.executable, script, library.path)
        assert int(run(words).out) == count


def test_c_program_with_openmp_counts_the_mask_and_gets_no_variable(tmp_path: Path, needs: Needs):
    needs(shutil.which("gcc"), "gcc (Debian: gcc)")
    source = written(
        tmp_path / "count.c",
        "#include <omp.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
        'int main(void) { const char *v = getenv("OMP_NUM_THREADS");\n'
        'printf("%d %s\\n", omp_get_max_threads(), v ? v : "unset"); }\n',
    )
    done = subprocess.run(["gcc", "-fopenmp", "-o", tmp_path / "count", source], check=False)
    needs(done.returncode == 0, "gcc with OpenMP (Debian: libgomp1)")
    needs(os.uname().machine == "x86_64", "x86-64, whose torch has MKL")
    assert xlaunch("--ncores", "1", tmp_path / "count").out == b"1 unset\n"
    assert outputs(under_quota(), tmp_path, tmp_path / "count") == ["1 1\n"]


POOLS = """\
import json, numpy
from threadpoolctl import threadpool_info
print(json.dumps([pool["num_threads"] for pool in threadpool_info()]))
"""


def test_openblas_of_numpy_counts_the_mask(tmp_path: Path, needs: Needs):
    needs(find_spec("numpy") and find_spec("threadpoolctl"), "numpy and threadpoolctl")
    cpus = two_cpus(needs)
    script = written(tmp_path / "pools.py", POOLS)
    for count in (1, 2):
        mask = ",".join(map(str, cpus[:count]))
        assert json.loads(run(("taskset", "-c", mask, sys.executable, script)).out) == [count]
        assert json.loads(xlaunch("--cpus", mask, script).out) == [count]
    assert [json.loads(text) for text in outputs(under_quota(), tmp_path, script)] == [[1]]


def resolved(prefix: Path) -> Program:
    words = (str(prefix / "bin" / "python"), "x.py")
    return resolve_program(ProgramRequest(words), {"PATH": os.environ["PATH"]})


def test_libraries_that_do_not_count_the_mask_are_told_by_their_files(tmp_path: Path):
    environment(tmp_path / "plain", "numpy-2.3.0")
    assert every_library_counts_the_mask(resolved(tmp_path / "plain"))
    (tmp_path / "plain" / "lib" / "libblis.so.4").touch()
    assert not every_library_counts_the_mask(resolved(tmp_path / "plain"))
    for name, enabled, counts in (("with", 1, True), ("without", 0, False)):
        with_mkl(environment(tmp_path / name, "torch-2.13.0"), enabled=enabled)
        assert every_library_counts_the_mask(resolved(tmp_path / name)) is counts
    environment(tmp_path / "unknown", "torch-2.13.0")
    assert not every_library_counts_the_mask(resolved(tmp_path / "unknown"))
    musl = resolved(tmp_path / "with")
    assert musl.loads is not None
    loads = musl.loads._replace(loader="/lib/ld-musl-x86_64.so.1")
    assert not every_library_counts_the_mask(musl._replace(loads=loads))


def test_mask_whose_cores_are_not_known_is_not_left_to_libraries():
    """As where /sys is hidden: MKL would count cores that the plan took for two."""
    made = plan(LayoutRequest(ncores=1), read_machine())
    for known in (True, False):
        hidden = made._replace(cores_known=known)
        prepared = prepare_environment(
            hidden, ProgramRequest((sys.executable, "x.py")), clean_environment()
        )
        assert prepared.variables[0].get(OMP) == (None if known else "1")


# torch in the program itself, for every layout


TORCH = """\
import json, os, threading
import torch
counts = [torch.get_num_threads()]
other = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
other.start()
other.join()
print(json.dumps(counts))
"""
"""Also in a second thread, which asks the runtime for itself."""


@pytest.mark.parametrize(
    "options",
    quick_first(
        [
            ("--cpus", "{one}"),
            ("--instances", "2", "--ncores", "1"),
            ("--smt",),
            ("--ncores", "1", "--env", "OMP_NUM_THREADS=2"),
            ("--omp", "none", "--ncores", "1"),
            ("--instances", "2", "--ncores", "1", "--oversubscribe"),
        ]
    ),
)
def test_torch_has_the_threads_of_the_plan(tmp_path: Path, options: tuple[str, ...], needs: Needs):
    needs(find_spec("torch"), "torch")
    one = str(two_cpus(needs)[0])
    options = tuple(word.format(one=one) for word in options)
    script = written(tmp_path / "count.py", TORCH)
    made = json.loads(ask("plan", "--json", *options, script).out)["instances"]
    planned = [it["environment"].get(OMP) or str(it["thread_count"]) for it in made]
    told = xlaunch("--no-tag", *options, script)
    assert [json.loads(line) for line in told.out.splitlines()] == [[int(n)] * 2 for n in planned]


@pytest.mark.long
@pytest.mark.parametrize("omp", ["auto", "gnu", "intel", "llvm"])
def test_torch_has_the_threads_of_a_quota(tmp_path: Path, omp: str, needs: Needs):
    needs(find_spec("torch"), "torch")
    packages = {"gnu": "libgomp1", "intel": "intel-openmp", "llvm": "Debian's libomp5"}
    needs(omp == "auto" or find_library(omp, sys.prefix, {}), packages.get(omp, ""))
    script = written(tmp_path / "count.py", TORCH)
    made = under_quota()
    request = ProgramRequest((str(script),), omp=omp)
    prepared = prepare_environment(made, request, clean_environment())
    done = run((sys.executable, script), env=prepared.variables[0])
    assert json.loads(done.out) == [1, 1], done.err


@pytest.mark.long
def test_nested_launch_has_the_threads_of_its_own_mask(tmp_path: Path, needs: Needs):
    needs(find_spec("torch"), "torch")
    two_cpus(needs)
    script = written(tmp_path / "count.py", TORCH)
    inner = f"{sys.executable} -m xlaunch --ncores 1 {script}"
    assert json.loads(xlaunch("sh", "-c", inner).out) == [1, 1]
    outer = written(
        tmp_path / "outer.py", f"import subprocess; subprocess.run({inner.split()!r}, check=True)"
    )
    (text,) = outputs(under_quota(2), tmp_path, outer)
    assert json.loads(text) == [1, 1]


# What child processes inherit


CHILDREN = """\
import json, multiprocessing, os, pty, subprocess, sys, threading

NAMES = ("OMP_NUM_THREADS", "PYTHONPATH", "XLAUNCH_NOT_INHERITED")
SHOW = f"import json, os; print(json.dumps([os.environ.get(n) for n in {NAMES}]), flush=True)"
PYTHON = [sys.executable, "-c", SHOW]

def ask(queue=None):
    seen = [os.environ.get(name) for name in NAMES]
    queue.put(seen)

def spawned(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=ask, args=(queue,))
    process.start()
    seen = queue.get()
    process.join()
    return seen

def piped(start):
    reading, writing = os.pipe()
    saved = os.dup(1)
    os.dup2(writing, 1)
    os.close(writing)
    start()
    os.dup2(saved, 1)
    with open(reading) as file:
        return json.loads(file.readline())

def fork_and_exec():
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, PYTHON)
    os.waitpid(child, 0)

if __name__ == "__main__":
    run = lambda **more: json.loads(subprocess.run(PYTHON, capture_output=True, **more).stdout)
    print(json.dumps({
        "itself": [os.environ.get(name) for name in NAMES],
        "subprocess": run(),
        "subprocess without close_fds": run(close_fds=False),
        "subprocess with env": run(env=dict(os.environ)),
        "subprocess with preexec_fn": run(preexec_fn=lambda: None),
        "spawn": spawned("spawn"),
        "forkserver": spawned("forkserver"),
        "fork": spawned("fork"),
        "system": piped(lambda: os.system(f"'{sys.executable}' '{__file__}' show")),
        "spawnv": piped(lambda: os.spawnv(os.P_WAIT, sys.executable, PYTHON)),
        "exec": piped(fork_and_exec),
        "posix_spawn": piped(lambda: os.waitpid(
            os.posix_spawn(sys.executable, PYTHON, os.environ), 0)),
    })) if sys.argv[1:] != ["show"] else exec(SHOW)
"""


def test_no_child_process_inherits_the_count(tmp_path: Path):
    script = written(tmp_path / "children.py", CHILDREN)
    (text,) = outputs(under_quota(), tmp_path, script, PYTHONPATH="/mine")
    told = json.loads(text)
    assert len(told) > 10
    assert {name: seen for name, seen in told.items() if seen != [None, "/mine", None]} == {}


MANY = """\
import ctypes, os, subprocess
from concurrent.futures import ThreadPoolExecutor

def start(_):
    return subprocess.check_output(["sh", "-c", "echo ${OMP_NUM_THREADS-none}"], text=True)

with ThreadPoolExecutor(8) as pool:
    print({*pool.map(start, range(200))})
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"OMP_NUM_THREADS"))
"""


def test_threads_that_start_processes_at_once_pass_nothing_on(tmp_path: Path):
    script = written(tmp_path / "many.py", MANY)
    assert outputs(under_quota(), tmp_path, script) == ["{'none\\n'}\nb'1'\n"]


DASK = """\
import json, multiprocessing, os, sys

def show():
    names = ("MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES", "TCMALLOC_RELEASE_RATE")
    print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)

if __name__ == "__main__":
    if sys.argv[1:] == ["dask"]:
        import distributed
        os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"  # as its nanny does
    show()
    process = multiprocessing.get_context("spawn").Process(target=show)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("allocator", ["auto", "glibc-tuned"])
def test_workers_of_dask_have_glibc_s_allocator(tmp_path: Path, allocator: str):
    script = written(tmp_path / "work.py", DASK)
    written(tmp_path / "distributed.py", "")
    (tmp_path / "distributed-2026.1.0.dist-info").mkdir()
    env = clean_environment(PYTHONPATH=str(tmp_path))
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        env.pop(name, None)
    options = ("--allocator", allocator, script)
    program, child = map(json.loads, xlaunch(*options, env=env).out.splitlines())
    assert program == child
    assert program["LD_PRELOAD"] or program["GLIBC_TUNABLES"]
    own = env | {"GLIBC_TUNABLES": "glibc.rtld.nns=4"}
    program, worker = map(json.loads, xlaunch(*options, "dask", env=own).out.splitlines())
    assert program["LD_PRELOAD"] or "glibc.malloc" in program["GLIBC_TUNABLES"]
    assert worker == {
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "LD_PRELOAD": None,
        "GLIBC_TUNABLES": "glibc.rtld.nns=4",
        "TCMALLOC_RELEASE_RATE": None,
    }


def test_count_that_the_program_sets_itself_is_inherited(tmp_path: Path):
    script = written(
        tmp_path / "own.py",
        "import os, subprocess\nos.environ['OMP_NUM_THREADS'] = '7'\n"
        "subprocess.run(['sh', '-c', 'echo $OMP_NUM_THREADS'])\n"
        "del os.environ['OMP_NUM_THREADS']\n"
        "subprocess.run(['sh', '-c', 'echo ${OMP_NUM_THREADS-none}'])\n",
    )
    assert outputs(under_quota(), tmp_path, script) == ["7\nnone\n"]


def test_user_s_own_count_is_inherited_and_a_replaced_one_is_not(tmp_path: Path):
    script = written(
        tmp_path / "child.py",
        "import os, subprocess, sys\nprint(os.environ.get('OMP_NUM_THREADS'), flush=True)\n"
        "subprocess.run(['sh', '-c', 'echo ${OMP_NUM_THREADS-none}'])\n",
    )
    for own in ("7", "1"):
        assert outputs(under_quota(), tmp_path, script, OMP_NUM_THREADS=own) == [f"{own}\n" * 2]
    replaced = outputs(under_quota(ncores=1), tmp_path, script, OMP_NUM_THREADS="7")
    assert replaced == ["None\nnone\n"]


def test_replaced_count_comes_back_for_a_launch_within(tmp_path: Path):
    show = "import os; print(os.environ.get('OMP_NUM_THREADS'))"
    inner = [sys.executable, "-m", "xlaunch", sys.executable, "-c", show]
    script = written(tmp_path / "outer.py", f"import subprocess; subprocess.run({inner!r})")
    assert outputs(under_quota(ncores=1), tmp_path, script, OMP_NUM_THREADS="7") == ["7\n"]
    env = clean_environment(OMP_NUM_THREADS="7")
    assert xlaunch("--ncores", "1", script, env=env).out == b"7\n"
    # Changed in between, it is the user's again.
    changed = ["/usr/bin/env", "OMP_NUM_THREADS=3", *inner]
    assert xlaunch("--ncores", "1", *changed, env=env).out == b"3\n"


WORKERS = """\
import joblib

def ask():
    from sklearn.utils import _openmp_helpers
    from threadpoolctl import threadpool_info
    return sorted({(it["internal_api"], it["num_threads"]) for it in threadpool_info()})

if __name__ == "__main__":
    print(joblib.Parallel(n_jobs=2)([joblib.delayed(ask)()] * 2))
"""


@pytest.mark.long
def test_workers_of_joblib_have_the_threads_that_they_have_without_xlaunch(
    tmp_path: Path, needs: Needs
):
    needs(find_spec("sklearn") and find_spec("threadpoolctl"), "scikit-learn")
    cpus = len(allowed_cpus())
    script = written(tmp_path / "workers.py", WORKERS)
    bare = run((sys.executable, script)).out.decode()
    assert "openblas" in bare
    assert "openmp" in bare
    assert outputs(under_quota(cpus), tmp_path, script) == [bare]


# The program's own start-up is as without the hook


@pytest.mark.parametrize("flags", ["-E", "-I", "-S"])
def test_python_that_ignores_the_hook_gets_the_variable_and_a_line(
    golden: Golden, flags: str, tmp_path: Path
):
    environment(tmp_path / "venv", "joblib-1.5.0")
    python = str(tmp_path / "venv" / "bin" / "python")
    prepared = prepare_environment(
        under_quota(), ProgramRequest((python, flags, "x.py")), clean_environment()
    )
    assert prepared.variables[0][OMP] == "1"
    assert HOOK_DIRECTORY not in prepared.variables[0].get("PYTHONPATH", "")
    (line,) = prepared.warnings
    golden(line)
    plain = prepare_environment(under_quota(), ProgramRequest(("true",)), clean_environment())
    assert (plain.variables[0][OMP], plain.warnings) == ("1", ())


START = "import os, sys; print(sys.argv[1:], os.environ.get('OMP_NUM_THREADS'), sys.path[1:])"


@pytest.mark.parametrize("form", ["script", "module", "-c", "zipapp", "-P", "shebang"])
def test_every_form_of_a_python_program_starts_as_without_the_hook(tmp_path: Path, form: str):
    script = written(tmp_path / "work.py", START)
    words: tuple[str | Path, ...] = (script,)
    if form == "module":
        words = (sys.executable, "-m", "work")
    elif form == "-c":
        words = (sys.executable, "-c", START)
    elif form == "-P":
        words = (sys.executable, "-P", script)
    elif form == "shebang":
        words = (program(tmp_path / "work", f"#!{sys.executable}\n{START}\n"),)
    elif form == "zipapp":
        with zipfile.ZipFile(tmp_path / "work.pyz", "w") as archive:
            archive.writestr("__main__.py", START)
        words = (tmp_path / "work.pyz",)
    bare = (sys.executable, *words) if form in ("script", "zipapp") else words
    env = clean_environment(PYTHONPATH=str(tmp_path))
    expected = run((*bare, "a b"), env=env).out.decode()
    assert expected.startswith("['a b'] None [")
    assert outputs(under_quota(), tmp_path, *words, "a b", PYTHONPATH=str(tmp_path)) == [expected]


def test_user_s_own_sitecustomize_runs_once_with_the_variable_gone(tmp_path: Path):
    written(
        tmp_path / "sitecustomize.py",
        "import os, subprocess\nprint('mine', os.environ.get('OMP_NUM_THREADS'), flush=True)\n"
        "subprocess.run(['sh', '-c', 'echo ${OMP_NUM_THREADS-none}'])\n",
    )
    script = written(tmp_path / "x.py", "import sitecustomize; print(sitecustomize.__file__)")
    (text,) = outputs(under_quota(), tmp_path, script, PYTHONPATH=str(tmp_path))
    assert text == f"mine None\nnone\n{tmp_path}/sitecustomize.py\n"


def test_subprocess_that_a_pth_file_imported_passes_nothing_on(tmp_path: Path):
    """Before the hook: `site` runs .pth files first."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "early.pth").write_text("import subprocess\n")
    python = tmp_path / "venv" / "bin" / "python"
    script = "import subprocess; subprocess.run(['sh', '-c', 'echo ${OMP_NUM_THREADS-none}'])"
    assert outputs(under_quota(), tmp_path, python, "-c", script) == ["none\n"]
