# SPDX-License-Identifier: Apache-2.0
"""A rate in a program's output, which may be a better objective than wall time."""

from __future__ import annotations

import re

from xlaunch.metrics.metric_lines import parse_metric

_NAMES = re.compile(r"(?<![\w/])[A-Za-z]\w*/s(?:ec|econd)?(?!\w)|\b(?:fps|qps|rps|tps)\b")
_TRANSFERS = re.compile(r"[kmgt]?i?b(?:ytes?|its?)?/s.*", re.IGNORECASE)
"""Rates of downloads and files. **Ex.:** ``MB/s``."""


def rate_in(output: str) -> str | None:
    """The last rate that was printed, as --metric names it. **Ex.:** ``images/s``.

    None if there is none with a number.
    """
    for line in reversed(output.splitlines()):
        for name in reversed(_NAMES.findall(line)):
            if not _TRANSFERS.fullmatch(name) and parse_metric(name).read(line) is not None:
                return str(name)
    return None
