# SPDX-License-Identifier: Apache-2.0
"""A stranger's first five minutes: the five tasks of README, by its own commands.

They run as README has them, but with fewer and smaller instances and short searches, so that two CPUs are enough.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.supervision.services import free_ports
from tests.project.test_code_blocks import shell
from tests.project.test_readme import TEXT

__all__ = ["shell"]

LINES = [
    line.partition("  #")[0].rstrip()
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith(("xlaunch ", "xtune "))
]
SMALLER = {"--instances 4": "--instances 2", "--ncores 4": "--ncores 1"}

INFER = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()).eval()
with torch.no_grad():
    for _ in range(20):
        model(torch.ones(4, 32))
print("125.0 images/s")
"""
SERVE = """\
import http.server
import sys

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def line_of(*words: str) -> str:
    """The one line of README that has all of `words`, made smaller."""
    (line,) = [line for line in LINES if all(word in line for word in words)]
    for large, small in SMALLER.items():
        line = line.replace(large, small)
    return line


@pytest.mark.long
def test_run_plan_and_optimize(shell: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFER)
    run, several = "xlaunch infer.py", line_of("xlaunch --instances 4 --ncores 4")
    assert run in LINES
    for command, instances in ((run, 1), (several, 2), (line_of("--optimize", "infer.py"), 1)):
        printed = shell(command)
        assert printed.count("125.0 images/s") == instances, printed
        # One instance replaces the launcher, which then prints nothing.
        assert (f"{instances} instances succeeded" in printed) == (instances > 1), printed
    assert "package" in shell("xlaunch topology") + shell(f"xlaunch plan {several[8:]} --explain")
    shell(line_of("xlaunch doctor") + " || test $? = 1")


@pytest.mark.long
def test_tune(shell: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFER)
    assert "xtune infer.py" in LINES
    printed = shell("xtune --budget 4 infer.py")
    assert "infer.py" in printed
    assert "launches" in printed


@pytest.mark.long
def test_serve(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    first = free_ports(2)
    words = shlex.split(line_of("serve.py", "--on-failure").replace("8000", str(first)))
    # The command of this environment, whatever PATH has.
    with subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path) as service:
        try:
            for port in (first, first + 1):
                assert answer(f"http://127.0.0.1:{port}/serve.py") == SERVE.encode()
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(60) != 0  # it was ended


def answer(url: str) -> bytes:
    """What a service answers once it is there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                content: bytes = response.read()
                return content
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
