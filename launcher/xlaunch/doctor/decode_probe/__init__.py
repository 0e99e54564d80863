# SPDX-License-Identifier: Apache-2.0
"""What `xlaunch doctor --device` has in a Python program to see the decoding of language models."""

from __future__ import annotations

import os

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""For PYTHONPATH: Python's module `site` imports its ``sitecustomize``."""

VARIABLE = "XLAUNCH_DECODE_PROBE"
"""The file that it writes."""
