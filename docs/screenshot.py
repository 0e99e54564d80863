# SPDX-License-Identifier: Apache-2.0
"""Photograph the top of a page, in light and in dark side by side.

    xtune report --html page.html && python docs/screenshot.py page.html docs/pictures/report.png

Needs chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WIDTH: Final = 680
HEIGHT: Final = 760
SCHEMES: Final = {"light": "1", "dark": "0"}
"""Chromium's numbers of `prefers-color-scheme`."""


def photograph(page: Path, picture: Path, width: int, scheme: str) -> None:
    """Write the top of an HTML file as PNG. Raises CalledProcessError."""
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            f"--window-size={width},{HEIGHT}",
            f"--screenshot={picture.resolve()}",
            page.resolve().as_uri(),
        ],
        check=True,
        capture_output=True,
    )


def main(page: Path, picture: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        images = []
        for scheme in SCHEMES:
            photograph(page, Path(scratch, f"{scheme}.png"), WIDTH, scheme)
            images.append(f'<img src="{scheme}.png" width="{WIDTH}">')
        both = Path(scratch, "both.html")
        both.write_text(f'<body style="margin:0;white-space:nowrap;font-size:0">{"".join(images)}')
        photograph(both, picture, len(SCHEMES) * WIDTH, "light")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/screenshot.py PAGE.html PICTURE.png")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
