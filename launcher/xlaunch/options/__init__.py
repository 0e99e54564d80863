# SPDX-License-Identifier: Apache-2.0
"""The options of a launch: their table, the layers that set them, and preset files."""

from __future__ import annotations

from xlaunch.options.layers import Layer, Resolved, request_from, resolve
from xlaunch.options.table import OPTIONS, Group, Option

__all__ = ["OPTIONS", "Group", "Layer", "Option", "Resolved", "request_from", "resolve"]
