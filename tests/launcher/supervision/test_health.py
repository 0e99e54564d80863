# SPDX-License-Identifier: Apache-2.0
"""`--health`: instances that hang, answer slowly or with errors, flap, or die; and who is left alone."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, xlaunch
from tests.launcher.launching import is_alive, state_of, wait_until
from tests.launcher.supervision.services import SERVER, Service

from xlaunch.supervision.probes import Probe, Target, check_form, target_of

WORDS = {"index": "1", "count": "2", "cpus": "4-7", "ncores": "4", "node": "0"}

# Targets


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("{9000+index}", Target("9001", port=9001)),
        ("http://localhost:{80+index}", Target("http://localhost:81", port=81, path="/")),
        ("http://127.0.0.2/?a=b", Target("http://127.0.0.2/?a=b", (), "127.0.0.2", 80, "/?a=b")),
        ("http://[::1]:8000/x", Target("http://[::1]:8000/x", (), "::1", 8000, "/x")),
        (
            "exec:curl -f 'http://x/{index} y'",
            Target("exec:curl -f 'http://x/{index} y'", ("curl", "-f", "http://x/1 y")),
        ),
    ],
)
def test_target_of_an_instance(text: str, target: Target):
    check_form(text)
    assert target_of(text, WORDS) == target


def test_bad_target_starts_nothing(golden: Golden, tmp_path: Path):
    said = []
    for text in (
        "", "https://127.0.0.1/", "ready", "http://", "http://example.org/", "{index-1}", "70000", "exec:",
        "exec:'", "http://127.0.0.1:8000/a b",
    ):  # fmt: skip
        words = ("--instances", "2", "--ncores", "1", "--oversubscribe", "--health", text)
        said.append(ask(*words, "touch", "x", cwd=tmp_path).refused())
    golden(said)
    assert not (tmp_path / "x").exists()


def test_ranks_are_refused(golden: Golden, tmp_path: Path):
    for words, env in (((), {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}), (("--nproc-per-node", "2"), {})):  # fmt: skip
        done = xlaunch(*words, "--health", "8000", "true", env={**os.environ, **env})
        golden(done.refused())


# Probes, without a supervisor


def answer(target: Target, timeout_s: float = 5.0) -> str | None:
    """What a probe that is only polled finds."""
    probe = Probe(target, time.monotonic() + timeout_s, timeout_s)
    while not probe.advance(time.monotonic()):
        time.sleep(0.002)
    if probe.pid is not None:
        os.waitpid(probe.pid, 0)
    return probe.problem


def test_commands(golden: Golden):
    commands = (
        ("true",),
        ("sh", "-c", "exit 3"),
        ("sh", "-c", "kill -9 $$"),
        ("/no/such/command",),
    )
    golden([f"{' '.join(command)}: {answer(Target('', command))}" for command in commands])


def test_command_that_hangs_is_killed_with_its_children(tmp_path: Path):
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; wait"
    assert answer(Target("", ("sh", "-c", script)), 0.5) == "no answer in 0.5 s"
    for pid in pids.read_text().split():
        wait_until(lambda pid=int(pid): not is_alive(pid), "its end")


def test_ports_and_answers_that_are_not_http():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answer(Target("", port=port)) == ""
        assert answer(Target("", port=port, path="/"), 0.2) == "no answer in 0.2 s"
        server.settimeout(5)
        server.accept()[0].close()
        server.accept()[0].close()
        probe = Probe(Target("", port=port, path="/"), time.monotonic() + 5, 5)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"220 mail.example.org\r\n")
        wait_until(lambda: probe.advance(time.monotonic()), "the answer")
        assert probe.problem == "the answer is not HTTP"
    assert answer(Target("", port=port)) == "connection refused"


# Real services


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as begun:
        yield lambda *options, **more: begun.enter_context(Service(tmp_path, *options, **more))


def test_hung_instance_is_replaced_and_the_others_go_on(serve: Callable[..., Service]):
    service = serve("--health-timeout", "200ms")
    service.wait_until_ready()
    hung, other = service.pid(1), service.pid(0)
    os.kill(hung, signal.SIGSTOP)
    service.wait_for_run(1, 2)
    service.wait_until_ready()
    assert not is_alive(hung)
    assert service.pid(0) == other
    assert [one["restarts"] for one in service.state["instances"]] == [0, 1]
    code, _, err = service.stop()
    assert code == 0
    url = f"http://127.0.0.1:{service.first_port + 1}/health"
    assert f"instance 1: 3 probes in a row failed ({url}: no answer in 0.2 s); SIGTERM sent" in err
    assert "it is started again" in err
    assert "restart 1 of" not in err  # no failure: neither counted nor delayed
    assert service.report()["instances"][1]["restarts"] == 1


@pytest.mark.long
def test_many_replacements_leave_nothing_open(serve: Callable[..., Service]):
    service = serve("--health-timeout", "100ms", "--health-failures", "2")
    service.wait_until_ready()
    supervisor = service.supervisor
    descriptors = len(os.listdir(f"/proc/{supervisor}/fd"))
    for number in range(2, 6):
        for index in (0, 1):
            os.kill(service.pid(index), signal.SIGSTOP)
            service.wait_for_run(index, number)
            service.wait_until_ready()
    wait_until(lambda: len(os.listdir(f"/proc/{supervisor}/fd")) <= descriptors, "no more files")
    code, _, err = service.stop()
    assert code == 0
    report = service.report()
    assert all(one["restarts"] >= 4 for one in report["instances"])
    assert [one["leftover_processes"] for one in report["instances"]] == [0, 0]
    assert "restart 1 of" not in err


@pytest.mark.long
def test_instance_that_ignores_sigterm_is_killed_after_the_grace_period(
    serve: Callable[..., Service],
):
    server = SERVER.replace("lambda *_: os._exit(0)", "signal.SIG_IGN")
    service = serve("--grace", "300ms", server=server)
    service.wait_until_ready()
    service.touch("ill.0")
    first = service.pid(0)
    service.wait_for_run(0, 2)
    assert not is_alive(first)
    service.wait_until_ready()
    assert service.stop()[0] == 137  # both ignore SIGTERM


@pytest.mark.parametrize("rule", ["stop", "continue"])
def test_unhealthy_instance_counts_as_failed(serve: Callable[..., Service], rule: str):
    service = serve("--on-failure", rule)
    service.wait_until_ready()
    service.touch("ill.1")
    wait_until(lambda: not is_alive(service.pid(1)), "the end of instance 1")
    if rule == "continue":
        wait_until(lambda: service.states() == ["ready", "failed"], "its state")
        service.send(signal.SIGTERM)
    code, _, err = service.end()
    assert code == 143  # it ended with 0, after our SIGTERM
    reason = service.report()["reason"]
    assert reason.startswith("instance 1 was ended: 3 probes in a row failed (http://127")
    assert reason.endswith("HTTP status 503)")
    assert len(service.runs(1)) == 1, err


@pytest.mark.long
def test_failures_that_are_not_in_a_row_do_not_count(serve: Callable[..., Service]):
    service = serve("--health-failures", "1000")
    service.wait_until_ready()
    for _ in range(3):
        service.touch("ill.0")
        wait_until(lambda: service.state["instances"][0]["failed_probes"] > 1, "failed probes")
        assert service.states() == ["unhealthy", "ready"]
        assert service.ask("ps", "--ready").code == 0  # half are ready
        (service.directory / "ill.0").unlink()
        wait_until(lambda: service.state["instances"][0]["failed_probes"] == 0, "a good one")
    assert service.stop()[0] == 0


@pytest.mark.long
def test_nobody_is_ended_when_more_than_half_fail(serve: Callable[..., Service]):
    service = serve("--health-failures", "1", count=3)
    service.wait_until_ready()
    for index in (0, 2):
        os.kill(service.pid(index), signal.SIGSTOP)
    # The first rounds may see only one of them; from then on one at most is replaced.
    wait_until(lambda: service.ask("ps", "--ready").code == 1, "the run not to be ready")
    wait_until(lambda: len(service.runs(0)) + len(service.runs(2)) <= 3, "at most one")
    for index in (0, 2):
        os.kill(service.pid(index), signal.SIGCONT)
    wait_until(lambda: service.ask("ps", "--ready").code == 0, "the run to be ready")
    code, _, err = service.stop()
    assert code == 0
    assert "more than half, so none is ended, and the run is not ready" in err


@pytest.mark.long
def test_start_up_does_not_count_and_failures_in_it_do(serve: Callable[..., Service]):
    service = serve("--health-failures", "1", count=1)
    service.wait_until_ready()
    service.touch("loading")
    service.touch("ill.0")
    service.wait_for_run(0, 2)
    wait_until(lambda: service.states() == ["starting"], "the second run to load")
    time.sleep(1.5)  # more than one probe
    assert service.states() == ["starting"]
    assert service.ask("ps", "--ready").code == 1
    (service.directory / "loading").unlink()
    service.wait_until_ready()
    assert len(service.runs(0)) == 2
    assert service.stop()[0] == 0


@pytest.mark.long
def test_instance_that_is_never_ready_is_ended_after_its_start_period(
    serve: Callable[..., Service],
):
    service = serve("--health-start", "500ms", "--health-timeout", "200ms", count=1)
    service.touch("always-ill.0")
    service.wait_for_run(0, 3)
    (service.directory / "always-ill.0").unlink()
    service.wait_until_ready()
    assert service.stop()[0] == 0


@pytest.mark.long
def test_replaced_instance_that_dies_at_its_start_is_a_failure_like_any_other(
    serve: Callable[..., Service],
):
    service = serve("--max-restarts", "1/all")
    service.wait_until_ready()
    service.touch("dies.1")
    service.touch("ill.1")
    code, _, err = service.end()
    assert code == 7
    assert "restart 1 of 1 in 1 s" in err
    assert service.report()["reason"] == "instance 1 failed with exit code 7 after 1 restart"
    assert len(service.runs(1)) == 3


@pytest.mark.long
def test_instance_whose_port_is_taken_fails_and_is_restarted(serve: Callable[..., Service]):
    service = serve("--max-restarts", "max")
    service.wait_until_ready()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(service.pid(1), signal.SIGKILL)
        wait_until(lambda: _try_to_bind(other, service.first_port + 1), "the port")
        other.listen()
        service.wait_for_run(1, 3)
        # The other program accepts connections and does not answer: it is not taken for the instance.
        assert service.states()[1] != "ready"
    service.wait_until_ready()
    code, _, err = service.stop()
    assert code == 0
    assert "restart 2" in err


def _try_to_bind(one: socket.socket, port: int) -> bool:
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_commands_of_probes_are_no_leftovers(serve: Callable[..., Service]):
    health = "exec:sh -c 'echo $$ >> probes.{index}; test ! -e ill.{index} -o -e once.{index} || sleep 600'"
    service = serve("--health-timeout", "500ms", health=health)
    service.wait_until_ready()
    service.touch("ill.1")  # the probe hangs
    service.wait_for_run(1, 2)
    service.touch("once.1")
    service.wait_until_ready()
    assert service.stop()[0] == 0
    report = service.report()
    assert [one["leftover_processes"] for one in report["instances"]] == [0, 0]
    for index in (0, 1):
        pids = (service.directory / f"probes.{index}").read_text().split()
        assert len(pids) > 2
        assert not any(is_alive(int(pid)) for pid in pids)


@pytest.mark.long
def test_nothing_counts_while_everything_is_stopped(serve: Callable[..., Service]):
    service = serve("--health-failures", "1", "--health-timeout", "500ms")
    service.wait_until_ready()
    everything = [service.process.pid, service.supervisor, *service.instances]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in everything:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(3)
    service.wait_until_ready()
    assert [len(service.runs(index)) for index in (0, 1)] == [1, 1]
    assert service.stop()[0] == 0


@pytest.mark.long
def test_nothing_counts_while_the_run_is_suspended(serve: Callable[..., Service]):
    service = serve("--health-failures", "1", "--health-timeout", "300ms")
    service.wait_until_ready()
    service.send(signal.SIGTSTP)
    wait_until(lambda: state_of(service.process.pid) == "T", "the launcher to be stopped")
    time.sleep(1)
    service.send(signal.SIGCONT)
    service.wait_until_ready()
    assert [len(service.runs(index)) for index in (0, 1)] == [1, 1]
    assert service.stop()[0] == 0


@pytest.mark.long
def test_health_goes_on_after_a_hangup_that_the_program_takes_for_a_reload(
    serve: Callable[..., Service],
):
    server = SERVER.replace("while os.path", "signal.signal(signal.SIGHUP, lambda *_: open('hup', 'w'))\nwhile os.path")  # fmt: skip
    service = serve(count=1, server=server)
    service.wait_until_ready()
    service.send(signal.SIGHUP)
    wait_until((service.directory / "hup").exists, "SIGHUP")
    service.touch("ill.0")
    service.wait_for_run(0, 2)
    service.wait_until_ready()
    assert service.stop()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_nothing_survives_the_launcher(serve: Callable[..., Service], victim: str):
    service = serve(health="exec:sleep 600")
    service.wait_for_run(1, 1)
    wait_until(lambda: len(service.instances) == 4, "two instances and two probes")
    supervisor, family = service.supervisor, service.instances
    os.kill(service.process.pid if victim == "keeper" else supervisor, signal.SIGKILL)
    service.end()
    for pid in (supervisor, *family):
        wait_until(lambda pid=pid: not is_alive(pid), f"the end of {pid}")
