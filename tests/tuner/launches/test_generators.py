# SPDX-License-Identifier: Apache-2.0
"""What is read from the output of wrk, hey and `vllm bench serve`."""

from __future__ import annotations

import pytest

from xtune.launches.generators import summaries_of
from xtune.launches.summaries import Summary

WRK = """\
Running 5s test @ http://127.0.0.1:8000/
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.82ms    2.13ms  15.37ms   82.36%
    Req/Sec     1.52k   175.40     1.78k    60.00%
  Latency Distribution
     50%  970.00us
     75%    3.67ms
     90%    5.87ms
     99%   10.24ms
  7517 requests in 5.00s, 835.54KB read
Requests/sec:   1510.46
Transfer/sec:    831.93KB
"""

HEY = """\

Summary:
  Total:	5.0021 secs
  Average:	0.0031 secs
  Requests/sec:	1,599.3242

Latency distribution:
  50% in 0.0021 secs
  90% in 0.0058 secs
  99% in 0.0102 secs

Status code distribution:
  [200]	8000 responses
"""

VLLM = """\
============ Serving Benchmark Result ============
Successful requests:                     100
Failed requests:                         0
Benchmark duration (s):                  12.50
Request throughput (req/s):              8.00
Output token throughput (tok/s):         1024.50
---------------Time to First Token----------------
Mean TTFT (ms):                          101.50
Median TTFT (ms):                        95.25
P99 TTFT (ms):                           364.32
-----Time per Output Token (excl. 1st token)------
P99 TPOT (ms):                           12.50
"""


def read(output: str, *metrics: str) -> dict[str, Summary]:
    return summaries_of([output], metrics)


@pytest.mark.parametrize(
    ("output", "metric", "value", "unit"),
    [
        (WRK, "requests/sec", 1510.46, None),
        (WRK, "Requests/sec", 1510.46, None),
        (WRK, r"(\d+) requests in", 7517, None),
        (WRK, r"rate:Requests/sec: +([0-9.]+)", 1510.46, None),
        (HEY, "requests/sec", 1599.3242, None),
        (HEY, "latency:average", 0.0031, "secs"),
        (WRK, "transfer/sec", 831.93, "KB"),
        (VLLM, "request throughput", 8.0, "req/s"),
        (VLLM, "Output token throughput", 1024.5, "tok/s"),
        (VLLM, "latency:P99 TTFT", 364.32, "ms"),
        (VLLM, "successful requests", 100, None),
    ],
)
def test_metrics_by_name_and_by_expression(
    output: str, metric: str, value: float, unit: str | None
) -> None:
    ((name, found),) = [
        (name, one) for name, one in read(output, metric).items() if one.p99 is None
    ]
    assert name in metric
    assert (found.value, found.unit or found.printed_in or None) == (value, unit)


@pytest.mark.parametrize(
    ("output", "p50", "p90", "p99"),
    [(WRK, 0.00097, 0.00587, 0.01024), (HEY, 0.0021, 0.0058, 0.0102)],
)
def test_percentiles_of_latency(output: str, p50: float, p90: float, p99: float) -> None:
    found = read(output)["latency"]
    assert (found.value, found.p90, found.p99, found.unit) == pytest.approx((p50, p90, p99, "s"))


def test_percentiles_with_a_name() -> None:
    found = read(VLLM)
    assert {name: one.p99 for name, one in found.items()} == pytest.approx(
        {"TTFT": 0.36432, "TPOT": 0.0125}
    )


@pytest.mark.parametrize("number", ["12,5", "1.234,5", "1 234.5", "12-15"])
def test_a_part_of_a_number_is_not_read(number: str) -> None:
    output = f"Requests/sec: {number}\n  99%  {number}ms\nP99 TTFT (ms): {number}\n"
    assert summaries_of([output], ["requests/sec"]) == {}


def test_what_is_not_printed_is_missing() -> None:
    assert read("Requests/sec: many\n", "requests/sec", "latency") == {}
    assert read("Transfer/sec:  831.93KBX\n", "transfer/sec") == {}


def test_generators_together() -> None:
    slower = WRK.replace("1510.46", "500.04").replace("10.24ms", "1.50s")
    found = summaries_of([WRK, slower], ["requests/sec", "value:7517 requests"])
    assert found["requests/sec"].value == pytest.approx(2010.5)
    assert found["latency"].p99 == 1.5
    assert "requests/sec" not in summaries_of([WRK, ""], ["requests/sec"])
