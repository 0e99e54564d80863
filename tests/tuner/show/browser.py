# SPDX-License-Identifier: Apache-2.0
"""Pages as headless Chromium shows them: each in a frame of a page of ours, which asks about it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 120.0
"""For one page. Never waited for in full unless something is broken."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # there is none for root
    "--disable-web-security",  # so that a page of ours may ask about one of another origin
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # a server of the tests' own
    "--window-size=1600,1000",
    "--virtual-time-budget=60000",  # of timers, which do not wait
    "--dump-dom",
)

FRAME = """<!DOCTYPE html>
<iframe src="{url}" style="border: 0; height: 900px; width: {width}px"></iframe>
<script>
const frame = document.querySelector("iframe");
const ask = ({{document, getComputedStyle}}, {{dataset}}) => {{
    if (document.readyState === "complete" && document.URL !== "about:blank" && ({until}))
        dataset.answers = JSON.stringify([{questions}]);
    else setTimeout(ask, 20, frame.contentWindow, window.document.documentElement);
}};
ask(frame.contentWindow, document.documentElement);
</script>
"""


def find_chromium() -> str | None:
    """The browser's command; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Seen(NamedTuple):
    answers: list[Any]
    """What JavaScript says to each question."""
    complaints: list[str]
    """Of scripts and of the browser about the page."""


def look(url: str, *questions: str, width: int, until: str = "true", dark: bool = False) -> Seen:
    """Show a page in a frame of that width, and ask about its `document` once `until` holds."""
    command = find_chromium()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="xtune-chromium-") as directory:
        frame = Path(directory, "frame.html")
        asked = ", ".join(questions)
        frame.write_text(
            FRAME.format(url=html.escape(url), width=width, until=until, questions=asked)
        )
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        done = subprocess.run(
            [command, *FLAGS, scheme, f"--user-data-dir={directory}/profile", frame.as_uri()],
            capture_output=True,
            timeout=PATIENCE_S,
            text=True,
            check=True,
        )
    answers = re.search(r'data-answers="([^"]*)"', done.stdout)
    assert answers is not None, done.stderr
    complaints = re.findall(r"CONSOLE.*", done.stderr)
    return Seen(json.loads(html.unescape(answers[1])), complaints)
