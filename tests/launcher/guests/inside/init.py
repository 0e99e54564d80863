# SPDX-License-Identifier: Apache-2.0
"""The guest's init: readies the system, then does what comes over the second serial line.

A request is a line of JSON, and so is the answer: see `serve`. The first process only reaps, as an
init must; when the one that answers ends, the guest is switched off.
"""

import ctypes
import glob
import json
import os
import subprocess
import tty

MOUNTS = (
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("tmpfs", "/tmp", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
)
POWER_OFF = 0x4321FEDC

libc = ctypes.CDLL(None, use_errno=True)


def mount(kind, directory, options):
    if libc.mount(kind.encode(), directory.encode(), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} on {directory}")


def serve():
    """Answer until the line ends.

    {"run": [...], "env": {...}, "group": directory, "timeout_s": 60} -> {"code", "stdout", "stderr"}
    {"read": path} -> {"text"};  {"write": path, "text": ...} -> {}
    {"make": directory} -> {};  {"remove": directory} -> {}
    {"mount": kind, "directory": ..., "options": ...} -> {};  what failed -> {"error": text}
    """
    line = os.open("/dev/ttyS1", os.O_RDWR)
    tty.setraw(line)
    with open(line, "r+b", buffering=0) as raw:
        raw.write(b'{"ready": true}\n')
        pending = b""
        while data := raw.read(4096):
            pending += data
            while b"\n" in pending:
                request, _, pending = pending.partition(b"\n")
                send(raw, json.dumps(answer(json.loads(request))).encode() + b"\n")


def send(raw, data):
    while data:
        data = data[raw.write(data) :]


def answer(request):
    try:
        if "run" in request:
            return run(**request)
        if "read" in request:
            with open(request["read"]) as file:
                return {"text": file.read()}
        if "write" in request:
            with open(request["write"], "w") as file:
                file.write(request["text"])
        if "make" in request:
            os.makedirs(request["make"], exist_ok=True)
        if "remove" in request:
            os.rmdir(request["remove"])
        if "mount" in request:
            mount(request["mount"], request["directory"], request["options"])
        return {}
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def run(run, env, group, timeout_s):
    def enter_group():
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")

    done = subprocess.run(
        run,
        check=False,
        env=env,
        cwd="/tmp",
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        preexec_fn=enter_group if group else None,
    )
    return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def bring_up_cpus():
    """Bring up the CPUs that `maxcpus=` kept off at boot."""
    for path in glob.glob("/sys/devices/system/cpu/cpu*/online"):
        with open(path, "w") as file:
            file.write("1")


for entry in MOUNTS:
    mount(*entry)
bring_up_cpus()
server = os.fork()
if server == 0:
    serve()
    os._exit(0)
while os.wait()[0] != server:
    pass
libc.reboot(POWER_OFF)
