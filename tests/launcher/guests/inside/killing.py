# SPDX-License-Identifier: Apache-2.0
"""Kills a launch without warning, at one moment after the other, and prints who outlived it.

    killing.py GROUP VICTIMS OCCUPANT_OPTIONS...

VICTIMS: keeper, supervisor, or both as keeper,supervisor. The launch lives in the control group
GROUP, where the kernel counts its processes whatever they do. It is killed when that count first
reaches 1, then 2, and so on until it is complete. Prints one line of JSON for each launch.
"""

import json
import os
import signal
import subprocess
import sys
import time

INSTANCES = 3
PATIENCE_S = 30

group, victims, occupant = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
program = os.path.join(os.path.dirname(__file__), "occupant.py")
code = (
    f"open('{group}/cgroup.procs', 'w').write('0')\n"
    "import sys, xlaunch.cli\n"
    "xlaunch.cli.main(sys.argv[1:])"
)
command = [sys.executable, "-c", code, "--instances", str(INSTANCES), "--ncores", "1"]
command += ["--", sys.executable, program, "--stay", "600", *occupant]
complete = 2 + INSTANCES * (2 if "--daemon" in occupant else 1)


def members():
    with open(f"{group}/cgroup.procs") as file:
        return [int(line) for line in file]


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


for count in range(1 if victims == ["keeper"] else 2, complete + 1):
    launch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reached = wait_until(lambda wanted=count: len(members()) >= wanted)
    pids = {"keeper": launch.pid, "supervisor": child_of(launch.pid) if count > 1 else None}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    code = launch.wait()
    wait_until(lambda: not members())
    left = [name(pid) for pid in members()]
    print(json.dumps({"count": count, "reached": reached, "code": code, "left": left}), flush=True)
    for pid in members():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not members())
