# SPDX-License-Identifier: Apache-2.0
"""Settings with which gunicorn serves `programs.application` to `programs.client`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harmless import programs

bind = "127.0.0.1:0"
workers = programs.WORKERS
loglevel = "error"
control_socket_disable = True


def when_ready(server: Any) -> None:
    """Start the client, which ends the server."""
    host, port = server.LISTENERS[0].sock.getsockname()
    words = [sys.executable, programs.__file__, "client", f"{host}:{port}", str(server.pid)]
    subprocess.Popen(words, cwd=Path(programs.__file__).parent)
