# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, spoken to through a pipe: no port, no driver, no network.

The DevTools protocol (https://chromedevtools.github.io/devtools-protocol) as JSON, each message
ended by a zero byte, on descriptors 3 and 4: ``--remote-debugging-pipe``.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60.0
"""For one answer. Never waited for in full unless something is broken."""

FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # there is none for root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # a server of the tests' own
)


def find_chromium() -> str | None:
    """The browser's command; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with a profile of its own; a context manager."""

    def __init__(self) -> None:
        command = find_chromium()
        assert command is not None
        self._profile = tempfile.mkdtemp(prefix="xtune-chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The shell puts the pipes on 3 and 4, whatever numbers they have here.
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = [*FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line, command, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._read = b""
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(PATIENCE_S)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, 9)
                self._process.wait()
            os.close(self._in)
            os.close(self._out)
            shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Ask for something; the answer. Events that come first are kept."""
        self._sent += 1
        number = self._sent
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self.receive()
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]
            self.events.append(heard)

    def receive(self) -> dict[str, Any]:
        """The next message, answer or event."""
        ends_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [], max(0.0, ends_s - time.monotonic()))
            assert ready, f"chromium said nothing for {PATIENCE_S:g} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, f"chromium ended with {self._process.poll()}"
            self._read += piece
        text, _, self._read = self._read.partition(b"\0")
        return json.loads(text)

    def open(
        self,
        url: str,
        *,
        width: int,
        scheme: str = "light",
        height: int = 900,
        offline: bool = True,
    ) -> Tab:
        """A page in a window of that width, loaded, without any network unless it is served here."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        tab.send(
            "Network.emulateNetworkConditions",
            offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        tab.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.send("Emulation.setEmulatedMedia", features=features)
        tab.send("Page.navigate", url=url)
        tab.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """What JavaScript says, as plain values."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until JavaScript finds that it holds: asked at each frame the browser draws."""
        self.evaluate(
            f"""new Promise((done, failed) => {{
                const ends = Date.now() + {1000 * PATIENCE_S / 2:.0f};
                const look = () => {{
                    if ({condition}) done(true);
                    else if (Date.now() > ends) failed(new Error("it never held"));
                    else setTimeout(look, 20);
                }};
                look();
            }})"""
        )

    @property
    def events(self) -> list[dict[str, Any]]:
        return [one for one in self._browser.events if one.get("sessionId") == self._session]

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of scripts and of the browser about the page."""
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] != "log":
                found.append(json.dumps(told["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(told["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses of all that was asked for outside of what the page itself holds."""
        return [
            url
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and not (url := event["params"]["request"]["url"]).startswith(("data:", "blob:"))
        ]

    def pdf(self) -> bytes:
        """The page as it prints."""
        answer = self.send("Page.printToPDF", printBackground=True)
        return base64.b64decode(answer["data"])
