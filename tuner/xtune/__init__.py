# SPDX-License-Identifier: Apache-2.0
"""Finds the best way to run a workload on a machine. Searching is not part of this version."""

from __future__ import annotations

__version__ = "0.1.0"
