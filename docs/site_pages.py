# SPDX-License-Identifier: Apache-2.0
"""The pages of the site that no file in docs/ holds, made when mkdocs builds it.

A page for each command from its ``--help``, one for each public module from its docstrings, one of
the examples, and the files beside docs/ that its pages link to.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

COPIED = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "tests/README.md": "project/tests.md",
    "benchmarks/tuner/recordings/README.md": "project/recordings.md",
}
"""Files outside docs/, and their pages."""

MODULES = (
    "xlaunch",
    "xtune",
    "xruntime",
    "xruntime.allocator",
    "xruntime.nn",
    "xruntime.optim",
    "xruntime.optimization",
    "xruntime.quantization",
)
"""Modules whose public names have a page."""

HOMES = {"xtune.tune": "xtune.library.tune", "xtune.Trial": "xtune.launches.functions.Trial"}
"""Public names that their module brings in unseen by a reader of its source."""

LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def pages() -> Iterator[tuple[str, str]]:
    """The path of each page in the site, and its Markdown."""
    for source, target in COPIED.items():
        yield target, relinked((ROOT / source).read_text(), source, target)
    yield "examples.md", examples_page()
    for name in MODULES:
        yield f"reference/python/{name}.md", module_page(name)
    for program, run, commands in command_lines():
        yield (
            f"reference/commands/{program.replace(' ', '-')}.md",
            "\n".join(command_page(program, run, commands)),
        )


def command_lines() -> Iterator[tuple[str, Callable[[list[str]], object], list[str]]]:
    """Each program, what runs its command line, and its commands."""
    from xlaunch import cli as xlaunch_cli
    from xlaunch.cli import cache
    from xlaunch.options.definitions import COMMANDS
    from xruntime import cli as xruntime_cli
    from xtune import cli as xtune_cli

    of_cache = [f"cache {name}" for name in cache.command.commands]
    yield "xlaunch", xlaunch_cli.run, sorted([*COMMANDS, *of_cache])
    yield "xtune", xtune_cli.run, sorted(xtune_cli.COMMANDS)
    yield "python -m xruntime", xruntime_cli.run, sorted(xruntime_cli.commands.commands)


def command_page(
    program: str, run: Callable[[list[str]], object], commands: list[str]
) -> Iterator[str]:
    """A program's help, and that of each of its commands."""
    yield f"# `{program}`\n"
    for command in ("", *commands):
        shown = StringIO()
        with redirect_stdout(shown):
            run([*command.split(), "--help"])
        if command:
            yield f"## `{program} {command}`\n"
        yield f"```text\n{shown.getvalue()}```\n"
        if not command:
            yield from option_sections(program)


def option_sections(program: str) -> Iterator[str]:
    """The options of a program, each with an anchor: ``xlaunch.html#ncores``."""
    if program == "xlaunch":
        from xlaunch.cli import _command
    elif program == "xtune":
        from xtune.cli import _command
    else:
        return
    yield f"## Options of `{program}`\n"
    for parameter in _command("").params:
        names = [name for name in parameter.opts if name.startswith("--")]
        if names and not getattr(parameter, "hidden", False):
            words = " ".join([f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)])
            yield f"#### {words} {{#{names[0][2:]}}}\n\n{getattr(parameter, 'help', '')}\n"


def module_page(name: str) -> str:
    """The public names of a module, for mkdocstrings."""
    names = importlib.import_module(name).__all__
    modules = [one for one in names if f"{name}.{one}" in MODULES]
    lines = [
        f"# `{name}`\n",
        f"::: {name}\n    options:\n      members: false\n      show_root_heading: false\n",
    ]
    lines += [f"- [`{name}.{one}`]({name}.{one}.md)" for one in modules]
    for one in sorted(names, key=str.lower):
        if one not in modules:
            lines.append(f"\n::: {HOMES.get(f'{name}.{one}', f'{name}.{one}')}")
    return "\n".join(lines)


def examples_page() -> str:
    """Every script of examples/, with its docstring."""
    lines = ["# Examples\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text()
        summary = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        lines += [f"## `{path.name}`\n", f"{summary}\n"]
        lines += [f'??? example "examples/{path.name}"\n', "    ```python"]
        lines += [f"    {line}".rstrip() for line in text.splitlines()]
        lines += ["    ```\n"]
    return "\n".join(lines)


def relinked(text: str, source: str, page: str) -> str:
    """The text of the file `source` of the repository, with links as its page `page` needs them."""

    def link(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside, anchor = place_in_site(path, anchor)
        written = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"{opening}{written}{anchor}{closing}"

    return LINK.sub(link, text)


def place_in_site(path: str, anchor: str) -> tuple[str, str]:
    """Where the site has a file of the repository; mkdocs complains about one that it has not."""
    if path == "README.md":
        return "index.md", anchor
    if path.startswith("examples/") and path.endswith(".py"):
        return "examples.md", f"#{posixpath.basename(path).replace('.', '')}"
    return COPIED.get(path, path.removeprefix("docs/")), anchor


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version at the foot of each page. Called by mkdocs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.copyright = f"xlaunch {project['version']}"
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages. Called by mkdocs."""
    from mkdocs.structure.files import File

    if importlib.util.find_spec("torch") is None:
        from mkdocs.exceptions import PluginError

        raise PluginError(
            "the site reads xruntime, which needs torch: pip install '.[docs,runtime,tune]'"
        )
    # Help is wrapped for 80 columns, wherever the site is built.
    os.environ["COLUMNS"] = "80"
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links of docs/ to files beside it to their pages. Called by mkdocs."""
    path = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return relinked(markdown, f"docs/{path}", path)
