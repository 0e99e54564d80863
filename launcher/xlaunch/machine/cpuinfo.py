# SPDX-License-Identifier: Apache-2.0
"""The fields of ``/proc/cpuinfo``, each with the value of the first processor that has it."""

from __future__ import annotations


def parse_cpuinfo(text: str) -> dict[str, str]:
    """**Ex.:** ``{"processor": "0", "vendor_id": "AuthenticAMD", "cpu family": "25", ...}``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields
