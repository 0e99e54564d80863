# SPDX-License-Identifier: Apache-2.0
"""Processes that take cores of a machine with eight at the same instant: a line for each, in JSON.

Arguments: the directory for records, how many processes, cores of each, whether they are exclusive.
Each line has the cores of one process, none if others hold them, or an unexpected error.
"""

import json
import os
import sys

from xlaunch import shared_host
from xlaunch.errors import XLaunchError
from xlaunch.machine import machine_of
from xlaunch.planning.request import HostRequest, Request

directory, count, ncores, exclusive = sys.argv[1], *map(int, sys.argv[2:])
shared_host.MAX_SHARED_S = shared_host.MAX_EXCLUSIVE_S = 60.0
request = Request.of("infer.py", ncores=ncores)
with machine_of(None, "core:8") as machine:
    pass
go_in, go_out = os.pipe()
end_in, end_out = os.pipe()
done_in, done_out = os.pipe()
for _ in range(count):
    if os.fork() == 0:
        os.close(go_out)
        os.close(end_out)
        os.read(go_in, 1)
        told: object = "ended by an error"
        try:
            placed = shared_host.plan_beside_others(
                request,
                machine,
                {},
                host=HostRequest(exclusive=bool(exclusive)),
                directory=directory,
            )
            told = placed.plan.instances[0].cpus if placed.lease else "no record"
        except XLaunchError as error:
            told = [] if "held by" in str(error) else str(error)
        finally:
            os.write(1, f"{json.dumps(told)}\n".encode())
            os.close(done_out)
            os.read(end_in, 1)  # its record counts until all have written theirs
            os._exit(0)
os.close(done_out)
os.close(go_out)
os.read(done_in, 1)
os.close(end_out)
for _ in range(count):
    os.wait()
