# SPDX-License-Identifier: Apache-2.0
"""Kills a launch without warning, at one moment after the other, and prints who outlived it.

    killing.py GROUP VICTIMS OCCUPANT_OPTIONS...

VICTIMS: keeper, supervisor, or both as keeper,supervisor. The launch lives in the control group
GROUP, where the kernel counts its processes whatever they do. One launch is killed when that count
first reaches 1, the next at 2, and so on; the last when every instance has written its line.
Prints one line of JSON for each launch, and ends with the first that leaves somebody behind.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

INSTANCES = 3
PATIENCE_S = 20

group, victims, occupant = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
program = os.path.join(os.path.dirname(__file__), "occupant.py")
entering = (
    f"open('{group}/cgroup.procs', 'w').write('0')\n"
    "import sys, xlaunch.cli\n"
    "xlaunch.cli.main(sys.argv[1:])"
)
options = ["--instances", str(INSTANCES), "--ncores", "1"]
instance = ["--", sys.executable, program, "--stay", "600", *occupant]
complete = 2 + INSTANCES * (2 if "--daemon" in occupant else 1)


def members():
    with open(f"{group}/cgroup.procs") as file:
        return [int(line) for line in file]


def lines(directory):
    return sum(os.path.getsize(entry) > 0 for entry in os.scandir(directory) if "out" in entry.name)


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


def name(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read()
    except OSError:
        return f"{pid} (gone since)"


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


for count in range(1 if victims == ["keeper"] else 2, complete + 2):
    # Into files: of a broken pipe the instances would end by themselves.
    logs = tempfile.mkdtemp()
    launch = subprocess.Popen(
        [sys.executable, "-c", entering, *options, "--log-dir", logs, *instance],
        stderr=subprocess.DEVNULL,
    )
    if count <= complete:
        reached = wait_until(lambda wanted=count: len(members()) >= wanted)
    else:
        reached = wait_until(lambda directory=logs: lines(directory) == INSTANCES)
    pids = {"keeper": launch.pid, "supervisor": child_of(launch.pid) if count > 1 else None}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    wait_until(lambda process=launch: process.poll() is not None and not members())
    left = [name(pid) for pid in members()]
    moment = {"count": count, "reached": reached, "code": launch.returncode, "left": left}
    print(json.dumps(moment), flush=True)
    if left:
        break
