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
    "--allow-file-access-from-files",  # so that one page may ask about another
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
const ask = ({{document, getComputedStyle}}) => JSON.stringify([{questions}]);
onload = () => document.documentElement.dataset.answers = ask(frames[0]);
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


def show(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Load a page and let its timers run; its elements are the output, as text."""
    command = find_chromium()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="xtune-chromium-") as profile:
        return subprocess.run(
            [command, *FLAGS, *flags, f"--user-data-dir={profile}", url],
            capture_output=True,
            timeout=PATIENCE_S,
            text=True,
            check=True,
        )


def look(page: Path, *questions: str, width: int, dark: bool = False) -> Seen:
    """Show a file in a frame of that width, and ask about its `document`."""
    frame = page.with_name("frame.html")
    asked = ", ".join(questions)
    frame.write_text(FRAME.format(url=page.name, width=width, questions=asked))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = show(frame.as_uri(), scheme)
    answers = re.search(r'data-answers="([^"]*)"', done.stdout)
    assert answers is not None, done.stderr
    complaints = re.findall(r"CONSOLE.*", done.stderr)
    return Seen(json.loads(html.unescape(answers[1])), complaints)
