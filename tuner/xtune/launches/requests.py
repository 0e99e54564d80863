# SPDX-License-Identifier: Apache-2.0
"""The failed requests in the output of a load generator.

A request failed if it had no answer, or one with a status from 400 on. Statuses 429 and 503 are counted
apart where the generator tells statuses: with them a service refuses load that it cannot take.

Not counted: what a generator ends itself when its time is up (oha's "aborted due to deadline"), and ab's
answers of another length than the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

REJECTING = (429, 503)
FAILED_FROM = 400
ENDED_BY_ITSELF = "aborted due to deadline"

ERRORS, REJECTED = "errors", "rejected"
"""Names of the shares in requirements. **Ex.:** ``--require 'errors<=1%'``."""


class Requests(NamedTuple):
    """Requests of one or several generators."""

    made: int
    failed: int
    """Without those in `rejected`."""
    rejected: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """The shares of failed and rejected requests in percent, by the names of requirements."""
        made = max(self.made, 1)
        return {ERRORS: 100.0 * self.failed / made, REJECTED: 100.0 * self.rejected / made}

    def __str__(self) -> str:
        """**Ex.:** ``12 of 300 requests failed, 74 were rejected (429, 503)``."""
        rejected = f", {self.rejected:,} were rejected (429, 503)" if self.rejected else ""
        return f"{self.failed:,} of {self.made:,} requests failed{rejected}"


def requests_of(outputs: Sequence[str]) -> Requests | None:
    """The requests of all generators; None if one of them is not known, so that errors are not seen."""
    found = [_read(output) for output in outputs]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return Requests(*map(sum, zip(*known, strict=True)))


def _read(output: str) -> Requests | None:
    return next((made for read in GENERATORS.values() if (made := read(output)) is not None), None)


def _count(pattern: str, output: str) -> int | None:
    """The last number of the pattern's first group; None without one."""
    numbers = re.findall(pattern, output, re.MULTILINE)
    return int(numbers[-1].replace(",", "")) if numbers else None


def _by_status(counts: Iterable[tuple[str, str]], without_answer: int = 0) -> Requests:
    """Requests from pairs of a status and a count; a status below 100 stands for no answer."""
    made = failed = without_answer
    rejected = 0
    for status_text, count_text in counts:
        status, count = int(status_text), int(count_text)
        made += count
        if status in REJECTING:
            rejected += count
        elif status >= FAILED_FROM or status < 100:
            failed += count
    return Requests(made, failed, rejected)


def _wrk(output: str) -> Requests | None:
    answered = _count(r"^\s*(\d+) requests in ", output)
    if answered is None:
        return None
    sockets = re.findall(r"^\s*Socket errors: (.*)", output, re.MULTILINE)
    lost = sum(map(int, re.findall(r"\d+", sockets[-1]))) if sockets else 0
    return Requests(
        answered + lost, lost + (_count(r"Non-2xx or 3xx responses: (\d+)", output) or 0)
    )


def _hey_or_oha(output: str) -> Requests | None:
    """hey, oha and, for gRPC, ghz, whose statuses are words."""
    heads = r"^\s*(?:Status code|Error) distribution:\s*$"
    if not re.search(heads, output, re.MULTILINE):
        return None
    statuses = re.findall(r"^\s*\[(\w+)\]\s+(\d+) responses", output, re.MULTILINE)
    words = [(word, int(count)) for word, count in statuses if not word.isdigit()]
    if words:
        made = sum([count for _, count in words])
        return Requests(made, sum([count for word, count in words if word != "OK"]))
    _, _, errors = output.rpartition("Error distribution:")
    listed = re.findall(r"^\s*\[(\d+)\]\s+(.*)", errors, re.MULTILINE)
    lost = [int(count) for count, why in listed if ENDED_BY_ITSELF not in why]
    return _by_status(statuses, sum(lost) if "Error distribution:" in output else 0)


def _ab(output: str) -> Requests | None:
    made = _count(r"^Complete requests:\s+(\d+)", output)
    if made is None:
        return None
    failed = _count(r"^Failed requests:\s+(\d+)", output) or 0
    other_length = _count(r"^\s+\(Connect: .*Length: (\d+)", output) or 0
    return Requests(
        made, failed - other_length + (_count(r"^Non-2xx responses:\s+(\d+)", output) or 0)
    )


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
    made, failed = map(int, totals[-1])
    statuses = "|".join(map(str, REJECTING))
    listed = re.findall(rf"^\s*(\d+)\s+.*HTTPError\('(?:{statuses}) ", output, re.MULTILINE)
    rejected = sum(map(int, listed))
    return Requests(made, failed - rejected, rejected)


def _vllm(output: str) -> Requests | None:
    failed = _count(r"^Failed requests:\s+(\d+)", output)
    succeeded = _count(r"^Successful requests:\s+(\d+)", output)
    if failed is None or succeeded is None:
        return None
    return Requests(succeeded + failed, failed)


def _h2load(output: str) -> Requests | None:
    made = _count(r"^requests: (\d+) total,", output)
    failed = _count(r"^requests: .* (\d+) failed,", output)
    return None if made is None or failed is None else Requests(made, failed)


def _siege(output: str) -> Requests | None:
    failed = _count(r"failed[_ ]transactions\"?:\s+(\d+)", output.lower())
    made = _count(r"^\s*(?:\{\s*)?\"?transactions\"?:\s+(\d+)", output.lower())
    return None if made is None or failed is None else Requests(made + failed, failed)


def _vegeta(output: str) -> Requests | None:
    listed = re.findall(r"^Status Codes\s+\[code:count\]\s+(.*)", output, re.MULTILINE)
    return _by_status(re.findall(r"(\d+):(\d+)", listed[-1])) if listed else None


def _bombardier(output: str) -> Requests | None:
    counts = re.findall(r"\b([1-5])xx - (\d+)", output)
    if not counts:
        return None
    made = sum([int(count) for _, count in counts])
    failed = sum([int(count) for hundreds, count in counts if int(hundreds) >= 4])
    others = _count(r"\bothers - (\d+)", output) or 0
    return Requests(made + others, failed + others)


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
