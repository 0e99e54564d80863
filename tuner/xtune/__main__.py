# SPDX-License-Identifier: Apache-2.0
"""`python -m xtune` is `xtune`."""

from __future__ import annotations

import sys

from xtune.cli import main

if __name__ == "__main__":
    sys.exit(main())
