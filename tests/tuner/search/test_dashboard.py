# SPDX-License-Identifier: Apache-2.0
"""Studies in Optuna's own dashboard, in a browser."""

from __future__ import annotations

import html
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.tuner.cli.commands import Desk, started
from tests.tuner.conftest import Needs
from tests.tuner.show.browser import find_chromium, show

pytestmark = pytest.mark.full

NOISY = """\
import random, sys, time
for turn in range(40):
    time.sleep(0.002)
    print(f"{int(sys.argv[1]) * 100 + random.random()} items/s", flush=True)
    print(f"loss: {int(sys.argv[1])}", flush=True)
"""

TAGS = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)

MAX_TEXT = 10_000
"""Characters on a trial's page: a raw series that is shown whole has more."""


@pytest.fixture
def dashboard(desk: Desk, needs: Needs) -> Iterator[str]:
    """The address of a dashboard of a search's studies."""
    needs(find_chromium(), "chromium (Debian: chromium)")
    needs(find_spec("optuna_dashboard"), "optuna-dashboard (optuna-dashboard)")
    desk.write("noisy.py", NOISY)
    bound = ("--require", "loss<=3")
    desk.search("noisy.py", "--storage", "s.db", "--study", "mine", *bound, n="1,2,3,4")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()"]
    words = [f"sqlite:///{desk.directory}/s.db", "--host", "127.0.0.1", "--port", str(port)]
    with started([*command, *words]) as process:
        while True:
            assert process.poll() is None, process.communicate()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies").close()
                break
            except urllib.error.URLError:
                continue
        yield f"http://127.0.0.1:{port}/dashboard/studies"


def test_the_dashboard_shows_the_mean_of_each_configuration(dashboard: str, desk: Desk) -> None:
    export = desk.xtune("export", "mine", "--storage", "s.db").found["launches"]

    def text(path: str) -> str:
        texts = TAGS.sub("\n", show(f"{dashboard}/{path}").stdout).splitlines()
        shown = "\n".join([html.unescape(one.strip()) for one in texts if one.strip()])
        assert "User Attributes" in shown
        assert len(shown) < MAX_TEXT
        return shown

    log = text("1/trials?numbers=1")
    assert f"{len(export)} Trials" in log
    for words in ("stage seed", "outcome measured", "series 0 {", "secondary {"):
        assert words in " ".join(log.split()), words
    results = text("2/trials?numbers=0")
    assert "mine results" in results
    assert "5 Trials" in results
    # The fastest one breaks the requirement.
    best = results.split("Best Trial")[0].strip().splitlines()[-2]
    shown = " ".join(text(f"2/trials?numbers={best.split()[1]}").split())
    own = [one["value"] for one in export if one["configuration"].get("n") == 3]
    assert len(own) > 4
    for number, value in enumerate(own, start=1):
        assert f"{number} {value}" in shown
    assert "Parameter n 3" in shown
