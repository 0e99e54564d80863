# SPDX-License-Identifier: Apache-2.0
"""Failed requests in what load generators print. The service answered every fifth request with 503 and every
fiftieth with 500, and closed a fifth of the connections without an answer; ends of lines are shortened.
"""

from __future__ import annotations

import pytest
from tests.golden import Golden

from xtune.launches.generators import GENERATORS, Requests, requests_of

OUTPUTS: dict[str, tuple[str, Requests]] = {
    "wrk 4.1": (
        """
  15521 requests in 1.00s, 821.90KB read
  Socket errors: connect 0, read 3880, write 0, timeout 0
  Non-2xx or 3xx responses: 4268
Requests/sec:  15502.85
""",
        Requests(19401, 8148),
    ),
    "wrk 4.2, no errors": (
        "  7517 requests in 5.00s, 835.54KB read\nRequests/sec:   1510.46\n",
        Requests(7517, 0),
    ),
    "hey 0.1.4": (
        """
  DNS+dialup:	0.0000 secs, 0.0000 secs, 0.0080 secs

Status code distribution:
  [200]	214 responses
  [500]	8 responses
  [503]	74 responses

Error distribution:
  [4]	Get "http://127.0.0.1:8123/": EOF
""",
        Requests(300, 12, 74),
    ),
    "hey, no errors": ("Status code distribution:\n  [200]\t8000 responses\n", Requests(8000, 0)),
    "hey, nothing answered": (
        "Status code distribution:\n\nError distribution:\n  [200]\tGet: connection refused\n",
        Requests(200, 200),
    ),
    "oha 0.5": (
        """
Summary:
  Success rate:	0.8000
Latency distribution:
  99% in 0.2442 secs

Status code distribution:
  [200] 800 responses
  [503] 150 responses

Error distribution:
  [50] connection closed before message completed
""",
        Requests(1000, 50, 150),
    ),
    "oha 1.4": (
        """
Summary:
  Success rate:	100.00%
Response time distribution:
  99.00% in 0.0012 secs
Status code distribution:
  [200] 119539 responses

Error distribution:
  [8] aborted due to deadline
""",
        Requests(119539, 0),
    ),
    "ghz": (
        """
Status code distribution:
   [OK]            4980 responses
   [Unavailable]   20 responses

Error distribution:
  [20]   rpc error: code = Unavailable desc = busy
""",
        Requests(5000, 20),
    ),
    "ab 2.3": (
        """
Complete requests:      1000
Failed requests:        330
   (Connect: 0, Receive: 20, Length: 300, Exceptions: 10)
Non-2xx responses:      40
""",
        Requests(1000, 70),
    ),
    "ab 2.3, no errors": (
        "Complete requests:      500\nFailed requests:        0\n",
        Requests(500, 0),
    ),
    "k6 0.49": (
        "     http_req_failed................: 20.00%  ✓ 10       ✗ 40  \n"
        "     http_reqs......................: 50      1.510712/s\n",
        Requests(50, 10),
    ),
    "k6 1.0": (
        "    http_req_failed....................: 20.00%  9 out of 45\n"
        "    http_reqs..........................: 45     6.561061/s\n",
        Requests(45, 9),
    ),
    "locust 2.47": (
        """
Type     Name           # reqs      # fails |    Avg     Min     Max    Med |   req/s  failures/s
GET      /                 359  152(42.34%) |     12       0     120      5 |  236.79      100.26
--------|-------------|-------|-------------|-------|-------|-------|-------|--------|-----------
         Aggregated        359  152(42.34%) |     12       0     120      5 |  236.79      100.26

Error report
# occurrences      Error
------------------|------------------------------------------------------------------------------
8                  GET /: HTTPError('500 Server Error: X for url: /')
72                 GET /: RemoteDisconnected('Remote end closed connection without response')
72                 GET /: HTTPError('503 Server Error: Service Unavailable for url: /')
""",
        Requests(359, 80, 72),
    ),
    "locust 2.8": (
        """
 Aggregated             0     0(0.00%)  |       0       0       0       0  |    0.00    0.00
 GET /               1187  499(42.04%)  |       4       0     174       1  |  747.03  314.04
 Aggregated          1187  499(42.04%)  |       4       0     174       1  |  747.03  314.04

Error report
 # occurrences      Error
 238                GET /: HTTPError('503 Server Error: Service Unavailable for url: http://host/')
 24                 GET /: HTTPError('500 Server Error: X for url: http://host/')
 237                GET /: RemoteDisconnected('Remote end closed connection without response')
""",
        Requests(1187, 261, 238),
    ),
    "vllm bench serve": (
        "Successful requests:                     97\nFailed requests:                         3         \n",
        Requests(100, 3),
    ),
    "h2load": (
        "requests: 100 total, 16 started, 12 done, 9 succeeded, 91 failed, 88 errored, 0 timeout\n"
        "status codes: 9 2xx, 0 3xx, 0 4xx, 3 5xx\n",
        Requests(100, 91),
    ),
    "siege 4.1": (
        '{	"transactions":			          23,\n	"availability":			       57.50,\n'
        '	"successful_transactions":	          23,\n	"failed_transactions":		          17,\n}\n',
        Requests(40, 17),
    ),
    "siege 3": (
        "Transactions:		          40 hits\nAvailability:		       80.00 %\n"
        "Failed transactions:	          10\n",
        Requests(50, 10),
    ),
    "vegeta": (
        "Success       [ratio]                           94.00%\n"
        "Status Codes  [code:count]                      0:2  200:94  429:3  500:1  \nError Set:\n",
        Requests(100, 3, 3),
    ),
    "bombardier": (
        "  HTTP codes:\n    1xx - 0, 2xx - 95, 3xx - 0, 4xx - 0, 5xx - 3\n    others - 2\n",
        Requests(100, 5),
    ),
    "fortio": ("Code 200 : 95 (95.0 %)\nCode 503 : 4 (4.0 %)\nCode  -1 : 1 (1.0 %)\n", Requests(100, 1, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_failed_requests(name: str) -> None:
    output, expected = OUTPUTS[name]
    assert requests_of([output]) == expected


def test_every_generator_has_an_output() -> None:
    read = {name for text, _ in OUTPUTS.values() for name, one in GENERATORS.items() if one(text)}
    assert read == GENERATORS.keys()


def test_requests_of_several_generators_are_added_if_all_are_known() -> None:
    wrk, hey = OUTPUTS["wrk 4.1"][0], OUTPUTS["hey 0.1.4"][0]
    assert requests_of([wrk, hey]) == Requests(19701, 8160, 74)
    assert requests_of([wrk, "served 1234 in 5 s"]) is None
    assert requests_of([]) is None


def test_shares_are_of_all_requests(golden: Golden) -> None:
    assert Requests(300, 12, 75).shares == {"errors": 4.0, "rejected": 25.0}
    golden(str(Requests(300, 12, 75)))
    assert Requests(0, 0).shares == {"errors": 0.0, "rejected": 0.0}
