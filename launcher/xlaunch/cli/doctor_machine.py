# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor`: the checks of the machine, grouped, the worst first."""

from __future__ import annotations


def check_machine(
    *,
    sysroot: str | None,
    imports: tuple[str, ...],
    python: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Print the checks; 1 if something serious was found."""
    raise NotImplementedError
