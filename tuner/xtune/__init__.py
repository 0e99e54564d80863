# SPDX-License-Identifier: Apache-2.0
"""Finds the best way to run a workload on a machine, with evidence: the command is `xtune`."""

from __future__ import annotations

__version__ = "0.1.0"
