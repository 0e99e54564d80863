# SPDX-License-Identifier: Apache-2.0
"""`xlaunch cache`: the compile caches that launches keep: list, size, prune, verify, warm, ship."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from xlaunch.cache import contents, store
from xlaunch.cache.prune import DEFAULT_MAX_BYTES, Removal, clear, prune
from xlaunch.cache.store import Hardware, Packages, fingerprint, read_hardware
from xlaunch.cache.table import BY_NAME
from xlaunch.cache.use import NO_HOME, CacheSettings, default_directory
from xlaunch.console import say, terminal_width
from xlaunch.environment.program import find_interpreter
from xlaunch.environment.python_environment import find_installed, prefix_of
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.options.commands import (
    CONTEXT,
    CommandGroup,
    OptionType,
    click_options,
    launch_command,
    resolved_options,
    say_chosen,
    with_options,
)
from xlaunch.options.definitions import BY_KEY, OF_SHARING, POSITIVE_DURATION, SIZE, max_cache_bytes
from xlaunch.options.precedence import ResolvedOptions, request_from
from xlaunch.text import align, counted, fit, size

SETTINGS = {**CONTEXT, "allow_interspersed_args": True}

(DIRECTORY,) = click_options([BY_KEY["cache_dir"]])
JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
PYTHON = click.option("--python", metavar="FILE", help="The interpreter that caches are for.")
NO_WEIGHTS_HELP = "Leave out what contains the weights of models."
MAX_RUNS = 3
TIMED_OUT = 124
"""Exit code of a run that `--timeout` ended. Services are ended this way."""

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


@click.group(
    cls=CommandGroup, context_settings=CONTEXT, invoke_without_command=True, no_args_is_help=False
)
@click.pass_context
def command(context: click.Context) -> None:
    """Manage the compile caches that launches keep.

    They are in ~/.cache/xlaunch/compiled, or in --cache-dir; where others may write to that
    directory, as to /tmp, in its subdirectory xlaunch-UID. The key of a cache stands for the
    hardware and versions that its files are valid for. Once a day a launch starts to prune the
    caches to 20 GiB (XLAUNCH_CACHE_MAX_SIZE), the least recently used first.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _subcommand(*options: Option) -> Callable[[Callable[..., Any]], click.Command]:
    def decorate(function: Callable[..., Any]) -> click.Command:
        decorated = with_options(options)(function)
        return command.command(function.__name__.strip("_"), context_settings=SETTINGS)(decorated)

    return decorate


@_subcommand(DIRECTORY, JSON)
def _ls(*, cache_dir: str | None, as_json: bool) -> None:
    """List the caches, with their size and last use."""
    base, named = _base(cache_dir), store.named_by_processes()
    rows = [("cache", "key", "files", "size", "last use", "")]
    caches = []
    for cache in sorted(store.stored(base), key=lambda cache: -cache.last_use_s):
        usage, last_use_s = contents.usage_of(cache), cache.last_use_s
        with store.not_in_use(cache, named) as free:
            state = {"last_use_s": last_use_s, "in_use": not free}
        caches.append(cache._asdict() | usage._asdict() | state)
        cells = (str(usage.files), size(usage.size_bytes), _ago(last_use_s), "in use" * (not free))
        rows.append((cache.cache, cache.key, *cells))
    width = terminal_width(1)
    table = fit(rows, right=("files", "size"), width=width, optional=("files", "last use"))
    lines = [base, *table] if caches else [f"{base}: nothing is kept here yet"]
    _answer(as_json, lines, base=base, caches=caches)


@_subcommand(DIRECTORY, JSON)
def _du(*, cache_dir: str | None, as_json: bool) -> None:
    """Show the size on disk of each kind of file, and in all."""
    base, max_bytes = _base(cache_dir), max_cache_bytes(os.environ, DEFAULT_MAX_BYTES)
    files_of: dict[tuple[str, str], list[contents.CachedFile]] = {}
    for directory in store.stored(base):
        for kind, files in contents.files_by_kind(directory).items():
            files_of.setdefault((directory.cache, kind), []).extend(files)
    usages = {names: contents.total(files) for names, files in files_of.items()}
    total = sum([usage.size_bytes for usage in usages.values()])
    rows = [("cache", "kind", "files", "size")]
    for (cache, kind), usage in sorted(usages.items()):
        rows.append((cache, kind, str(usage.files), size(usage.size_bytes)))
    lines = align(rows, right=(2, 3)) if usages else []
    lines.append(f"{base}: {size(total)} of {size(max_bytes)}")
    kinds = [{"cache": c, "kind": k, **usage._asdict()} for (c, k), usage in usages.items()]
    _answer(as_json, lines, base=base, kinds=kinds, size_bytes=total, max_bytes=max_bytes)


@_subcommand(
    click.option("--max-size", type=OptionType(SIZE), help="Keep at most this much: 20GiB."),
    click.option(
        "--older-than",
        type=OptionType(POSITIVE_DURATION),
        help="Remove what is unused so long: 30d.",
    ),
    DIRECTORY,
    DRY_RUN,
    JSON,
)
def _prune(
    *,
    max_size: int | None,
    older_than: float | None,
    cache_dir: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the least recently used files, down to a size.

    It is --max-size, or without options the size that launches keep: 20 GiB, or
    XLAUNCH_CACHE_MAX_SIZE. Of a cache in use, files of the last day are kept.
    """
    base = _base(cache_dir)
    if max_size is None and older_than is None:
        max_size = max_cache_bytes(os.environ, DEFAULT_MAX_BYTES)
    removals = prune(base, max_bytes=max_size, older_than_s=older_than, dry_run=dry_run)
    _show_removals(base, removals, dry_run=dry_run, as_json=as_json)


@_subcommand(click.argument("caches", nargs=-1, metavar="[CACHE...]"), DIRECTORY, DRY_RUN, JSON)
def _clear(*, caches: tuple[str, ...], cache_dir: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove whole caches, all of them if none is named. Those in use are kept."""
    _check_names(caches)
    base = _base(cache_dir)
    wanted = [own for own in store.stored(base) if not caches or own.cache in caches]
    removals = clear(base, wanted, dry_run=dry_run)
    removed = [removal.directory for removal in removals]
    for directory in [candidate for candidate in wanted if candidate not in removed]:
        say(f"warning: {directory.path} is in use and kept")
    _show_removals(base, removals, dry_run=dry_run, as_json=as_json)


@_subcommand(click.option("--fix", is_flag=True, help="Remove what is damaged."), DIRECTORY, JSON)
def _verify(*, fix: bool, cache_dir: str | None, as_json: bool) -> int:
    """Check owner, mode and format of every file.

    The exit code is 1 if something is wrong. Imported files are compared with their SHA-256. Nothing
    is loaded or unpickled. --fix removes damaged files and stale locks: libraries compile again what
    they miss.
    """
    from xlaunch.cache.check import verify

    base = _named_base(cache_dir)
    problems = verify(base, fix=fix)
    lines = [
        f"{problem.path}: {problem.what}{' (fixed)' if problem.fixed else ''}"
        for problem in problems
    ]
    remaining = sum([not problem.fixed for problem in problems])
    files = sum([contents.usage_of(directory).files for directory in store.stored(base)])
    result = f"{counted(remaining, 'problem')} left" if remaining else "whole"
    lines.append(f"{base}: {counted(files, 'file')}, {result}")
    _answer(as_json, lines, base=base, problems=[problem._asdict() for problem in problems])
    return int(remaining > 0)


@_subcommand(PYTHON, JSON)
def _fingerprint(*, python: str | None, as_json: bool) -> None:
    """Print the keys of the caches here, and what each is made of."""
    keys = fingerprint(*_here(python))
    lines = []
    for name, value in keys["caches"].items():
        lines.append(f"{name}: {value['key']}")
        lines += [f"  {part}: {text}" for part, text in value["parts"].items()]
    _answer(as_json, lines, **keys)


@_subcommand(
    click.argument("file"),
    click.option("--sign", metavar="KEY", help="Sign with this private SSH key (ssh-keygen)."),
    click.option("--only", metavar="CACHE", multiple=True, help="Only this cache; repeatable."),
    click.option("--no-weights", is_flag=True, help=NO_WEIGHTS_HELP),
    click.option("--force", is_flag=True, help="Replace FILE, whatever it is."),
    DIRECTORY,
    PYTHON,
    JSON,
)
def _export(
    *,
    file: str,
    sign: str | None,
    only: tuple[str, ...],
    no_weights: bool,
    force: bool,
    cache_dir: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Write the caches for this machine and environment to FILE.

    FILE ends in .tar, .tar.gz or .tgz. What `xruntime.optimize` compiled contains the model's weights:
    the last line says how much of FILE they are.
    """
    from xlaunch.cache.bundle import export

    _check_names(only)
    base = _base(cache_dir)
    keys = {(name, key["key"]) for name, key in fingerprint(*_here(python))["caches"].items()}
    wanted = [
        directory
        for directory in store.stored(base)
        if (directory.cache, directory.key) in keys
        and (not only or directory.cache in only)
        and not (no_weights and BY_NAME[directory.cache].weights)
        and not store.is_empty(directory.path)
    ]
    if not wanted:
        raise UsageError(
            f"{base} has nothing{' without weights' * no_weights} for this hardware and these versions; "
            "see xlaunch cache ls, and --python for another environment"
        )
    done = export(base, wanted, file, sign=sign, force=force)
    names = ", ".join([directory.cache for directory in wanted])
    line = f"{file}: {names}; {counted(done.files, 'file')}, {size(done.size_bytes)}"
    if done.weights_bytes:
        line += f", of it {size(done.weights_bytes)} with a model's weights"
    _answer(as_json, [line], file=file, caches=[own._asdict() for own in wanted], **done._asdict())


@_subcommand(
    click.argument("file"),
    click.option(
        "--allowed-signers", metavar="FILE", help="Require a signature by one of these keys."
    ),
    click.option("--force", is_flag=True, help="Import what was made for other hardware, too."),
    DIRECTORY,
    PYTHON,
    JSON,
)
def _import(
    *,
    file: str,
    allowed_signers: str | None,
    force: bool,
    cache_dir: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Add the caches in FILE to those here.

    Files that are here already stay. FILE is code that programs will run: import only what you
    trust, or require a signature.
    """
    from xlaunch.cache.bundle_import import import_bundle

    base, limit = _base(cache_dir), max_cache_bytes(os.environ, DEFAULT_MAX_BYTES)
    done = import_bundle(
        base, file, *_here(python), allowed_signers=allowed_signers, force=force, max_bytes=limit
    )
    for removal in prune(base, max_bytes=limit):
        removed = f"{counted(removal.files, 'file')}, {size(removal.size_bytes)}"
        say(f"pruned to {size(limit)}: {removal.directory.path}: {removed}")
    added = f"{counted(done.added, 'file')} added ({size(done.size_bytes)})"
    _answer(as_json, [f"{base}: {added}, {done.kept} here already"], base=base, **done._asdict())


@launch_command(
    program_required=True,
    without=(*OF_SHARING, "dry-run", "json", "explain", "no-cache", "sysroot", "synthetic"),
    hidden=("optimize-wait", "supervise"),
)
def _warm(resolved: ResolvedOptions) -> int:
    """Run PROGRAM until a run compiles nothing new.

    It runs as a launch with these options would, so that later launches find all that they need.
    Programs that never end need --timeout. The exit code is 1 if the third run still compiles
    something, and the program's if it fails. --optimize implies --optimize-wait.
    """
    from xlaunch.launching import Purpose, launch, prepare

    request, options = request_from(resolved.values), resolved.values
    say_chosen(resolved)
    if not request.program.words:
        raise UsageError(
            "no program given; usage: xlaunch cache warm [OPTIONS] [--] PROGRAM [ARGS...]"
        )
    if request.program.optimize is not None:
        request = request.replace(optimize_wait=True)  # a run ends with all of it compiled
    prepared = prepare(request, purpose=Purpose.LAUNCH, note=say)
    request, plan, environment = prepared.request, prepared.plan, prepared.environment
    assert environment is not None
    for warning in environment.warnings:
        say(f"warning: {warning}")
    if environment.caches.base is None:
        raise UsageError("no cache can be kept: name a directory with --cache-dir")
    before = _compiled_files(environment.caches)
    for run in range(1, MAX_RUNS + 1):
        report = launch(plan, request.program, request.run, table=not options.get("quiet", False))
        if report.exit_code not in (0, TIMED_OUT):
            say(f"the program failed with exit code {report.exit_code}; the caches are not warm")
            return report.exit_code
        after = _compiled_files(environment.caches)
        new = {name: kind for name, kind in after.items() if name not in before}
        if not new:
            done = f"warm after {counted(run, 'run')}: {_count_by_kind(after.values())}"
            say(done if after else "nothing was compiled: the program uses none of the caches")
            return 0
        say(f"run {run} compiled {_count_by_kind(new.values())}")
        before = after
    say(
        f"the program still compiles after {MAX_RUNS} runs: {_count_by_kind(new.values())}; sizes, names or "
        "weights that change from run to run are the usual reason"
    )
    return 1


def _compiled_files(caches: CacheSettings) -> dict[str, tuple[str, str]]:
    """Cache and kind of each file in the caches, by its path; without locks and unfinished files."""
    return {
        file.path: (directory.cache, kind)
        for directory, _ in caches.used
        for kind, file in contents.compiled_files(directory)
    }


def _count_by_kind(files: Iterable[tuple[str, str]]) -> str:
    """**Ex.:** ``inductor (compiled graphs 1, libraries 7)``."""
    words: dict[str, list[str]] = {}
    for (cache, kind), count in sorted(Counter(files).items()):
        words.setdefault(cache, []).append(f"{kind} {count}")
    return "; ".join([f"{cache} ({', '.join(kinds)})" for cache, kinds in words.items()])


command.add_command(_warm, "warm")


def _named_base(cache_dir: str | None) -> str:
    directory = resolved_options({"cache_dir": cache_dir}).values.get("cache_dir")
    base = directory or default_directory(os.environ)
    if base is None:
        raise UsageError(f"{NO_HOME} for caches: name one with --cache-dir")
    return store.private_base(base)


def _base(cache_dir: str | None) -> str:
    base = _named_base(cache_dir)
    try:
        refusal = store.why_unusable(base)
    except OSError as error:
        raise XLaunchError(f"{base}: {error.strerror}") from None
    if refusal is not None:
        raise UsageError(f"caches in {base} are not used: {refusal}")
    return base


def _here(python: str | None) -> tuple[Hardware, Packages]:
    interpreter, _ = find_interpreter(python, os.environ)
    installed = find_installed(prefix_of(interpreter), interpreter, os.environ)
    return read_hardware(), installed.for_keys()


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"there is no cache {name!r}; the caches are {', '.join(BY_NAME)}")


def _show_removals(base: str, removals: Sequence[Removal], *, dry_run: bool, as_json: bool) -> None:
    total = sum([removal.size_bytes for removal in removals])
    for line in store.foreign(base):
        say(f"warning: left alone: {line}")
    verb = "would be removed" if dry_run else "removed"
    lines, removed = [], []
    for removal in removals:
        removed_text = f"{counted(removal.files, 'file')}, {size(removal.size_bytes)} {verb}"
        lines.append(f"{removal.directory.path}: {removed_text}")
        sizes = {"files": removal.files, "size_bytes": removal.size_bytes, "whole": removal.whole}
        removed.append(removal.directory._asdict() | sizes)
    lines.append(f"{base}: {size(total)} {verb}")
    _answer(as_json, lines, base=base, removed=removed, size_bytes=total, dry_run=dry_run)


def _ago(time_s: float) -> str:
    seconds = max(0.0, time.time() - time_s)
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "now"


def _answer(as_json: bool, lines: Sequence[str], **values: Any) -> None:
    """Print the values as JSON, or the lines."""
    text = "\n".join(lines)
    click.echo(json.dumps({"schema_version": 1, **values}, indent=1) if as_json else text)
