# SPDX-License-Identifier: Apache-2.0
"""Checks of libraries and OpenMP runtimes, of other processes, and of the cache directory."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.doctor.checks.made_up import machine, one, program, severity, shown, told
from tests.launcher.environment.made_up import environment, library
from tests.libraries import find_library

from xlaunch.cli.doctor_machine import facts_of
from xlaunch.doctor.checks.findings import Facts, Severity
from xlaunch.errors import UsageError
from xlaunch.machine import read_machine


def here(*imports: str, **variables: str) -> Facts:
    """This machine and this Python."""
    given = {**os.environ, **variables}
    given.pop("LD_PRELOAD", None)
    given |= {name: value for name, value in variables.items() if name == "LD_PRELOAD"}
    return facts_of(
        read_machine(), given, sysroot=None, interpreter=sys.executable, imports=imports
    )


def write_modules(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text)


def test_allocator_that_would_be_chosen(tmp_path: Path, needs):
    tcmalloc = find_library("tcmalloc", sys.prefix, os.environ)
    needs(tcmalloc, "tcmalloc (Debian: libtcmalloc-minimal4)")
    assert severity("allocator", here()) is Severity.OK
    found = one("allocator", here(LD_PRELOAD=tcmalloc.path)).found
    assert found == f"allocator: {tcmalloc.path}, by LD_PRELOAD"


def test_stale_preload_is_no_allocator(golden: Golden, tmp_path: Path):
    gone = f"{tmp_path}/libjemalloc.so.2"
    stale, rest = shown("allocator", here(LD_PRELOAD=gone))
    assert stale.severity is Severity.WARNING
    golden(stale.found, stale.why)
    assert [rest] == shown("allocator", here())


def test_allocator_that_the_user_has_tuned(golden: Golden):
    golden(told("allocator", here(MALLOC_ARENA_MAX="2")))


def test_variable_that_binds_the_main_thread(needs):
    intel = find_library("intel", sys.prefix, os.environ)
    needs(intel, "pip's intel-openmp")
    affinity = {"KMP_AFFINITY": "compact"}
    assert shown("openmp-binding", here()) == []
    found = one("openmp-binding", here(LD_PRELOAD=intel.path, **affinity))
    assert (found.severity, found.advise) == (Severity.WARNING, "unset KMP_AFFINITY")
    assert found.found.startswith("KMP_AFFINITY=compact binds the main thread")
    assert intel.path in found.found
    found = one("openmp-binding", here(OMP_PROC_BIND="close"))
    assert found.found.startswith("OMP_PROC_BIND=close binds the main thread")


def test_allocator_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment(tmp_path)
    monkeypatch.setattr("xlaunch.doctor.checks.libraries.find_libraries", lambda *_, **__: ())
    finding = one(
        "allocator", program(machine(tmp_path / "machine", {}), tmp_path)._replace(live=True)
    )
    assert finding.severity is Severity.ADVICE
    assert finding.advise == "apt-get install libtcmalloc-minimal4"


def test_runtimes_that_packages_carry(golden: Golden, tmp_path: Path):
    site = environment(tmp_path / "venv")
    facts = program(machine(tmp_path / "machine", {}), tmp_path / "venv")._replace(live=True)
    assert one("openmp-runtime", facts).found.startswith("OpenMP: torch is not installed")
    library(site / "torch/lib/libtorch_cpu.so", needed=["libgomp.so.1"])
    assert severity("openmp-runtime", facts) is Severity.OK
    library(site / "scikit_learn.libs/libgomp-e985bcbb.so.1.0.0")
    finding = one("openmp-runtime", facts)
    assert finding.severity is Severity.ADVICE
    golden(finding.found, finding.advise)


def test_two_runtimes_in_one_process(golden: Golden, tmp_path: Path, needs):
    gnu = find_library("gnu", sys.prefix, os.environ)
    llvm = find_library("llvm", sys.prefix, os.environ)
    needs(gnu, "libgomp (Debian: libgomp1)")
    needs(llvm, "libomp (Debian: libomp5)")
    # Stands for torch: what matters is what is mapped.
    write_modules(
        tmp_path,
        torch=f"import ctypes\nctypes.CDLL({gnu.path!r})\nprint('noise')",
        second=f"import ctypes\nctypes.CDLL({llvm.path!r})",
        nothing="",
    )
    path = {"PYTHONPATH": str(tmp_path)}
    for imports in (("torch",), ("nothing",)):
        assert severity("two-openmp-runtimes", here(*imports, **path)) is Severity.OK
    finding = one("two-openmp-runtimes", here("second", **path))
    assert finding.severity is Severity.SERIOUS
    golden(finding.found)
    assert os.path.realpath(gnu.path) in finding.why
    assert os.path.realpath(llvm.path) in finding.why
    preloaded = one("two-openmp-runtimes", here("second", LD_PRELOAD=llvm.path, **path))
    assert preloaded.severity is Severity.OK


def test_modules_that_cannot_be_imported(golden: Golden, tmp_path: Path):
    write_modules(
        tmp_path,
        torch="",
        broken="raise RuntimeError('first line\\nsecond line')",
        needy="import no_such_module",
        crash="import os\nos.write(2, b'OMP: Error #15\\n')\nos.abort()",
    )
    path = {"PYTHONPATH": str(tmp_path)}
    broken, rest = shown("two-openmp-runtimes", here("broken", **path))
    golden(broken.found)
    assert rest.severity is Severity.OK
    needy, _ = shown("two-openmp-runtimes", here("needy", **path))
    golden(needy.found)
    crash = one("two-openmp-runtimes", here("crash", **path))
    assert crash.severity is Severity.SERIOUS
    assert crash.found.endswith("ends the process: signal 6, OMP: Error #15")
    with pytest.raises(UsageError, match=r"--import absent: .* has no module of that name"):
        shown("two-openmp-runtimes", here("absent", **path))


@pytest.mark.long
def test_torch_and_scikit_learn_really(needs):
    needs(find_spec("torch") and find_spec("sklearn"), "torch and scikit-learn")
    findings = shown("two-openmp-runtimes", here("sklearn"))
    assert [it.found.partition(":")[0] for it in findings] == ["torch, sklearn"]


def test_busy_cpu(monkeypatch: pytest.MonkeyPatch):
    facts = here()
    cpu = facts.machine.limits.allowed_cpus[0]
    limits = facts.machine.limits._replace(allowed_cpus=(cpu,))
    facts = facts._replace(machine=facts.machine._replace(limits=limits))
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cpu)], stdout=subprocess.PIPE
    ) as spinner:
        try:
            assert spinner.stdout is not None
            spinner.stdout.readline()
            findings = shown("load", facts)
        finally:
            spinner.kill()
    busy = findings[0]
    assert busy.severity is Severity.WARNING
    assert busy.found.startswith(f"CPU {cpu} is busy with other work")
    monkeypatch.setattr("xlaunch.supervision.watches.anything_runs", lambda: False)
    assert severity("load", facts) is Severity.OK


def test_cache_directory(golden: Golden, tmp_path: Path):
    tmp_path.chmod(0o700)
    assert severity("cache-directory", here(XDG_CACHE_HOME=str(tmp_path))) is Severity.OK
    assert not list(tmp_path.iterdir())
    homeless = here()._replace(environment={})
    golden(one("cache-directory", homeless).found)
    (tmp_path / "xlaunch").mkdir()
    (tmp_path / "xlaunch").chmod(0o777)
    shared = one("cache-directory", here(XDG_CACHE_HOME=str(tmp_path)))
    assert shared.severity is Severity.ADVICE
    golden(shared.found)


def test_cache_directory_on_a_network_file_system(tmp_path: Path):
    tmp_path.chmod(0o700)
    table = f"36 35 98:0 / {tmp_path} rw - nfs4 server:/home rw"
    facts = machine(
        tmp_path / "machine", {"proc/self/mountinfo": table}, XDG_CACHE_HOME=str(tmp_path)
    )
    finding = one("cache-directory", facts._replace(live=True))
    assert finding.severity is Severity.ADVICE
    assert finding.found.endswith("is on a network file system (nfs4)")


def test_shared_memory(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    facts = machine(tmp_path, {})._replace(live=True)
    shared = "xlaunch.doctor.checks.memory.SHARED"
    monkeypatch.setattr(shared, "/no/such/directory")
    golden(one("shared-memory", facts).found)
    monkeypatch.setattr(shared, str(tmp_path))
    monkeypatch.setattr("xlaunch.doctor.checks.memory.MIN_SHARED_BYTES", 1)
    assert severity("shared-memory", facts) is Severity.OK
    monkeypatch.setattr("xlaunch.doctor.checks.memory.MIN_SHARED_BYTES", 1 << 62)
    assert severity("shared-memory", facts) is Severity.WARNING


@pytest.mark.parametrize(
    ("variable", "value", "fires"),
    [
        *[("OMP_NUM_THREADS", it, True) for it in ("", "0", "abc", "-2", "1", "4,0", "2.5")],
        *[("OMP_NUM_THREADS", it, False) for it in ("2", "4,1", " 4 ")],
        *[("OMP_PLACES", it, True) for it in ("bogus", "{0", "core")],
        *[("OMP_PLACES", it, False) for it in ("cores", "threads(2)", "{0,1},{2,3}", "{0:4}:2:4", "{0},!{1}")],
        *[("KMP_AFFINITY", it, True) for it in ("bogus", "granularty=fine,compact", "compct,1,0", "granularity=fine,compct", "1" * 60 + "x")],
        *[("KMP_AFFINITY", it, False) for it in (
            "granularity=fine,compact,1,0", "none", "disabled", "verbose,scatter", "explicit,proclist=[0,1-3]")],
    ],
)  # fmt: skip
def test_openmp_variables(variable: str, value: str, fires: bool, tmp_path: Path):
    found = shown("openmp-variables", machine(tmp_path, {}, **{variable: value}))
    assert [it.advise for it in found] == [f"unset {variable}"] * fires


def test_one_thread_on_one_cpu(tmp_path: Path):
    one_cpu = {"proc/self/status": "Cpus_allowed_list: 2"}
    assert shown("openmp-variables", machine(tmp_path, one_cpu, OMP_NUM_THREADS="1")) == []
