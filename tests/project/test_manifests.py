# SPDX-License-Identifier: Apache-2.0
"""Manifests of Kubernetes, the systemd unit and the service of the documentation: parsed, and what they start run."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launcher.cli.commands import XLAUNCH, Done, clean_environment, program, run, two_cpus
from tests.launcher.launching import PATIENCE_S
from tests.project.test_code_blocks import blocks_of
from tests.tiers import quick_first

from xtune.launches.services import free_ports

PAGES = ("kubernetes.md", "containers.md")
GUNICORN = (sys.executable, "-m", "gunicorn", "--no-control-socket")
SHOW = (
    "import json, os, sys\n"
    "told = [os.environ.get('OMP_NUM_THREADS'), len(os.sched_getaffinity(0)), sys.argv[1:]]\n"
    "sys.stdout.write(json.dumps(told) + '\\n')\n"
)


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "yaml":
                for manifest in yaml.safe_load_all(block.text):
                    yield f"{page}:{manifest['kind']}/{manifest['metadata']['name']}", manifest


MANIFESTS = dict(manifests())
PODS = {
    name: manifest["spec"].get("template", manifest)["spec"]
    for name, manifest in MANIFESTS.items()
    if manifest["kind"] not in ("BalloonsPolicy", "Service")
}


def cpus(quantity: str) -> float:
    """**Ex.:** ``2500m`` is 2.5."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


@pytest.fixture
def container(tmp_path: Path) -> Callable[[str], Done]:
    """Run the command of a pod's container as the kubelet would, with programs that tell what they got."""
    for name in ("infer.py", "serve.py"):
        (tmp_path / name).write_text(SHOW)
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/xlaunch", f'#!/bin/sh\nexec {" ".join(XLAUNCH)} "$@"\n')
    program(tmp_path / "bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')

    def start(name: str) -> Done:
        (one,) = PODS[name]["containers"]
        own = {it["name"]: environment_value(one, it) for it in one.get("env", ())}
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        quiet = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLAUNCH_OPT_TAG": "0"}
        own = {key: value.replace("/caches", str(tmp_path)) for key, value in own.items()}
        return run(one["command"], env=clean_environment(PATH=path, **quiet, **own), cwd=tmp_path)

    return start


def environment_value(container: dict[str, Any], entry: dict[str, Any]) -> str:
    if "value" in entry:
        return str(entry["value"])
    kind, _, resource = entry["valueFrom"]["resourceFieldRef"]["resource"].partition(".")
    return str(ceil(cpus(container["resources"][kind][resource])))


def test_there_are_manifests() -> None:
    assert len(MANIFESTS) >= 7
    assert {manifest["kind"] for manifest in MANIFESTS.values()} == {
        "BalloonsPolicy", "Pod", "Deployment", "Service", "StatefulSet",
    }  # fmt: skip


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_consistent(name: str) -> None:
    manifest, pod = MANIFESTS[name], PODS[name]
    assert manifest["apiVersion"] == ("v1" if manifest["kind"] == "Pod" else "apps/v1")
    if "selector" in manifest["spec"]:
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"] == labels
    for container in pod["containers"]:
        assert all(isinstance(word, str) for word in container["command"])
        assert "xlaunch" in " ".join(container["command"])
        resources = container["resources"]
        for what, limit in resources.get("limits", {}).items():
            if what in resources["requests"]:
                assert cpus(resources["requests"][what].replace("Gi", "")) <= cpus(
                    limit.replace("Gi", "")
                )
        grace = re.search(r"--grace (\d+)s", " ".join(container["command"]))
        assert grace is None or int(grace[1]) < pod["terminationGracePeriodSeconds"]


def test_a_balloon_has_the_cpus_that_its_pod_requests() -> None:
    policy = MANIFESTS["kubernetes.md:BalloonsPolicy/default"]["spec"]
    pod = MANIFESTS["kubernetes.md:Pod/floating"]
    wanted = pod["metadata"]["annotations"]["balloon.balloons.resource-policy.nri.io"]
    (balloon,) = [one for one in policy["balloonTypes"] if one["name"] == wanted]
    (container,) = pod["spec"]["containers"]
    assert (
        balloon["minCPUs"] == balloon["maxCPUs"] == cpus(container["resources"]["requests"]["cpu"])
    )
    assert "limits" not in container["resources"]


def test_the_service_reaches_its_pods() -> None:
    service, deployment = (
        MANIFESTS[f"kubernetes.md:{kind}/serve"]["spec"] for kind in ("Service", "Deployment")
    )
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    (container,) = deployment["template"]["spec"]["containers"]
    (port,) = service["ports"]
    assert port["targetPort"] == container["ports"][0]["containerPort"]
    assert container["readinessProbe"]["exec"]["command"] == ["xlaunch", "ps", "self", "--ready"]
    shared, own = container["command"][-2:]
    assert shared == str(port["targetPort"])
    assert f"http://127.0.0.1:{own}/" in container["command"]


@pytest.mark.parametrize(
    ("name", "threads", "masks"),
    quick_first(
        [
            pytest.param("kubernetes.md:Pod/embed", None, 1),
            pytest.param("kubernetes.md:Pod/burst", "2", None),
            pytest.param("kubernetes.md:Deployment/serve", None, None),
            pytest.param("kubernetes.md:Pod/small", None, None),
            pytest.param("kubernetes.md:Pod/floating", None, 1),
            pytest.param("containers.md:StatefulSet/serve", None, 2),
        ],
        quick=3,
    ),
)
def test_what_a_container_starts_runs_here(
    container: Callable[[str], Done],
    needs: Callable[[object, str], None],
    name: str,
    threads: str | None,
    masks: int | None,
) -> None:
    two_cpus(needs)
    done = container(name)
    assert done.code == 0, done.err
    told = [json.loads(line) for line in done.out.splitlines() if line.startswith(b"[")]
    assert told, done
    for own_threads, own_mask, arguments in told:
        assert threads == own_threads or masks is None  # a mask says the number
        assert (masks or own_mask) == own_mask
        is_service = name.endswith("Deployment/serve")
        assert [word[:3] for word in arguments] == (["800", "900"] if is_service else [])
    if name.endswith("Pod/embed"):
        assert len(told) == len(os.sched_getaffinity(0))
    if name.endswith("Pod/burst"):
        assert told[0][1] == len(os.sched_getaffinity(0)), "nothing is bound"


def test_a_pod_with_gpus_has_an_instance_for_each() -> None:
    (one,) = PODS["kubernetes.md:Pod/images"]["containers"]
    limits = one["resources"]["limits"]
    machine = f"gpu:{limits['nvidia.com/gpu']} core:{limits['cpu']}"
    options = [word for word in one["command"][1:-1] if word != "--supervise"]
    done = run((*XLAUNCH, "plan", "--json", "--synthetic", machine, *options))
    plan = json.loads(done.out)
    assert [it["gpus"][0]["name"] for it in plan["instances"]] == ["0", "1"]
    assert [it["core_count"] for it in plan["instances"]] == [8, 8]


@pytest.mark.machine
def test_the_unit_is_one(tmp_path: Path, needs: Callable[[object, str], None]) -> None:
    needs(shutil.which("systemd-analyze"), "systemd-analyze (Debian: systemd)")
    (unit,) = [it for it in blocks_of("services.md") if it.language == "ini"]
    (tmp_path / "serve@0.service").write_text(unit.text)
    done = run(("systemd-analyze", "verify", str(tmp_path / "serve@0.service")), cwd=tmp_path)
    said = [line for line in done.err.splitlines() if "serve@" in line]
    assert (done.code, said) == (0, []), done.err


Serve = Callable[..., subprocess.Popen[bytes]]


class TestService:
    """The service of docs/services.md, on ports of this test's choice."""

    @pytest.fixture
    def serve(self, tmp_path: Path, needs: Callable[[object, str], None]) -> Iterator[Serve]:
        needs(find_spec("uvicorn"), "uvicorn (the extra `examples`)")
        (script,) = [it for it in blocks_of("services.md") if "uvicorn" in it.text and it.language == "python"]  # fmt: skip
        (tmp_path / "serve.py").write_text(script.text)
        started: list[subprocess.Popen[bytes]] = []

        def start(*words: str) -> subprocess.Popen[bytes]:
            launch = (*XLAUNCH, "--instances", "2", "--ncores", "1", "--oversubscribe")
            quiet = ("--allocator", "glibc", "-q", "--grace", "5s")
            process = subprocess.Popen(
                (*launch, *quiet, *words), cwd=tmp_path, env=clean_environment()
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.wait()

    def test_all_instances_behind_one_port(self, serve: Serve) -> None:
        port = free_ports(1)
        process = serve("serve.py", str(port))
        assert both_answer(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) in (0, 128 + signal.SIGTERM)

    @pytest.mark.long  # `test_first_minutes` asks a service on two ports
    def test_each_instance_on_its_own_port(self, serve: Serve) -> None:
        first = free_ports(2)
        serve("--substitute", "serve.py", f"{{{first}+index}}")
        assert answers_of(first, first + 1) == ("0", "1")

    @pytest.fixture
    def arguments(self, needs: Callable[[object, str], None]) -> list[str]:
        """The arguments of gunicorn in the page's commands: with one port, and with a port each."""
        needs(find_spec("uvicorn_worker"), "uvicorn-worker (the extra `full`)")
        text = "".join(it.text for it in blocks_of("services.md") if it.language == "sh")
        return re.findall(r"(?<= gunicorn ).*", text)

    @pytest.mark.full
    def test_gunicorns_behind_one_port(self, serve: Serve, arguments: list[str]) -> None:
        port = free_ports(1)
        process = serve(*GUNICORN, *arguments[0].replace("8000", str(port)).split())
        assert both_answer(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    @pytest.mark.full
    def test_each_gunicorn_on_its_own_port(self, serve: Serve, arguments: list[str]) -> None:
        first = free_ports(2)
        words = arguments[1].replace("8000", str(first)).split()
        serve("--substitute", *GUNICORN, *words)
        assert answers_of(first, first + 1) == ("0", "1")


def both_answer(port: int) -> bool:
    """Whether the kernel spreads connections over both instances."""
    answers: set[str] = set()
    deadline = time.monotonic() + 3 * PATIENCE_S
    while not answers >= {"0", "1"} and time.monotonic() < deadline:
        answers.add(ask(port))
    return answers - {""} == {"0", "1"}


def answers_of(*ports: int) -> tuple[str, ...]:
    """What the services on these ports answer, once they do."""
    deadline = time.monotonic() + 3 * PATIENCE_S
    while "" in (answers := tuple(map(ask, ports))) and time.monotonic() < deadline:
        pass
    return answers


def ask(port: int) -> str:
    """The answer of a service; empty if it does not answer yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError:
        time.sleep(0.05)
        return ""
    finally:
        connection.close()
