# SPDX-License-Identifier: Apache-2.0
"""`xlaunch cache`: the compile caches that launches keep: list, size, prune, verify, warm, ship."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from xlaunch.cache.contents import Usage, usage_by_kind, usage_of
from xlaunch.cache.key import Hardware, Packages, fingerprint, read_hardware
from xlaunch.cache.prune import DEFAULT_MAX_BYTES, Removal, clear, prune
from xlaunch.cache.store import (
    CacheDirectory,
    foreign,
    is_empty,
    named_by_processes,
    not_in_use,
    private_base,
    stored,
    why_unusable,
)
from xlaunch.cache.table import BY_NAME
from xlaunch.cache.use import NO_HOME, default_directory
from xlaunch.cli.cache_warm import warm_command
from xlaunch.console import say
from xlaunch.environment.program import find_interpreter
from xlaunch.environment.python_environment import find_installed, prefix_of
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.options.commands import CONTEXT, Parsed, click_option, resolved_options, with_options
from xlaunch.options.definitions import BY_KEY
from xlaunch.options.kinds import POSITIVE_DURATION, SIZE
from xlaunch.text import align, counted, size

SETTINGS = {**CONTEXT, "allow_interspersed_args": True}

MAX_SIZE_VARIABLE = "XLAUNCH_CACHE_MAX_SIZE"
"""The size that launches keep the caches within; 20 GiB if it is not set."""

DIRECTORY = [click_option(BY_KEY["cache_dir"])]
JSON = [click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")]
DRY_RUN = [click.option("--dry-run", is_flag=True, help="Only show what would be removed.")]
PYTHON = [click.option("--python", metavar="FILE", help="The interpreter that caches are for.")]

Options = Sequence[Callable[[Callable[..., Any]], Callable[..., Any]]]


@click.group(
    context_settings={**CONTEXT, "max_content_width": 120},
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.pass_context
def command(context: click.Context) -> None:
    """Manage the compile caches that launches keep.

    They are below ~/.cache/xlaunch/compiled, or --cache-dir (in one that others may write, such as
    /tmp: below xlaunch-UID in it). Each lies under a key: the hardware and
    the versions that its files are valid for. Once a day a launch starts to prune them to 20 GiB
    (XLAUNCH_CACHE_MAX_SIZE), what was not used for longest first.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _subcommand(*options: Options) -> Callable[[Callable[..., Any]], click.Command]:
    def decorate(function: Callable[..., Any]) -> click.Command:
        made = with_options(*options)(function)
        name = function.__name__.strip("_").removesuffix("_command")
        return command.command(name, context_settings=SETTINGS)(made)

    return decorate


@_subcommand(DIRECTORY, JSON)
def _ls(*, cache_dir: str | None, as_json: bool) -> None:
    """List the caches, with their size and last use."""
    base = _base(cache_dir)
    rows, named = [], named_by_processes()
    for directory in sorted(stored(base), key=lambda it: -it.last_use_s):
        usage = usage_of(directory)
        with not_in_use(directory, named) as free:
            rows.append((directory, usage, not free))
    if as_json:
        _print_json(
            base=base,
            caches=[
                {**_named(it), **usage._asdict(), "last_use_s": it.last_use_s, "in_use": used}
                for it, usage, used in rows
            ],
        )
        return
    if not rows:
        click.echo(f"{base}: nothing is kept here yet")
        return
    heads = ("cache", "key", "files", "size", "last use", "")
    cells = [
        (it.cache, it.key, str(usage.files), size(usage.size_bytes), _ago(it), "in use" * used)
        for it, usage, used in rows
    ]
    click.echo("\n".join([base, *align([heads, *cells], right=(2, 3))]))


@_subcommand(DIRECTORY, JSON)
def _du(*, cache_dir: str | None, as_json: bool) -> None:
    """Show the size on disk of each kind of file, and in all."""
    base = _base(cache_dir)
    found: dict[tuple[str, str], Usage] = {}
    for directory in stored(base):
        for kind, usage in usage_by_kind(directory).items():
            before = found.get((directory.cache, kind), Usage())
            found[directory.cache, kind] = Usage(
                before.files + usage.files, before.size_bytes + usage.size_bytes
            )
    total = sum([usage.size_bytes for usage in found.values()])
    if as_json:
        kinds = [{"cache": c, "kind": k, **usage._asdict()} for (c, k), usage in found.items()]
        _print_json(base=base, kinds=kinds, size_bytes=total, max_bytes=_max_bytes())
        return
    rows = [
        (cache, kind, str(usage.files), size(usage.size_bytes))
        for (cache, kind), usage in sorted(found.items())
    ]
    lines = align([("cache", "kind", "files", "size"), *rows], right=(2, 3)) if rows else []
    click.echo("\n".join([*lines, f"{base}: {size(total)} of {size(_max_bytes())}"]))


@_subcommand(
    [
        click.option("--max-size", type=Parsed(SIZE), help="Keep at most this much: 20GiB."),
        click.option(
            "--older-than",
            type=Parsed(POSITIVE_DURATION),
            help="Remove what is unused so long: 30d.",
        ),
    ],
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
    """Remove what was not used for longest, until the caches are small enough.

    Without options to the size that launches keep: 20 GiB, or XLAUNCH_CACHE_MAX_SIZE. With
    --older-than alone only by age. A running launch keeps all files of the last day.
    """
    base = _base(cache_dir)
    if max_size is None and older_than is None:
        max_size = _max_bytes()
    found = prune(base, max_bytes=max_size, older_than_s=older_than, dry_run=dry_run)
    _show_removals(base, found, dry_run=dry_run, as_json=as_json)


@_subcommand([click.argument("caches", nargs=-1, metavar="[CACHE...]")], DIRECTORY, DRY_RUN, JSON)
def _clear(*, caches: tuple[str, ...], cache_dir: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove whole caches, all of them if none is named. Those in use are kept."""
    for name in caches:
        _check_name(name)
    base = _base(cache_dir)
    wanted = [it for it in stored(base) if not caches or it.cache in caches]
    found = clear(base, wanted, dry_run=dry_run)
    kept = [it for it in wanted if it not in {removal.directory for removal in found}]
    for directory in kept:
        say(f"warning: {directory.path} is in use and kept")
    _show_removals(base, found, dry_run=dry_run, as_json=as_json)


@_subcommand([click.option("--fix", is_flag=True, help="Remove what is damaged.")], DIRECTORY, JSON)
def _verify(*, fix: bool, cache_dir: str | None, as_json: bool) -> int:
    """Check owner, mode and format of every file.

    The exit code is 1 if something is wrong. Imported files are compared with their SHA-256. Nothing is loaded or unpickled. --fix removes
    damaged files and stale locks: libraries compile again what they miss.
    """
    from xlaunch.cache.check import verify

    base = _asked_base(cache_dir)
    problems = verify(base, fix=fix)
    if as_json:
        _print_json(base=base, problems=[problem._asdict() for problem in problems])
    else:
        for problem in problems:
            click.echo(f"{problem.path}: {problem.what}{' (fixed)' if problem.fixed else ''}")
        left = sum([not problem.fixed for problem in problems])
        files = sum([usage_of(it).files for it in stored(base)])
        click.echo(
            f"{base}: {counted(files, 'file')}, "
            + (f"{counted(left, 'problem')} left" if left else "whole")
        )
    return int(any(not problem.fixed for problem in problems))


@_subcommand(PYTHON, JSON)
def _fingerprint(*, python: str | None, as_json: bool) -> None:
    """Print the keys of the caches here, and what each is made of."""
    found = fingerprint(*_here(python))
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for name, value in found["caches"].items():
        click.echo(f"{name}: {value['key']}")
        for part, text in value["parts"].items():
            click.echo(f"  {part}: {text}")


@_subcommand(
    [
        click.argument("file"),
        click.option("--sign", metavar="KEY", help="Sign with this private SSH key (ssh-keygen)."),
        click.option("--only", metavar="CACHE", multiple=True, help="Only this cache; repeatable."),
        click.option(
            "--no-weights", is_flag=True, help="Leave out what contains the weights of models."
        ),
    ],
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
    cache_dir: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Write the caches for this machine and environment to FILE.

    FILE is a .tar or a .tar.gz. What `xruntime.optimize` compiled contains the model's weights:
    the last line says how much of FILE they are.
    """
    from xlaunch.cache.bundle import export

    for name in only:
        _check_name(name)
    base = _base(cache_dir)
    keys = {(name, it["key"]) for name, it in fingerprint(*_here(python))["caches"].items()}
    wanted = [
        it
        for it in stored(base)
        if (it.cache, it.key) in keys
        and (not only or it.cache in only)
        and not (no_weights and BY_NAME[it.cache].weights)
        and not is_empty(it.path)
    ]
    if not wanted:
        raise UsageError(
            f"{base} has nothing{' without weights' * no_weights} for this hardware and these versions; "
            "see xlaunch cache ls, and --python for another environment"
        )
    done = export(base, wanted, file, sign=sign)
    if as_json:
        _print_json(file=file, caches=[_named(it) for it in wanted], **done._asdict())
        return
    names = ", ".join([it.cache for it in wanted])
    weights = ""
    if done.weights_bytes:
        weights = f", of it {size(done.weights_bytes)} with a model's weights"
    click.echo(f"{file}: {names}; {counted(done.files, 'file')}, {size(done.size_bytes)}{weights}")


@_subcommand(
    [
        click.argument("file"),
        click.option(
            "--allowed-signers", metavar="FILE", help="Require a signature by one of these keys."
        ),
        click.option("--force", is_flag=True, help="Import what was made for other hardware, too."),
    ],
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

    base = _base(cache_dir)
    max_bytes = _max_bytes()
    done = import_bundle(
        base,
        file,
        *_here(python),
        allowed_signers=allowed_signers,
        force=force,
        max_bytes=max_bytes,
    )
    for removal in prune(base, max_bytes=max_bytes):
        what = f"{counted(removal.files, 'file')}, {size(removal.size_bytes)}"
        say(f"pruned to {size(max_bytes)}: {removal.directory.path}: {what}")
    if as_json:
        _print_json(base=base, **done._asdict())
        return
    click.echo(
        f"{base}: {counted(done.added, 'file')} added ({size(done.size_bytes)}), {done.kept} here already"
    )


command.add_command(warm_command, "warm")


def _asked_base(cache_dir: str | None) -> str:
    asked = resolved_options({"cache_dir": cache_dir}).values.get("cache_dir")
    base = asked or default_directory(os.environ)
    if base is None:
        raise UsageError(f"{NO_HOME} for caches: name one with --cache-dir")
    return private_base(base)


def _base(cache_dir: str | None) -> str:
    base = _asked_base(cache_dir)
    try:
        refusal = why_unusable(base)
    except OSError as error:
        raise XLaunchError(f"{base}: {error.strerror}") from None
    if refusal is not None:
        raise UsageError(f"caches in {base} are not used: {refusal}")
    return base


def _here(python: str | None) -> tuple[Hardware, Packages]:
    interpreter, _ = find_interpreter(python, os.environ)
    installed = find_installed(prefix_of(interpreter), interpreter, os.environ)
    return read_hardware(), installed.for_keys()


def _max_bytes() -> int:
    text = os.environ.get(MAX_SIZE_VARIABLE)
    if not text:
        return DEFAULT_MAX_BYTES
    try:
        number: int = SIZE.parse(text)
    except UsageError as error:
        raise UsageError(f"{MAX_SIZE_VARIABLE}: {error}") from None
    return number


def _check_name(name: str) -> None:
    if name not in BY_NAME:
        raise UsageError(f"there is no cache {name!r}; the caches are {', '.join(BY_NAME)}")


def _show_removals(base: str, found: Sequence[Removal], *, dry_run: bool, as_json: bool) -> None:
    total = sum([removal.size_bytes for removal in found])
    for line in foreign(base):
        say(f"warning: left alone: {line}")
    if as_json:
        removed = [
            {
                **_named(it.directory),
                "files": it.files,
                "size_bytes": it.size_bytes,
                "whole": it.whole,
            }
            for it in found
        ]
        _print_json(base=base, removed=removed, size_bytes=total, dry_run=dry_run)
        return
    verb = "would be removed" if dry_run else "removed"
    for it in found:
        click.echo(
            f"{it.directory.path}: {counted(it.files, 'file')}, {size(it.size_bytes)} {verb}"
        )
    click.echo(f"{base}: {size(total)} {verb}")


def _named(directory: CacheDirectory) -> dict[str, str]:
    return directory._asdict()


def _ago(directory: CacheDirectory) -> str:
    seconds = max(0.0, time.time() - directory.last_use_s)
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "now"


def _print_json(**values: Any) -> None:
    click.echo(json.dumps({"schema_version": 1, **values}, indent=1))
