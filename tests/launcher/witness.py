# SPDX-License-Identifier: Apache-2.0
"""A program for the tests: writes down the signals it gets, one a line, until told to end.

    witness.py DIRECTORY [--ignore SIGTERM] [--child] [--daemon] [--exit-on SIGUSR2=3]

DIRECTORY/INDEX.log gets `ready`, then each signal's name. --child leaves a child of its own behind,
--daemon one in a session of its own; both ignore SIGHUP, and with --stubborn SIGTERM too.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

LEFT_ALONE = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
}  # fmt: skip

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("--ignore", action="append", default=[])
parser.add_argument("--exit-on", action="append", default=[])
parser.add_argument("--child", action="store_true")
parser.add_argument("--daemon", action="store_true")
parser.add_argument("--stubborn", action="store_true")
options = parser.parse_args()

index = os.environ.get("XLAUNCH_INSTANCE_INDEX", "alone")
log = os.open(
    os.path.join(options.directory, f"{index}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
)
exits = dict(entry.split("=") for entry in options.exit_on)

if options.child or options.daemon:
    ignored = [signal.SIGHUP] + ([signal.SIGTERM] if options.stubborn else [])
    code = (
        "import signal, sys, time\n"
        "for number in sys.argv[1:]: signal.signal(int(number), signal.SIG_IGN)\n"
        "print('set', flush=True)\n"
        "time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, *(str(int(number)) for number in ignored)],
        stdout=subprocess.PIPE,
        start_new_session=options.daemon,
    )
    child.stdout.readline()
    with open(os.path.join(options.directory, f"{index}.child"), "w") as file:
        file.write(str(child.pid))


def name_of(number):
    beyond = signal.SIGRTMIN < number < signal.SIGRTMAX
    return f"SIGRTMIN+{number - signal.SIGRTMIN}" if beyond else signal.Signals(number).name


def handle(number, _):
    name = name_of(number)
    os.write(log, f"{name}\n".encode())
    if name in exits:
        os._exit(int(exits[name]))
    if name in ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP") and name not in options.ignore:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


for number in signal.valid_signals() - LEFT_ALONE:
    signal.signal(number, handle)
os.write(log, b"ready\n")
while True:
    time.sleep(0.05)  # pause() would miss a signal that comes just before it
