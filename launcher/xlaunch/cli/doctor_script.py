# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor FILE_OR_DIRECTORY...`: the findings in scripts, and the explanation of a rule."""

from __future__ import annotations


def check_scripts(
    paths: tuple[str, ...],
    *,
    hints: bool,
    select: str | None,
    ignore: str | None,
    output_format: str,
) -> int:
    """Print the findings in files and directories; 1 if there are any."""
    raise NotImplementedError


def explain_rule(code: str) -> int:
    """Print what a rule finds, with a failing and a passing example."""
    raise NotImplementedError
