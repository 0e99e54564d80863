# SPDX-License-Identifier: Apache-2.0
"""Services under `--health`: small HTTP servers that a test can hang, slow down or end."""

from __future__ import annotations

import json
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.launcher.cli.commands import Done, ask
from tests.launcher.launching import Launched, wait_until

SERVER = """
import http.server, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
index = os.environ["XLAUNCH_INSTANCE_INDEX"]
with open(f"runs.{index}", "a") as file: print(os.getpid(), file=file)
number = len(open(f"runs.{index}").readlines())

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.path.exists(f"slow.{index}"): time.sleep(3)
        ill = os.path.exists(f"ill.{index}") and number == 1 or os.path.exists(f"always-ill.{index}")
        self.send_response(503 if ill else 200)
        self.end_headers()
        self.wfile.write(b"text")
    def log_message(self, *_): pass
    def handle_one_request(self):
        try: super().handle_one_request()
        except OSError: pass

if os.path.exists(f"dies.{index}") and number > 1: sys.exit(7)
while os.path.exists("loading"): time.sleep(0.01)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FAST = ("--health-interval", "100ms", "--health-timeout", "1s", "--grace", "1s")
"""Rounds of probes that a test can wait for."""


def free_ports(count: int) -> int:
    """The first of `count` ports that nothing listens on."""
    for first in random.sample(range(21_000, 31_900), 100):
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


class Service(Launched):
    """A service that has begun; `state` is what its socket answers."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        count: int = 2,
        health: str = "http://127.0.0.1:{%d+index}/health",
        server: str = SERVER,
    ) -> None:
        """`health`: with ``%d`` for the first port; empty: without probes."""
        self.first_port = free_ports(count)
        health = health % self.first_port if "%d" in health else health
        words = ["--supervise", "--substitute", *(["--health", health] if health else [])]
        program = (sys.executable, "-c", server, f"{{{self.first_port}+index}}")
        words += [*FAST, *options, "--report", "report.json", "--", *program]
        super().__init__(directory, words, count=count)
        self.count = count

    def ask(self, *words: str) -> Done:
        """What a command says about this run. **Ex.:** ``ask("ps", "--ready")``"""
        command, *options = words
        return ask(command, str(self.process.pid), *options)

    @property
    def state(self) -> dict[str, Any]:
        done = self.ask("ps", "--json")
        return json.loads(done.out) if done.code == 0 else {}

    def states(self) -> list[str]:
        return [one["state"] for one in self.state.get("instances", ())]

    def wait_for_socket(self) -> None:
        """Wait until the run answers and every instance has begun to handle SIGTERM."""
        wait_until(lambda: self.state, "the socket")
        for index in range(self.count):
            self.wait_for_run(index, 1)

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.states() == ["ready"] * self.count, "all instances to be ready")

    def pid(self, index: int) -> int:
        """The PID of the last run of an instance."""
        return int(self.runs(index)[-1])

    def runs(self, index: int) -> list[str]:
        path = self.directory / f"runs.{index}"
        return path.read_text().split() if path.exists() else []

    def wait_for_run(self, index: int, number: int) -> None:
        wait_until(lambda: len(self.runs(index)) >= number, f"run {number} of instance {index}")

    def touch(self, name: str) -> None:
        (self.directory / name).touch()

    def stop(self) -> tuple[int, str, str]:
        """End the run as its user does."""
        self.send(signal.SIGTERM)
        return self.end()
