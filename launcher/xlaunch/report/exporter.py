# SPDX-License-Identifier: Apache-2.0
"""Exports the state of a run for Prometheus: `--prometheus-file` and `--prometheus-port`.

A process of its own, because a server needs threads and the supervisor forks. It reads the socket of the run,
and ends with it:

    python -m xlaunch.report.exporter SOCKET [--file FILE] [--port PORT] [--cpus LIST]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from xlaunch.console import say
from xlaunch.errors import XLaunchError
from xlaunch.files import write_whole
from xlaunch.report.run_client import STATE, ask
from xlaunch.text import parse_cpu_list

ADDRESS = "127.0.0.1"
FILE_INTERVAL_S = 15.0
"""Time between two versions of the file: the usual interval of a scrape."""
LOOK_INTERVAL_S = 1.0
"""How often it looks whether the run has ended."""

Families = tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, str], ...]
"""The kind, name and meaning of each, and the key of its value in the state of an instance or the group."""

OF_INSTANCE: Families = (
    (GaugeMetricFamily, "xlaunch_instance_ready", "Whether the instance is ready.", "ready"),
    (CounterMetricFamily, "xlaunch_instance_cpu_seconds", "CPU time of its processes.", "cpu_s"),
    (GaugeMetricFamily, "xlaunch_instance_resident_memory_bytes", "Resident memory of its processes.", "rss_bytes"),
    (CounterMetricFamily, "xlaunch_instance_restarts", "How often it was started again.", "restarts"),
    (GaugeMetricFamily, "xlaunch_instance_failed_probes", "Failed probes in a row.", "failed_probes"),
)  # fmt: skip
OF_CGROUP: Families = (
    (GaugeMetricFamily, "xlaunch_cgroup_cpu_limit", "CPU limit of the control group.", "cpu_limit"),
    (CounterMetricFamily, "xlaunch_cgroup_periods", "Periods of the limit.", "periods"),
    (CounterMetricFamily, "xlaunch_cgroup_throttled_periods", "Periods in which the group was stopped.", "throttled_periods"),
    (CounterMetricFamily, "xlaunch_cgroup_throttled_seconds", "For how long it was stopped.", "throttled_s"),
)  # fmt: skip


class RunCollector:
    """Asks the run at each scrape."""

    def __init__(self, path: str) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """The metrics; `xlaunch_up` alone if the run does not answer."""
        try:
            state = ask(self._path, STATE)
        except XLaunchError:
            yield GaugeMetricFamily("xlaunch_up", "Whether the run answers.", value=0)
            return
        yield GaugeMetricFamily("xlaunch_up", "Whether the run answers.", value=1)
        meaning = "Whether at least half of the instances are ready."
        yield GaugeMetricFamily("xlaunch_ready", meaning, value=state["ready"])
        for kind, name, meaning, key in OF_INSTANCE:
            family = kind(name, meaning, labels=["instance"])
            for instance in state["instances"]:
                family.add_metric([str(instance["index"])], instance[key])
            yield family
        for kind, name, meaning, key in OF_CGROUP if state["cgroup"] else ():
            if state["cgroup"][key] is not None:
                yield kind(name, meaning, value=state["cgroup"][key])


def main() -> int:
    """Export until the process that started this one has ended, or a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--file")
    parser.add_argument("--port", type=int)
    parser.add_argument("--cpus", type=parse_cpu_list)
    arguments = parser.parse_args()
    supervisor = os.getppid()
    if arguments.cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, arguments.cpus)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(arguments.socket))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if arguments.port is not None:
            start_http_server(arguments.port, addr=ADDRESS, registry=registry)
        due = 0.0
        while os.getppid() == supervisor:
            if arguments.file is not None and time.monotonic() >= due:
                due = time.monotonic() + FILE_INTERVAL_S
                write_whole(arguments.file, generate_latest(registry))
            time.sleep(LOOK_INTERVAL_S)
    except OSError as error:
        say(f"error: metrics are not exported: {error}")
        return XLaunchError.exit_code
    finally:
        if arguments.file is not None:  # so that nobody takes the last values for today's
            with contextlib.suppress(OSError):
                os.unlink(arguments.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
