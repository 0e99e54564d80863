# SPDX-License-Identifier: Apache-2.0
"""The numbers in the output of a load generator, such as wrk, hey or ``vllm bench serve``, and its failed requests.

A metric is read by its name, whatever its case, or by a regular expression:

    Requests/sec:   1510.46                 requests/sec
    Request throughput (req/s):      2.32   request throughput
    P99 TTFT (ms):                 364.32   p99(TTFT), or P99 TTFT
    99%   10.24ms;  99% in 0.0102 secs      p99, or p99(latency)

With a generator for each instance, rates are added; of times and percentiles the largest counts, of
other numbers the mean.

A request failed if it had no answer, or one with a status from 400 on. Statuses 429 and 503 are counted
apart where the generator tells statuses: with them a service refuses load that it cannot take. Not counted:
what a generator ends itself when its time is up (oha's "aborted due to deadline"), and ab's answers of
another length than the first one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from xlaunch.metrics.metric_lines import (
    SECONDS_AFTER_NUMBER,
    MetricKind,
    Value,
    convert,
    parse_metric,
)
from xtune.launches.summaries import Summary, in_seconds, unit_in

LATENCY = "latency"
"""The name of percentiles that are printed without one."""

REJECTING = (429, 503)
FAILED_FROM = 400
ENDED_BY_ITSELF = "aborted due to deadline"

ERRORS, REJECTED = "errors", "rejected"
"""Names of the shares in requirements. **Ex.:** ``--require 'errors<=1%'``."""

# Not the beginning of a longer number: 12,5 or 1 234.
_NUMBER = r"([-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?![.,-]?[0-9]| [0-9]{3})"
_UNIT = "|".join(sorted(SECONDS_AFTER_NUMBER, key=len, reverse=True))
_PERCENT = r"([0-9]{1,2}(?:\.[0-9]+)?)"
_PERCENTILE = re.compile(rf"\s*{_PERCENT}%+\s+(?:in\s+)?{_NUMBER}\s?({_UNIT})\s*")
_NAMED_PERCENTILE = re.compile(rf"\s*P{_PERCENT} ([\w /-]+?) \(({_UNIT})\):\s*{_NUMBER}\s*")


def summaries_of(outputs: Sequence[str], metrics: Sequence[str]) -> dict[str, Summary]:
    """The metrics with a value in every output, by name, and the percentiles of latencies.

    `metrics`: as for xlaunch's --metric. The last value of an output counts.
    """
    summaries = dict[str, Summary]()
    for text in metrics:
        metric = parse_metric(text)
        values = [_last(text, output) for output in outputs]
        seen = [value for value in values if value is not None]
        if seen and len(seen) == len(values):
            printed = next((value.unit for value in seen if value.unit), None)
            unit = printed or unit_in(metric.name)
            numbers = [convert(value, unit) for value in seen]
            total = fmean(numbers)
            if metric.kind is not MetricKind.VALUE:
                total = max(numbers) if metric.kind is MetricKind.TIME else math.fsum(numbers)
            summary = _summary(metric.name, metric.kind, unit, total)
            each = tuple([(number,) for number in numbers])
            summaries[metric.name] = summary._replace(printed_in=printed or "", values=each)
    for name, (percentiles, printed) in _percentiles(outputs).items():
        half = percentiles.get(50.0, _median_printed(summaries.get(name)))
        summary = _summary(name, MetricKind.TIME, "s", half)
        p90, p99 = percentiles.get(90.0), percentiles.get(99.0)
        summaries[name] = summary._replace(
            p90=p90, p99=p99, printed_in=printed, printed=percentiles
        )
    return summaries


def _median_printed(summary: Summary | None) -> float:
    """A latency that was printed without percentiles, in seconds; NaN if there is none with a unit."""
    if summary is None or summary.unit is None:
        return math.nan
    return in_seconds(summary.value, summary.unit)


def _last(text: str, output: str) -> Value | None:
    metric = parse_metric(text)
    patterns = [re.compile(pattern.pattern, re.IGNORECASE) for pattern in metric.patterns]
    in_any_case = metric._replace(patterns=tuple(patterns), named=False)
    labelled = re.compile(
        rf"\s*{re.escape(metric.name)}\s*(?:\((\w+(?:/\w+)?)\))?\s*[:=]\s*{_NUMBER}(.*)",
        re.IGNORECASE,
    )
    for line in reversed(output.splitlines()):
        match = labelled.fullmatch(line) if metric.named else None
        unit = match and (metric.unit_after(match[3]) or metric.unit_after(match[1] or ""))
        if match is not None and (unit or not re.match(r"[\w.]|\s[kKMG]\b", match[3])):
            return Value(float(match[2].replace(",", "")), unit)
        value = metric.read(line) or (in_any_case.read(line) if metric.named else None)
        if value is not None:
            return value
    return None


def _percentiles(outputs: Sequence[str]) -> dict[str, tuple[dict[float, float], str]]:
    """In seconds, by metric and percentile, the largest of all outputs; and the unit of the last one."""
    rows = dict[str, tuple[dict[float, float], str]]()
    for line in "\n".join(outputs).splitlines():
        if match := _PERCENTILE.fullmatch(line):
            name, percentile, number, unit = LATENCY, match[1], match[2], match[3]
        elif match := _NAMED_PERCENTILE.fullmatch(line):
            percentile, name, unit, number = match.groups()
        else:
            continue
        seconds = float(number.replace(",", "")) * SECONDS_AFTER_NUMBER[unit]
        row, _ = rows.get(name, ({}, ""))
        percent = float(percentile)
        rows[name] = {**row, percent: max(row.get(percent, 0.0), seconds)}, unit
    return rows


def summary_of_share(name: str, percent: float) -> Summary:
    """The summary of a share of all requests."""
    return _summary(name, MetricKind.VALUE, None, percent)._replace(values=((percent,),))


def _summary(name: str, kind: MetricKind, unit: str | None, value: float) -> Summary:
    """The summary of a value that the generator has computed itself."""
    return Summary(name, kind, unit if kind is MetricKind.TIME else None, value, mean=value)


class Requests(NamedTuple):
    """Requests of one or several generators."""

    made: int
    failed: int
    """Without those in `rejected`."""
    rejected: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """The shares of failed and rejected requests in percent, by the names of requirements."""
        requests = max(self.made, 1)
        return {ERRORS: 100.0 * self.failed / requests, REJECTED: 100.0 * self.rejected / requests}

    def __str__(self) -> str:
        """**Ex.:** ``12 of 300 requests failed, 74 were rejected (429, 503)``."""
        rejected = f", {self.rejected:,} were rejected (429, 503)" if self.rejected else ""
        return f"{self.failed:,} of {self.made:,} requests failed{rejected}"


def requests_of(outputs: Sequence[str]) -> Requests | None:
    """The requests of all generators; None if one of them is not known, so that errors are not seen."""
    readable: list[Requests] = []
    for output in outputs:
        requests = next(filter(None, (read(output) for read in GENERATORS.values())), None)
        if requests is None:
            return None
        readable.append(requests)
    return Requests(*map(sum, zip(*readable, strict=True))) if readable else None


def _count(pattern: str, output: str) -> int | None:
    """The last number of the pattern's first group; None without one."""
    numbers = re.findall(pattern, output, re.MULTILINE)
    return int(numbers[-1].replace(",", "")) if numbers else None


def _by_status(counts: Iterable[tuple[str, str]], without_answer: int = 0) -> Requests:
    """Requests from pairs of a status and a count; a status below 100 stands for no answer."""
    requests = failed = without_answer
    rejected = 0
    for status_text, count_text in counts:
        status, count = int(status_text), int(count_text)
        requests += count
        if status in REJECTING:
            rejected += count
        elif status >= FAILED_FROM or status < 100:
            failed += count
    return Requests(requests, failed, rejected)


def _wrk(output: str) -> Requests | None:
    answered = _count(r"^\s*(\d+) requests in ", output)
    if answered is None:
        return None
    sockets = re.findall(r"^\s*Socket errors: (.*)", output, re.MULTILINE)
    lost = sum(map(int, re.findall(r"\d+", sockets[-1]))) if sockets else 0
    refused = _count(r"Non-2xx or 3xx responses: (\d+)", output) or 0
    return Requests(answered + lost, lost + refused)


def _hey_or_oha(output: str) -> Requests | None:
    """hey, oha and, for gRPC, ghz, whose statuses are words."""
    heads = r"^\s*(?:Status code|Error) distribution:\s*$"
    if not re.search(heads, output, re.MULTILINE):
        return None
    statuses = re.findall(r"^\s*\[(\w+)\]\s+(\d+) responses", output, re.MULTILINE)
    words = [(word, int(count)) for word, count in statuses if not word.isdigit()]
    if words:
        requests = sum([count for _, count in words])
        return Requests(requests, sum([count for word, count in words if word != "OK"]))
    _, _, errors = output.rpartition("Error distribution:")
    listed = re.findall(r"^\s*\[(\d+)\]\s+(.*)", errors, re.MULTILINE)
    lost = [int(count) for count, why in listed if ENDED_BY_ITSELF not in why]
    return _by_status(statuses, sum(lost) if "Error distribution:" in output else 0)


def _ab(output: str) -> Requests | None:
    requests = _count(r"^Complete requests:\s+(\d+)", output)
    if requests is None:
        return None
    failed = _count(r"^Failed requests:\s+(\d+)", output) or 0
    other_length = _count(r"^\s+\(Connect: .*Length: (\d+)", output) or 0
    refused = _count(r"^Non-2xx responses:\s+(\d+)", output) or 0
    return Requests(requests, failed - other_length + refused)


def _k6(output: str) -> Requests | None:
    line = re.findall(r"http_req_failed\.*:\s+[\d.]+%\s+(.*)", output)
    numbers = re.findall(r"\d+", line[-1]) if line else []
    if len(numbers) != 2:
        return None
    first, second = map(int, numbers)
    # Before version 1: the failed ones, and the others. Since: 9 out of 45.
    return Requests(second if "out of" in line[-1] else first + second, first)


def _locust(output: str) -> Requests | None:
    totals = re.findall(r"^\s*Aggregated\s+(\d+)\s+(\d+)\([\d.]+%\)", output, re.MULTILINE)
    if not totals:
        return None
    requests, failed = map(int, totals[-1])
    statuses = "|".join(map(str, REJECTING))
    listed = re.findall(rf"^\s*(\d+)\s+.*HTTPError\('(?:{statuses}) ", output, re.MULTILINE)
    rejected = sum(map(int, listed))
    return Requests(requests, failed - rejected, rejected)


def _vllm(output: str) -> Requests | None:
    failed = _count(r"^Failed requests:\s+(\d+)", output)
    succeeded = _count(r"^Successful requests:\s+(\d+)", output)
    if failed is None or succeeded is None:
        return None
    return Requests(succeeded + failed, failed)


def _h2load(output: str) -> Requests | None:
    requests = _count(r"^requests: (\d+) total,", output)
    failed = _count(r"^requests: .* (\d+) failed,", output)
    return None if requests is None or failed is None else Requests(requests, failed)


def _siege(output: str) -> Requests | None:
    failed = _count(r"failed[_ ]transactions\"?:\s+(\d+)", output.lower())
    requests = _count(r"^\s*(?:\{\s*)?\"?transactions\"?:\s+(\d+)", output.lower())
    return None if requests is None or failed is None else Requests(requests + failed, failed)


def _vegeta(output: str) -> Requests | None:
    listed = re.findall(r"^Status Codes\s+\[code:count\]\s+(.*)", output, re.MULTILINE)
    return _by_status(re.findall(r"(\d+):(\d+)", listed[-1])) if listed else None


def _bombardier(output: str) -> Requests | None:
    counts = re.findall(r"\b([1-5])xx - (\d+)", output)
    if not counts:
        return None
    requests = sum([int(count) for _, count in counts])
    failed = sum([int(count) for hundreds, count in counts if int(hundreds) >= 4])
    others = _count(r"\bothers - (\d+)", output) or 0
    return Requests(requests + others, failed + others)


def _fortio(output: str) -> Requests | None:
    counts = re.findall(r"^Code\s+(-?\d+) : (\d+) \(", output, re.MULTILINE)
    return _by_status(counts) if counts else None


GENERATORS: dict[str, Callable[[str], Requests | None]] = {
    "wrk": _wrk,
    "hey, oha, ghz": _hey_or_oha,
    "ab": _ab,
    "k6": _k6,
    "locust": _locust,
    "vllm bench serve": _vllm,
    "h2load": _h2load,
    "siege": _siege,
    "vegeta": _vegeta,
    "bombardier": _bombardier,
    "fortio": _fortio,
}
"""The generators whose errors are seen."""
