# SPDX-License-Identifier: Apache-2.0
"""`--prometheus-file` and `--prometheus-port`: what is exported, by a process that ends with the run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import run, xlaunch
from tests.launcher.launching import children_of, is_alive, wait_until
from tests.launcher.supervision.services import Service, free_ports


@pytest.fixture
def serve(tmp_path: Path, needs) -> Iterator[Callable[..., Service]]:
    needs(find_spec("prometheus_client"), "prometheus_client (the extra `prometheus`)")
    with ExitStack() as begun:
        yield lambda *options, **more: begun.enter_context(Service(tmp_path, *options, **more))


def scrape(port: int) -> dict[str, float]:
    """The samples of an exporter, by their names and labels; empty while it does not answer."""
    with suppress(urllib.error.URLError, ConnectionError):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())
    return {}


def samples(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def exporters(service: Service) -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in children_of(service.supervisor)}
    return [pid for pid, path in commands.items() if b"exporter" in path.read_bytes()]


def test_file_and_port(serve: Callable[..., Service], tmp_path: Path):
    port = free_ports(1)
    # No file of this directory is imported.
    (tmp_path / "prometheus_client.py").write_text("raise SystemExit('of the current directory')")
    service = serve("--prometheus-port", str(port), "--prometheus-file", "metrics.prom")
    service.wait_until_ready()
    wait_until(lambda: scrape(port).get("xlaunch_ready") == 1, "the exporter")
    found = scrape(port)
    assert found["xlaunch_up"] == 1
    for index in ("0", "1"):
        label = f'{{instance="{index}"}}'
        assert found[f"xlaunch_instance_ready{label}"] == 1
        assert found[f"xlaunch_instance_restarts_total{label}"] == 0
        assert found[f"xlaunch_instance_cpu_seconds_total{label}"] > 0
        assert found[f"xlaunch_instance_resident_memory_bytes{label}"] > 1 << 20
    wait_until(
        (tmp_path / "metrics.prom").exists, "the file, which is written after the port is open"
    )
    assert samples((tmp_path / "metrics.prom").read_text()).keys() >= {"xlaunch_up"}
    (exporter,) = exporters(service)
    service.touch("ill.1")
    service.wait_for_run(1, 2)
    service.wait_until_ready()
    restarts = 'xlaunch_instance_restarts_total{instance="1"}'
    wait_until(lambda: scrape(port).get(restarts) == 1, "the restart")
    code, _, err = service.stop()
    assert (code, "exporter" in err) == (0, False)
    assert not is_alive(exporter)
    assert not (tmp_path / "metrics.prom").exists()
    assert [one["leftover_processes"] for one in service.report()["instances"]] == [0, 0]


@pytest.mark.long
def test_death_of_the_exporter_is_a_line_and_the_run_goes_on(serve: Callable[..., Service]):
    service = serve("--prometheus-file", "metrics.prom", health="")
    service.wait_for_socket()
    wait_until(lambda: exporters(service), "the exporter")
    os.kill(exporters(service)[0], signal.SIGKILL)
    wait_until(lambda: not exporters(service), "its end")
    assert service.state["ready"]
    code, _, err = service.stop()
    assert code == 0
    assert "warning: metrics are no longer exported: the exporter has ended by signal 9" in err


@pytest.mark.long
@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_exporter_does_not_survive_the_launcher(serve: Callable[..., Service], victim: str):
    service = serve("--prometheus-file", "metrics.prom", health="")
    service.wait_for_socket()
    wait_until(lambda: exporters(service), "the exporter")
    (exporter,) = exporters(service)
    os.kill(service.process.pid if victim == "keeper" else service.supervisor, signal.SIGKILL)
    service.end()
    wait_until(lambda: not is_alive(exporter), "its end")


def test_what_cannot_be_exported_starts_nothing(golden: Golden, tmp_path: Path, needs):
    needs(find_spec("prometheus_client"), "prometheus_client (the extra `prometheus`)")
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        (tmp_path / "mine").write_text("text")
        options = (("port", taken), ("port", "70000"), ("file", "mine"))
        said = [
            xlaunch(f"--prometheus-{option}", value, "touch", "x", cwd=tmp_path).refused()
            for option, value in options
        ]
    golden(said, hide=f"(?<=port ){taken}")
    assert not (tmp_path / "x").exists()


def test_without_the_package_a_line_says_what_to_install(golden: Golden, tmp_path: Path):
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'prometheus_client' else find(name, *more)\n"
        "from xlaunch.cli import main; main()"
    )
    done = run((sys.executable, "-c", code, "--prometheus-file", "x", "true"), cwd=tmp_path)
    golden(done.refused())
