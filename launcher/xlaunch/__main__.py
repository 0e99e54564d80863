# SPDX-License-Identifier: Apache-2.0
"""``python -m xlaunch`` is ``xlaunch``."""

from xlaunch.cli import main

if __name__ == "__main__":
    main()
