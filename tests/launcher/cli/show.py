# SPDX-License-Identifier: Apache-2.0
"""A program for the tests: tells, as one line of JSON, what it was started with."""

import json
import os
import signal
import sys

# One write a line: instances and ranks share a pipe, and `python -u` writes each piece by itself.
sys.stdout.write(
    json.dumps(
        {
            "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
            "name": sys.argv[0],
            "python": sys.orig_argv[0],
            "env": dict(os.environ),
            "cpus": sorted(os.sched_getaffinity(0)),
            "stdin": os.readlink("/proc/self/fd/0"),
            "stdin_text": "" if sys.stdin.isatty() else sys.stdin.read(),
            "pid": os.getpid(),
            "parent": os.getppid(),
            "descriptors": sorted(
                int(name)
                for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")  # not the one of this listing
            ),
            "sigint_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        }
    )
    + "\n"
)
sys.stdout.flush()
