# SPDX-License-Identifier: Apache-2.0
"""``python -m xruntime COMMAND`` reports on the process that it runs in.

``xlaunch --allocator jemalloc -m xruntime allocator`` shows what a program started this way would find.
"""

from xruntime.cli import main

if __name__ == "__main__":
    main()
