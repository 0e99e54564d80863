# SPDX-License-Identifier: Apache-2.0
"""XL05x: what has been replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Block, FileFacts, Function, Problem

_AMP = {
    f"torch.{device}.amp.{name}": (f"torch.amp.{name}", device)
    for device in ("cuda", "xpu", "cpu")
    for name in ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
}

_EXTENSION_WORDS = frozenset(("ipex", "intel", "installed", "spec"))
_VERSION_WORDS = frozenset(("version", "hasattr", "greater", "ge", "gte", "lt", "least"))
"""Parts of names in a condition that asks for what is installed, or for its version."""


def check_replaced(facts: FileFacts) -> Iterator[Problem]:
    """Imports and names with a successor."""
    yield from _archived_extension(facts)
    yield from _old_autocast(facts)


def _archived_extension(facts: FileFacts) -> Iterator[Problem]:
    seen = set()
    for name, node, block in facts.imports:
        if name.partition(".")[0] != "intel_extension_for_pytorch" or node in seen:
            continue
        seen.add(node)
        if not _is_optional(block, _EXTENSION_WORDS):
            yield (
                node,
                "XL050",
                "Intel's extension was archived in March 2026; torch 2.8 and newer run xpu devices "
                "themselves, and for CPUs use xruntime.optimize, or xruntime.compat.ipex, which has "
                "the extension's calls",
            )


def _old_autocast(facts: FileFacts) -> Iterator[Problem]:
    seen = set()
    for name, node, block in facts.imports:
        if name in _AMP and node not in seen and not _is_optional(block, _VERSION_WORDS):
            seen.add(node)
            yield node, "XL051", _use(name)
    for attribute, parent, block in facts.attributes:
        called = isinstance(parent, ast.Call) and parent.func is attribute
        if not called and not isinstance(parent, Function):  # as a decorator
            continue
        if attribute.attr not in ("autocast", "GradScaler", "custom_fwd", "custom_bwd"):
            continue
        full = facts.full(attribute, block.scope)
        if full in _AMP and not _is_optional(block, _VERSION_WORDS):
            yield attribute, "XL051", _use(full)


def _use(name: str) -> str:
    new, device = _AMP[name]
    argument = f'device_type="{device}"' if name.endswith(("fwd", "bwd")) else f'"{device}"'
    return (
        f"{name} is deprecated and works on one kind of device; use {new}({argument}), "
        f"or the device that the script chose"
    )


def _is_optional(block: Block, words: frozenset[str]) -> bool:
    """Whether code runs only where something is installed, or in some versions."""
    for around in block.ancestors():
        if isinstance(around.node, ast.Try | ast.TryStar) and around.part in ("body", "handlers"):
            caught = " ".join(
                ast.unparse(handler.type) if handler.type else "Exception"
                for handler in around.node.handlers
            )
            if any(
                word in caught for word in ("ImportError", "ModuleNotFound", "Exception", "Attr")
            ):
                return True
        if isinstance(around.node, ast.If | ast.IfExp) and words & set(
            re.findall(r"[a-z]+", ast.unparse(around.node.test).lower())
        ):
            return True
        # The other branch has the successor already.
        if isinstance(around.node, ast.If | ast.IfExp | ast.Try) and re.search(
            r"torch\.amp\b", ast.unparse(around.node)
        ):
            return True
    return False
