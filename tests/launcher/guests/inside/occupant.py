# SPDX-License-Identifier: Apache-2.0
"""An instance for the tests: runs, touches memory, and prints what the kernel says of both.

    occupant.py [--everywhere] [--mib N] [--on CPU] [--stay S] [--daemon]
    occupant.py --with bind 0,2 PROGRAM...

--everywhere runs a thread on each CPU of the mask, --on moves to a CPU before memory is touched,
--daemon leaves a process in a session of its own behind. --with runs a program under a memory
policy, as numactl does.
"""

import argparse
import ctypes
import json
import mmap
import os
import re
import sys
import threading
import time

SET_MEMPOLICY = 238
GET_MEMPOLICY = 239
POLICIES = ("default", "preferred", "bind", "interleave", "local")
MAX_NODES = 1024

libc = ctypes.CDLL(None, use_errno=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--everywhere", action="store_true")
    parser.add_argument("--mib", type=int, default=0)
    parser.add_argument("--on", type=int)
    parser.add_argument("--stay", type=float, default=0)
    parser.add_argument("--daemon", action="store_true")
    options = parser.parse_args()
    # As libraries read it, or count; the start-up hook takes it out of os.environ.
    with open("/proc/self/environ", encoding="utf-8") as own:
        given = dict(it.split("=", 1) for it in own.read().split("\0") if it)
    said = {
        "index": int(os.environ.get("XLAUNCH_INSTANCE_INDEX", "-1")),
        "pid": os.getpid(),
        "mask": status("Cpus_allowed_list"),
        "memory_nodes": status("Mems_allowed_list"),
        "threads": given.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0)))),
        "policy": policy(),
    }
    if options.daemon and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    if options.everywhere:
        said["ran_on"] = run_everywhere()
    if options.on is not None:
        os.sched_setaffinity(0, {options.on})
    if options.mib:
        said["line"], said["pages"] = touch(options.mib << 20)
    print(json.dumps(said), flush=True)
    time.sleep(options.stay)
    os._exit(0)  # Python's own end would wait for the threads


def status(name):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def policy():
    """The policy's name and its nodes, as get_mempolicy(2) tells."""
    mode = ctypes.c_int()
    mask = (ctypes.c_ulong * (MAX_NODES // 64))()
    if libc.syscall(GET_MEMPOLICY, ctypes.byref(mode), mask, ctypes.c_ulong(MAX_NODES), None, 0):
        raise OSError(ctypes.get_errno(), "get_mempolicy")
    return [POLICIES[mode.value], [n for n in range(MAX_NODES) if mask[n // 64] >> n % 64 & 1]]


def run_with(name, nodes, *command):
    """Become `command`, with that policy."""
    mask = ctypes.c_ulong(sum(1 << int(node) for node in nodes.split(",")))
    if libc.syscall(SET_MEMPOLICY, POLICIES.index(name), ctypes.byref(mask), ctypes.c_ulong(65)):
        raise OSError(ctypes.get_errno(), "set_mempolicy")
    os.execv(command[0], command)


def run_everywhere():
    """Have a thread run on each CPU of the mask, and stay; the CPUs that they say they ran on."""
    ran_on, done = [], threading.Semaphore(0)

    def run(cpu):
        os.sched_setaffinity(0, {cpu})
        while time.thread_time() < 0.03:
            pass
        ran_on.append(libc.sched_getcpu())
        done.release()
        threading.Event().wait()

    cpus = os.sched_getaffinity(0)
    for cpu in cpus:
        threading.Thread(target=run, args=(cpu,), daemon=True).start()
    for _ in cpus:
        done.acquire()
    return sorted(ran_on)


def touch(size):
    """Touch `size` new bytes: their line of numa_maps, and the pages on each node."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # so that it shares no line with other memory
    for start in range(0, size, mmap.PAGESIZE):
        memory[start] = 1
    address = f"{ctypes.addressof(ctypes.c_char.from_buffer(memory)):08x}"
    with open("/proc/self/numa_maps") as file:
        line = next(line for line in file if line.startswith(address))
    return line, {int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)}


if sys.argv[1:2] == ["--with"]:
    run_with(*sys.argv[2:])
main()
