# SPDX-License-Identifier: Apache-2.0
"""Print the directory of the package xruntime, without importing it, between two marks (see `--optimize`).

The mark, the one argument, tells the answer from what a sitecustomize prints.
"""

import os
import sys

sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]

import importlib.util  # noqa: E402 - after the line above

if __name__ == "__main__":
    spec = importlib.util.find_spec("xruntime")
    package = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    os.write(1, os.fsencode(sys.argv[1] + package + sys.argv[1]))
