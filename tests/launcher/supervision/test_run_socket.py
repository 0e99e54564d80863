# SPDX-License-Identifier: Apache-2.0
"""The socket of a run: what `xlaunch ps RUN` and `xlaunch restart` see, who may ask, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, xlaunch
from tests.launcher.launching import is_alive, wait_until
from tests.launcher.supervision.services import SERVER, Service

from xlaunch.errors import XLaunchError
from xlaunch.leases import described, read_leases
from xlaunch.report.run_client import ask as ask_socket
from xlaunch.report.run_client import short_name


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as begun:
        yield lambda *options, **more: begun.enter_context(Service(tmp_path, *options, **more))


def path_of(service: Service) -> str:
    (lease,) = [described(one) for one in read_leases() if one.pid == service.process.pid]
    return lease.socket


def test_state_of_every_instance(golden: Golden, serve: Callable[..., Service]):
    service = serve(health="")
    service.wait_for_socket()
    state = service.state
    assert (state["pid"], state["state"], state["ready"]) == (service.process.pid, "running", True)
    for index, one in enumerate(state["instances"]):
        assert (one["index"], one["pid"], one["restarts"]) == (index, service.pid(index), 0)
        assert len(one["cpus"]) == 1
        assert one["rss_bytes"] > 1 << 20
        assert 0 < one["age_s"] <= state["age_s"]
    everything = json.loads(ask("ps", "--json").out)["launches"]
    (launch,) = [one for one in everything if one["pid"] == service.process.pid]
    assert launch["state"]["instances"][1]["pid"] == service.pid(1)
    table = [" ".join(line.split()) for line in service.ask("ps").out.decode().splitlines()]
    golden(table, hide=r"(?m:(?<=running )\d.*(?= 0$))")
    assert service.stop()[0] == 0


def test_socket_is_private_and_goes_with_the_run(serve: Callable[..., Service]):
    service = serve(health="")
    service.wait_for_socket()
    path = path_of(service)
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(os.path.dirname(path)).st_mode) == 0o700
    assert service.stop()[0] == 0
    assert not os.path.exists(path)


@pytest.mark.long
def test_socket_of_a_run_that_was_killed_is_removed_by_the_next(serve: Callable[..., Service]):
    first = serve(health="")
    first.wait_for_socket()
    path = path_of(first)
    supervisor = first.supervisor
    first.process.kill()
    first.end()
    wait_until(lambda: not is_alive(supervisor), "the supervisor's end")
    second = serve(health="")
    for index in (0, 1):
        second.wait_for_run(index, 2)
    wait_until(lambda: second.state, "the second socket")
    assert not os.path.exists(path)
    assert second.stop()[0] == 0


@pytest.mark.long
def test_long_directory(serve: Callable[..., Service], tmp_path: Path, monkeypatch):
    directory = tmp_path / ("x" * 120)
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    service = serve(health="")
    service.wait_for_socket()
    assert path_of(service).startswith(str(directory))
    assert service.stop()[0] == 0


@pytest.mark.long
def test_directory_that_others_may_enter_means_no_socket(
    golden: Golden, serve: Callable[..., Service], tmp_path: Path, monkeypatch
):
    (tmp_path / "xlaunch-runs").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    service = serve(health="")
    for index in (0, 1):
        service.wait_for_run(index, 1)
    golden(service.ask("ps").refused(), hide=str(service.process.pid))
    assert service.stop()[0] == 0


@pytest.mark.long
def test_rude_callers_are_dropped_and_others_served(serve: Callable[..., Service]):
    service = serve(health="")
    service.wait_for_socket()
    path = path_of(service)
    with ExitStack() as opened:

        def connect() -> socket.socket:
            one = opened.enter_context(closing(socket.socket(socket.AF_UNIX)))
            with short_name(path) as name:
                one.connect(name)
            return one

        silent = [connect() for _ in range(14)]
        assert ask_socket(path, "state")["state"] == "running"
        connect().close()
        babbler = connect()
        babbler.sendall(b"x" * 64)
        assert b"is not a request" in babbler.recv(1000)
        with pytest.raises(
            XLaunchError, match="'stop' is not a request; the requests are state and restart"
        ):
            ask_socket(path, "stop")
        for one in silent:
            assert one.recv(1) == b""  # after its time
    assert service.stop()[0] == 0


def test_restart_replaces_one_after_the_other(golden: Golden, serve: Callable[..., Service]):
    service = serve()
    service.wait_until_ready()
    before = [service.pid(index) for index in (0, 1)]
    done = service.ask("restart")
    assert done.code == 0, done.err
    golden(done)
    assert service.states() == ["ready", "ready"]
    assert not set(before) & {service.pid(0), service.pid(1)}
    code, _, err = service.stop()
    assert code == 0
    said = [line for line in err.splitlines() if "a restart was requested" in line]
    assert [line.split()[2].rstrip(":") for line in said] == ["0", "0", "1", "1"]


@pytest.mark.long
def test_restart_without_probes(serve: Callable[..., Service]):
    service = serve("--on-failure", "stop", health="", count=1)
    service.wait_for_socket()
    assert service.ask("restart", "--quiet") == (0, b"", "")
    assert len(service.runs(0)) == 2
    assert service.stop()[0] == 0


@pytest.mark.long
def test_restart_stops_at_an_instance_that_does_not_come_back(
    golden: Golden, serve: Callable[..., Service]
):
    service = serve("--on-failure", "continue")
    service.wait_until_ready()
    service.touch("dies.0")
    done = service.ask("restart")
    golden(done)
    assert len(service.runs(1)) == 1
    assert service.stop()[0] == 7


@pytest.mark.long
def test_restart_kills_a_stopped_instance_that_ignores_sigterm(serve: Callable[..., Service]):
    server = SERVER.replace("lambda *_: os._exit(0)", "signal.SIG_IGN")
    service = serve("--grace", "300ms", server=server, count=1)
    service.wait_until_ready()
    os.kill(service.pid(0), signal.SIGSTOP)
    assert service.ask("restart", "-q").code == 0
    assert len(service.runs(0)) == 2
    assert service.stop()[0] == 137


def test_end_during_a_restart_ends_everything(serve: Callable[..., Service]):
    server = SERVER.replace("lambda *_: os._exit(0)", "lambda *_: (time.sleep(0.5), os._exit(0))")
    service = serve(server=server)
    service.wait_until_ready()
    path = path_of(service)
    assert ask_socket(path, "restart") == {"restarting": True}
    with pytest.raises(XLaunchError, match="restarted already"):
        ask_socket(path, "restart")
    wait_until(lambda: "ending" in service.states(), "instance 0 to be asked")
    assert service.stop()[0] == 0
    assert len(service.runs(0)) == len(service.runs(1)) == 1


def test_who_is_asked(golden: Golden, serve: Callable[..., Service]):
    service = serve(health="", count=1)
    service.wait_for_socket()
    assert json.loads(ask("ps", "self", "--json").out)["pid"] == service.process.pid
    assert ask("ps", "self", "--ready") == (0, b"", "")
    golden(
        ask("ps", "x").refused(),
        ask("restart", "1").refused(),
        ask("ps", "--ready").refused(),
        service.ask("ps", "--ready", "--json").refused(),
    )
    assert service.stop()[0] == 0
    golden(ask("ps", "self").refused(), service.ask("ps").refused(), hide=str(service.process.pid))


def test_launch_in_place_has_no_socket(tmp_path: Path):
    inside = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'xlaunch', 'ps', str(os.getpid())])"  # fmt: skip
    done = xlaunch("python3", "-c", inside)
    assert "no launch has the PID" in done.refused() or "is not supervised" in done.refused()
