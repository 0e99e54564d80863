# SPDX-License-Identifier: Apache-2.0
"""Memory allocator profiles: how freed memory is kept for the next allocation.

A tensor library allocates and frees large blocks all the time. An allocator that returns each block
to the kernel pays in page faults, in zeroing, and in TLB shootdowns to every core that runs a thread
of the process: a factor of 2 to 3 on 64 CPUs. Its settings matter more than the choice of allocator.
benchmarks/allocators measures the table below.

`loads_torch` sees whether a Python program loads torch by the import statements of its files. Nothing of it is
executed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xlaunch.environment.contribution import Contribution, ListEntry, Situation
from xlaunch.environment.elf import Elf
from xlaunch.environment.program import Program, invoked
from xlaunch.environment.python_environment import site_directories
from xlaunch.environment.threads import NOT_FOR_DASK, hook_entry, hook_reaches
from xlaunch.environment.variables import PRELOAD, Proposal
from xlaunch.errors import UsageError
from xlaunch.files import names_in
from xlaunch.machine.limits import SystemMode, system_mode
from xlaunch.machine.sysfs import glibc_version
from xlaunch.machine.tree import read_file
from xlaunch.planning.request import HugePages
from xlaunch.text import size

AUTO = "auto"
AUTO_LIBRARY = "tcmalloc"
"""The profile of `auto` where its library is installed."""
TUNABLES = "GLIBC_TUNABLES"

GLIBC_VARIABLES = {
    "MALLOC_ARENA_MAX": "glibc.malloc.arena_max",
    "MALLOC_ARENA_TEST": "glibc.malloc.arena_test",
    "MALLOC_CHECK_": "glibc.malloc.check",
    "MALLOC_MMAP_MAX_": "glibc.malloc.mmap_max",
    "MALLOC_MMAP_THRESHOLD_": "glibc.malloc.mmap_threshold",
    "MALLOC_PERTURB_": "glibc.malloc.perturb",
    "MALLOC_TOP_PAD_": "glibc.malloc.top_pad",
    "MALLOC_TRIM_THRESHOLD_": "glibc.malloc.trim_threshold",
}
"""glibc's older variables, and the tunable that each sets (elf/dl-tunables.list, env_alias)."""

MAX_KEPT_BYTES = 64 << 30
TUNABLES_SINCE = (2, 26)
"""First version of glibc with GLIBC_TUNABLES."""

SHARE_KEPT = 2
"""An instance may keep one part in this many of its memory share for reuse."""
MAX_WORKERS = 16
"""Maximum number of data loader workers to divide that by: each inherits the settings."""


class AllocatorProfile(NamedTuple):
    """A named set of allocator settings: a row of `PROFILES`."""

    name: str
    reason: str
    source: str
    variables: Mapping[str, str] = {}
    """Settings; `{keep}` stands for the bytes that may be kept, `{keep_mib}` for the same in MiB."""
    library: str | None = None
    """The library to preload, by its name in `xlaunch.environment.libraries`; None: glibc's own."""


_KEEP_ALL = (
    "glibc.malloc.mmap_max=0:glibc.malloc.mmap_threshold=4294967296:"
    "glibc.malloc.trim_threshold={keep}:glibc.malloc.top_pad=67108864:"
    # With fast bins, every free of a block above 64 KiB consolidates them, and small aligned blocks
    # such as a tensor's refill them. So they are off, and the thread cache holds more blocks.
    "glibc.malloc.mxfast=0:glibc.malloc.tcache_count=64"
)

PROFILES = {
    profile.name: profile
    for profile in (
        AllocatorProfile(
            "glibc", "glibc as it is: large blocks go back to the kernel at once", "mallopt(3)"
        ),
        AllocatorProfile(
            "glibc-tuned",
            "freed blocks are kept and reused, up to {keep_size}",
            "glibc manual, Memory Allocation Tunables; malloc/malloc.c, FASTBIN_CONSOLIDATION_THRESHOLD",
            {TUNABLES: _KEEP_ALL},
        ),
        AllocatorProfile(
            "glibc-one-arena",
            "as glibc-tuned, for work in threads with blocks above 64 MiB: the arenas of threads hand "
            "those back to the kernel, the one arena keeps them, and threads wait for each other",
            "malloc/arena.c, HEAP_MAX_SIZE",
            {TUNABLES: f"{_KEEP_ALL}:glibc.malloc.arena_max=1"},
        ),
        AllocatorProfile(
            "glibc-frugal",
            "blocks up to 32 MiB are kept, 256 MiB in all; larger ones go back at once",
            "glibc manual, Memory Allocation Tunables",
            {
                TUNABLES: "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456:"
                "glibc.malloc.arena_max=2"
            },
        ),
        AllocatorProfile(
            "jemalloc",
            "freed pages are kept; with any decay time large ones go back at once, because the decay "
            "limit starts at nothing",
            "jemalloc(3): opt.oversize_threshold, opt.dirty_decay_ms",
            {
                "MALLOC_CONF": "oversize_threshold:1,background_thread:true,metadata_thp:auto,"
                "dirty_decay_ms:-1,muzzy_decay_ms:-1"
            },
            "jemalloc",
        ),
        AllocatorProfile(
            "tcmalloc",
            "freed memory is kept and reused",
            "gperftools, docs/tcmalloc.html",
            {
                "TCMALLOC_RELEASE_RATE": "0",
                "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "1099511627776",
            },
            "tcmalloc",
        ),
        AllocatorProfile(
            "mimalloc",
            "a reserved region of {keep_size} from which large blocks are reused",
            "mimalloc's options; the second is 2.1's name for what the first is in 2.0",
            {
                "MIMALLOC_ALLOW_DECOMMIT": "0",
                "MIMALLOC_PURGE_DELAY": "-1",
                "MIMALLOC_RESERVE_OS_MEMORY": "{keep_mib}MiB",
            },
            "mimalloc",
        ),
    )
}


def contribute_allocator(situation: Situation) -> Contribution:
    """The settings of `--allocator`, and its library."""
    plan, request, given = situation.plan, situation.request, situation.given
    loads = situation.program.loads
    problem = None if loads is None else _tunables_problem(loads)
    glibc = None if problem else glibc_version()
    choice = _choose_allocator(
        request.allocator,
        situation.program,
        situation.loading,
        glibc,
        problem,
        keep=situation.make_directories,
    )
    threads = max([instance.threads for instance in plan.instances], default=1)
    proposals = allocator_settings(
        choice.profile,
        given,
        memory_share_bytes=plan.memory_share_bytes,
        threads=threads,
        huge_pages=glibc_asks(request.thp, system_mode(), glibc),
    )
    entries = []
    if choice.library is not None:
        entries = [ListEntry(PRELOAD, choice.library, f"allocator {choice.profile.name}")]
    if (proposals or entries) and situation.program.installed.has("distributed"):
        kept_out = _not_for_dask(proposals, entries, situation)
        proposals, entries = (*proposals, *kept_out.proposals), [*entries, *kept_out.entries]
    return Contribution(
        proposals, entries=entries, warnings=choice.warnings, allocator_left_alone=choice.left_alone
    )


def _not_for_dask(
    proposals: Sequence[Proposal], entries: Sequence[ListEntry], situation: Situation
) -> Contribution:
    """The hook that keeps the allocator out of Dask's workers.

    Their nanny has glibc return memory (MALLOC_TRIM_THRESHOLD_), and ends a worker whose resident memory is
    too large: what an allocator keeps counts.
    """
    names = [proposal.name for proposal in proposals] + [entry.variable for entry in entries]
    own = [f"{name}={situation.given.get(name, '')}" for name in names]
    if not situation.started or not hook_reaches(situation.program) or ";" in "".join(own):
        return Contribution()
    reason = "loads a hook that keeps the allocator out of Dask's workers, and removes itself"
    marker = Proposal(NOT_FOR_DASK, ";".join(own), "tells the hook the user's own", merged=True)
    return Contribution([marker], entries=[hook_entry(reason)])


class _Choice(NamedTuple):
    profile: AllocatorProfile
    library: str | None = None
    """The file to preload."""
    warnings: tuple[str, ...] = ()
    left_alone: str | None = None
    """See `xlaunch.environment.Environment`."""


def _tunables_problem(program: Elf) -> str | None:
    """Why tunables of glibc's are not set for a program; None: they are."""
    if program.c_library == "glibc":
        if glibc_version() is None:
            return "xlaunch's Python does not run on glibc, whose version is not known here"
        return None
    if program.static:
        return "the program is linked statically"
    return f"the program is linked to {program.c_library or 'another C library'}, not to glibc"


def _choose_allocator(
    asked: str,
    program: Program,
    given: Mapping[str, str],
    glibc: tuple[int, int] | None,
    problem: str | None,
    *,
    keep: bool,
) -> _Choice:
    """The profile that `--allocator` asks for, and its library; `problem`: see `_tunables_problem`.

    `given`: with those entries of LD_PRELOAD that can be loaded. `auto` preloads only into Python
    programs that load torch. It preloads nothing if the user has chosen, by an allocator in LD_PRELOAD, which is kept, by glibc's
    tunables, or by the variables that glibc had before those.
    """
    tuned = [f"{name}={given[name]}" for name in GLIBC_VARIABLES if given.get(name)]
    if asked == AUTO:
        if given.get(PRELOAD):
            from xlaunch.environment.preload import other_allocator

            if other_allocator(given) is not None:
                return _Choice(PROFILES["glibc"])
        if tuned:
            reason = f"{', '.join(tuned)} is kept; --allocator NAME takes another"
            note = (
                f"inherited variables are kept: {', '.join(tuned)} (--allocator auto sets nothing)"
            )
            return _Choice(PROFILES["glibc"], None, (note,), reason)
        chosen = "glibc.malloc" in given.get(TUNABLES, "")
        if sys.platform != "linux" or program.interpreter is None or chosen:
            return _Choice(choose_profile(AUTO, glibc=glibc), left_alone=problem)
        if not loads_torch(program, given):
            profile = choose_profile(AUTO, glibc=glibc)
            reason = f"{profile.reason} (no import of torch is seen, for which auto takes {AUTO_LIBRARY})"
            return _Choice(profile._replace(reason=reason), left_alone=problem)
        from xlaunch.environment.preload import find_preloadable

        tried = find_preloadable("--allocator auto", AUTO_LIBRARY, program, given, keep=keep)
        profile = choose_profile(AUTO, glibc=glibc, is_installed=tried.library is not None)
        if tried.library is not None:
            return _Choice(profile, tried.library.path, tried.notes)
        refused = "".join(f"; refused: {text}" for text in tried.refused)
        left_alone = None if problem is None else problem + refused
        return _Choice(profile._replace(reason=profile.reason + refused), left_alone=left_alone)
    profile = choose_profile(asked, glibc=glibc)
    if profile.library is None:
        return _Choice(profile)
    from xlaunch.environment.preload import refuse_second_allocator, require_library

    library, notes = require_library(
        f"--allocator {asked}", profile.library, program, given, keep=keep
    )
    refuse_second_allocator(library.path, given)
    if tuned:
        notes += (f"--allocator {asked}: {', '.join(tuned)} is for glibc's, and has no effect",)
    return _Choice(profile, library.path, notes)


def choose_profile(
    asked: str, *, glibc: tuple[int, int] | None, is_installed: bool = False
) -> AllocatorProfile:
    """The profile that `--allocator` names; `auto` is the fastest of those that can be used.

    `is_installed`: `AUTO_LIBRARY` can be preloaded. The path of a library gets the settings of the
    allocator in its file name, if there is one. Raises `UsageError` for an unknown name.
    """
    has_tunables = glibc is not None and glibc >= TUNABLES_SINCE
    if asked == AUTO:
        if is_installed:
            return PROFILES[AUTO_LIBRARY]
        return PROFILES["glibc-tuned" if has_tunables else "glibc"]
    if "/" in asked:
        name = os.path.basename(asked)
        rows = [row for row in PROFILES.values() if row.library and row.library in name]
        reason = "the library that was named"
        row = rows[0] if rows else PROFILES["glibc"]
        return row._replace(name=asked, library=asked, reason=reason)
    if asked not in PROFILES:
        raise UsageError(
            f"--allocator: {asked!r} is not an allocator profile; there are auto, "
            f"{', '.join(PROFILES)}, or the path of a library"
        )
    if asked.startswith("glibc-") and not has_tunables:
        raise UsageError(
            f"--allocator: {asked} needs glibc 2.26 or newer, and the program does not run on it"
        )
    return PROFILES[asked]


def allocator_settings(
    profile: AllocatorProfile,
    inherited: Mapping[str, str],
    *,
    memory_share_bytes: int | None,
    threads: int,
    huge_pages: bool,
) -> tuple[Proposal, ...]:
    """The variables of `profile`, scaled to the instance's memory.

    Data loader workers inherit them, so the memory is divided by one worker per thread as well. The
    user's own GLIBC_TUNABLES and GLIBC_VARIABLES win, name by name. `huge_pages`: let glibc request huge pages.
    """
    keep = MAX_KEPT_BYTES
    if memory_share_bytes is not None:
        keep = min(keep, memory_share_bytes // SHARE_KEPT // (1 + min(threads, MAX_WORKERS)))
    words = {"keep": keep, "keep_mib": keep >> 20, "keep_size": size(keep)}
    reason = f"allocator {profile.name}: {profile.reason.format(**words)}"
    proposals = []
    for name, template in profile.variables.items():
        value = template.format(**words)
        if name == TUNABLES:
            if huge_pages:
                value += ":glibc.malloc.hugetlb=1"
            own = {tunable for name, tunable in GLIBC_VARIABLES.items() if inherited.get(name)}
            value = ":".join(
                [entry for entry in value.split(":") if entry.partition("=")[0] not in own]
            )
            value = merge_tunables(inherited.get(TUNABLES, ""), value)
        proposals.append(Proposal(name, value, reason, merged=name == TUNABLES))
    return tuple(proposals)


def merge_tunables(users: str, ours: str) -> str:
    """Merge two lists of ``name=value``, separated by colons; the user's values win."""
    pairs = [entry.partition("=")[::2] for entry in f"{ours}:{users}".split(":") if entry]
    return ":".join([f"{name}={value}" for name, value in dict(pairs).items()])


HUGETLB_SINCE = (2, 35)
"""First version of glibc with glibc.malloc.hugetlb."""


def glibc_asks(asked: HugePages, mode: SystemMode, glibc: tuple[int, int] | None) -> bool:
    """Whether glibc's malloc should request huge pages."""
    has_tunable = glibc is not None and glibc >= HUGETLB_SINCE
    return asked is HugePages.ALWAYS and mode is SystemMode.MADVISE and has_tunable


MAX_FILES = 200
MAX_FILE_BYTES = 1 << 20
TORCH = frozenset(("torch", "xruntime"))
"""Top-level modules that are torch, or load it."""

_STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>\.*[\w.]*)[ \t]+import[ \t]+\(?(?P<names>[\w, \t]*)"
    r"|import[ \t]+(?P<modules>[\w., \t]+))",
    re.MULTILINE,
)
_REQUIRES_TORCH = re.compile(
    r"""^Requires-Dist: torch\b(?!-)(?:[^;\n]*|.*extra == ["']torch["'].*)$""", re.MULTILINE
)
_SCRIPT_SUFFIXES = ("", ".py", ".pyw")


def loads_torch(program: Program, environment: Mapping[str, str]) -> bool:
    """Whether files of `program` import torch, or a package that requires it (by its metadata, also as the extra torch).

    Read are the script or module, scripts and modules among its arguments (``accelerate launch train.py``,
    ``uvicorn service:app``), and what these import from their own directories. Imports that no statement names
    (importlib, a notebook's) are not seen.
    """
    if program.interpreter is None or not program.installed.has("torch"):
        return False
    return _Search(program, environment).finds_torch()


class _Search:
    def __init__(self, program: Program, environment: Mapping[str, str]) -> None:
        self._program = program
        self._roots = [os.curdir, *filter(None, environment.get("PYTHONPATH", "").split(":"))]
        self._files: dict[str, None] = {}
        """Files to read, and those that were read; in order."""
        self._packages: set[str] = set()

    def finds_torch(self) -> bool:
        if any(self._is_torch(module) for module in self._named()):
            return True
        position = 0
        while position < min(len(self._files), MAX_FILES):
            path = [*self._files][position]
            position += 1
            if any(self._is_torch(module) for module in _imported(_read(path), path)):
                return True
        return False

    def _named(self) -> Iterator[str]:
        """Modules that the command names; adds the files that it names."""
        command = self._program.command
        for path in command:
            is_script = os.path.splitext(path)[1] in _SCRIPT_SUFFIXES and os.path.isfile(path)
            if is_script and path != self._program.interpreter:
                self._files.setdefault(path)
                self._roots.append(os.path.dirname(path) or os.curdir)
        name, arguments = invoked(command)
        if name == os.path.basename(command[0]) and "-c" in command[1:-1]:
            code = command[command.index("-c") + 1]
            yield from _imported(code, os.curdir)
        for word in (name, *arguments):
            module = word.partition(":")[0]  # uvicorn service:app
            if re.fullmatch(r"[A-Za-z_][\w.]*", module):
                yield module
                yield f"{module}.__main__"

    def _is_torch(self, module: str) -> bool:
        """Whether importing a module, or the file of a local one (``/path/module``), loads torch."""
        if os.path.isabs(module):
            self._add(module)
            return False
        top, *_ = module.split(".")
        if top in TORCH:
            return True
        for root in self._roots:
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                self._add(os.path.join(root, *parts[:end]))
        if top in self._packages:
            return False
        self._packages.add(top)
        return self._requires_torch(top)

    def _add(self, stem: str) -> None:
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if path not in self._files and os.path.isfile(path):
                self._files[path] = None

    def _requires_torch(self, package: str) -> bool:
        """Whether an installed distribution of that name requires torch, also as an extra."""
        program, name = self._program, package.replace("_", "-").lower()
        if not program.installed.has(name) or program.prefix is None or program.interpreter is None:
            return False
        for site in site_directories(program.prefix, program.interpreter):
            for entry in names_in(site):
                stem, _, version = entry.partition("-")
                if stem.replace("_", "-").lower() == name and version.endswith(".dist-info"):
                    return bool(_REQUIRES_TORCH.search(_read(f"{site}/{entry}/METADATA")))
        return False


def _imported(text: str, path: str) -> Iterator[str]:
    """The modules that a file's statements import; a relative one as a path without its suffix."""
    for statement in _STATEMENT.finditer(text):
        base, names = statement["base"], re.split(r"[\s,]+", (statement["names"] or "").strip())
        if base is None:
            yield from (
                words.split()[0] for words in statement["modules"].split(",") if words.split()
            )
            continue
        module = base.lstrip(".")
        if level := len(base) - len(module):
            directory = os.path.dirname(os.path.abspath(path))
            for _ in range(level - 1):
                directory = os.path.dirname(directory)
            module = os.path.join(directory, *module.split("."))
        yield module
        joint = "/" if level else "."
        yield from (f"{module}{joint}{name}" for name in names if name)


def _read(path: str) -> str:
    return (read_file(path, max_bytes=MAX_FILE_BYTES) or b"").decode(errors="replace")
