# SPDX-License-Identifier: Apache-2.0
"""The table in docs/caches.md is the table in the code."""

from __future__ import annotations

from pathlib import Path

from xlaunch.cache.table import CACHES, Cache, Part

PAGE = Path(__file__).parents[3] / "docs" / "caches.md"


def row(cache: Cache) -> str:
    """The line of a cache in the page."""
    parts = [part.value.replace("_", " ") for part in cache.parts if part is not Part.ARCHITECTURE]
    where = "always" if cache.vendor is None else f"with a GPU of {cache.vendor.value}"
    if cache.changes_behaviour:
        where = "with `--cache all`"
    variables = [cache.variable, *[f"{it.name}={it.value}" for it in cache.switches]]
    names = ", ".join([f"`{variable}`" for variable in variables])
    return f"| {cache.name} | {names} | {', '.join([*parts, *cache.packages])} | {where} |"


def test_the_page_lists_every_cache():
    text = PAGE.read_text()
    assert "\n".join([row(cache) for cache in CACHES]) + "\n\n" in text
