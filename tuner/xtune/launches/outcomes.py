# SPDX-License-Identifier: Apache-2.0
"""How a launch ended, and what was recorded besides its values, from xlaunch's report."""

from __future__ import annotations

from collections.abc import Iterable

from xlaunch.report import InstanceReport, Report
from xtune.launches.announcements import MARK
from xtune.launches.launch import Outcome, Secondary
from xtune.launches.readings import MemoryWatch
from xtune.launches.watching import Watched

KILLED = 128 + 9
"""Exit code after SIGKILL, of the program or of a child whose code it returns."""


def secondary_of(report: Report, joules: float | None) -> Secondary:
    """Resources that the launch used."""
    instances = report.instances
    peaks = [one.peak_rss_bytes for one in instances]
    return Secondary(
        # Without the launcher's own start and end.
        wall_s=max([one.wall_s for one in instances], default=report.wall_s),
        cpu_s=_total(one.cpu_s for one in instances),
        peak_rss_bytes=None if None in peaks or not peaks else sum(filter(None, peaks)),
        minor_faults=_to_int(_total(one.minor_faults for one in instances)),
        major_faults=_to_int(_total(one.major_faults for one in instances)),
        energy_j=joules,
    )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown or there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def failure_of(
    report: Report, watched: Watched, memory: MemoryWatch, said: str
) -> tuple[Outcome, str] | None:
    """The outcome of a failed launch, and why; None if it succeeded."""
    if watched.ended_as is not None:
        return watched.ended_as, watched.reason
    # An instance that the system had no process for is not in the report.
    if sum(one.started for one in report.instances) < report.count:
        return Outcome.NOT_STARTED, f"{report.reason}: {_last_line(said)}"
    if report.exit_code == 0:
        return None
    killed = any(map(_was_killed, report.instances))
    why = memory.explain(killed=killed, stderr=said)
    if why is not None:
        return Outcome.OUT_OF_MEMORY, f"{report.reason}: {why}"
    return Outcome.CRASHED, report.reason


def _was_killed(instance: InstanceReport) -> bool:
    return instance.signal == "SIGKILL" or instance.exit_code == KILLED


def _last_line(text: str) -> str:
    lines = text.splitlines()
    return lines[-1] if lines else "it printed nothing"


def describe_unseen(metric: str, report: Report) -> str:
    """Explain that a metric was not printed, with the lines that were."""
    if metric.startswith(MARK):
        wanted = f"no value was announced by {metric!r} with a number on the next line"
    else:
        wanted = f"no value of {metric!r} was found"
    if not report.lines_seen:
        return f"{wanted}; nothing with a number was printed or reported"
    return f"{wanted}; the last lines with numbers: {' | '.join(report.lines_seen)}"
