# SPDX-License-Identifier: Apache-2.0
"""XL04x: thread counts that have no effect, or that work against the launcher."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Block, FileFacts, Problem, dotted

_TORCH = frozenset(("torch", "torchvision", "torchaudio"))
_NUMPY = frozenset(("numpy", "scipy", "sklearn", "pandas"))
READERS = {
    **dict.fromkeys(("MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND"), _TORCH),
    **dict.fromkeys(("OMP_SCHEDULE", "GOMP_CPU_AFFINITY"), _TORCH),
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), _TORCH | _NUMPY),
}
"""Variables, and the modules whose import reads them: as built for PyPI, torch has GNU's OpenMP and
MKL, and imports numpy, which has OpenBLAS. No variable of Intel's OpenMP (KMP_...) is read by either."""

_COUNTS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")

_STARTING = frozenset(("subprocess", "multiprocessing", "joblib", "ray", "dask", "concurrent"))
"""Calls that start other programs: variables that are set before them may be for those."""


def check_threads(facts: FileFacts) -> Iterator[Problem]:
    """Variables that are set late, and counts that are fixed."""
    yield from _set_late(facts)
    yield from _fixed(facts)


def _set_late(facts: FileFacts) -> Iterator[Problem]:
    imported = {part for name, _, _ in facts.imports for part in name.split(".")}
    starts_others = bool(imported & _STARTING) or bool(
        facts.words & {"multiprocessing", "Popen", "spawn", "torchrun", "start_processes"}
    )
    if starts_others or not (facts.texts | facts.words) & READERS.keys():
        return
    loaded = [
        (node.lineno, name.partition(".")[0])
        for name, node, block in facts.imports
        if block.scope is facts.module
        and name.partition(".")[0] in _NUMPY | _TORCH
        and not any(  # for type checkers only
            isinstance(around.node, ast.If)
            and (dotted(around.node.test) or "").rpartition(".")[2] == "TYPE_CHECKING"
            for around in block.outwards()
        )
    ]
    for node, variable, block in _settings(facts):
        # A function runs after the imports at the top, wherever it stands.
        inside = block.scope is not facts.module
        readers = [reader for reader in loaded if reader[1] in READERS[variable]]
        if variable in _COUNTS and "set_num_threads" in facts.words:  # which sets torch's count
            readers = [reader for reader in readers if reader[1] not in _TORCH]
        before = [library for line, library in readers if inside or line < node.lineno]
        if len(before) < len(readers):  # the last one still reads it
            continue
        if before:
            yield (
                node,
                "XL040",
                f"{variable} is set after {before[0]} was imported, which has read it; set it above "
                f"that import, or outside: xlaunch sets it",
            )


def _settings(facts: FileFacts) -> Iterator[tuple[ast.expr | ast.stmt, str, Block]]:
    """Where variables of this process are set."""
    for target, _, block in facts.assignments:
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            variable = target.slice.value
            if variable in READERS and facts.full(target.value, block.scope) == "os.environ":
                yield target, str(variable), block
    for method in ("setdefault", "putenv"):
        for call in facts.called.get(method, ()):
            first = call.node.args[0] if call.node.args else None
            full = facts.full(call.node.func, call.scope)
            sets = full in ("os.environ.setdefault", "os.putenv")
            if sets and isinstance(first, ast.Constant) and first.value in READERS:
                yield call.node, str(first.value), call.block
    for call in facts.called.get("update", ()):
        if facts.full(call.node.func, call.scope) == "os.environ.update":
            yield from ((call.node, name, call.block) for name in sorted(_updated(call.node)))


def _updated(node: ast.Call) -> set[str]:
    """The variables that ``os.environ.update(...)`` sets."""
    names = {option.arg for option in node.keywords}
    for argument in node.args:
        keys = argument.keys if isinstance(argument, ast.Dict) else ()
        names |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return {name for name in names if name in READERS and name is not None}


def _fixed(facts: FileFacts) -> Iterator[Problem]:
    # Counts that are compared or restored are meant, and so is one thread.
    if "get_num_threads" in facts.words:
        return
    for call in facts.calls_named("torch.set_num_threads"):
        count = call.node.args[0] if call.node.args else None
        if isinstance(count, ast.Constant) and type(count.value) is int and count.value > 1:
            yield (
                call.node,
                "XL041",
                f"torch.set_num_threads({count.value}) fixes the count on every machine and overrides "
                f"what a launcher set; leave it out, and choose with xlaunch --ncores",
            )
