# SPDX-License-Identifier: Apache-2.0
"""`--gpus-per-instance` from the command line: with made-up devices, and on a machine with two GPUs.

The made-up ones are directories and files in a mount namespace. The last tests ask torch which GPU each
instance has.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import (
    SHOW,
    XLAUNCH,
    Done,
    ask,
    clean_environment,
    program,
    run,
    two_cpus,
    xlaunch,
)  # fmt: skip
from tests.launcher.launching import wait_until

from xlaunch.machine.gpus import COUNTING, VARIABLES

SCRIPT = Path(__file__).with_name("gpus.sh")
CHOOSING = {*VARIABLES, *COUNTING}
SHARED = ("--ncores", "1", "--oversubscribe", "--allocator", "glibc", "--no-tag")
FIRST_GPU = """
import json, os, sys
import torch

told = {
    "index": int(os.environ["XLAUNCH_INSTANCE_INDEX"]),
    "count": torch.cuda.device_count(),
    "uuid": "GPU-" + str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-"),
    "sum": torch.ones(3, device="cuda").sum().item(),
}
sys.stdout.write(json.dumps(told) + "\\n")
"""
BUSY = """
import time
import torch

numbers = torch.ones(1 << 26, device="cuda")
end = time.monotonic() + 4
while time.monotonic() < end:
    numbers.mul_(1)
    torch.cuda.synchronize()
"""


Run = Callable[..., Done]


def without_choice(**more: str) -> dict[str, str]:
    kept = {name: v for name, v in clean_environment().items() if name not in CHOOSING}
    return kept | more


@pytest.fixture
def with_gpus(tmp_path: Path, needs: Callable[[object, str], None]) -> Run:
    """Run a command on a machine with two made-up GPUs."""
    unshare = ("unshare", "--mount", "sh", str(SCRIPT), str(tmp_path), "2")
    found = shutil.which("unshare") and Path("/sys/bus/pci/drivers").is_dir()
    allowed = found and subprocess.run((*unshare, "true"), capture_output=True, check=False)
    needs(allowed and allowed.returncode == 0, "unshare (util-linux), as root, and a PCI bus")
    shutil.rmtree(tmp_path / "drivers", ignore_errors=True)

    def start(*words: str | Path, **variables: str) -> Done:
        return run((*unshare, *map(str, words)), env=without_choice(**variables))

    return start


def gpus_of(done: Done) -> list[dict[str, str]]:
    return [
        {name: value for name, value in told["env"].items() if name in CHOOSING}
        for told in done.shown()
    ]


def by_number(*names: str) -> list[dict[str, str]]:
    return [{"CUDA_VISIBLE_DEVICES": n, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} for n in names]


@pytest.mark.machine
class TestMadeUp:
    def test_each_instance_has_one_and_the_report_names_it(
        self, with_gpus: Run, tmp_path: Path
    ) -> None:
        report = tmp_path / "run.json"
        launch = (*XLAUNCH, "--gpus-per-instance", "1", *SHARED, "--instances", "2")
        done = with_gpus(*launch, "--report", report, SHOW)
        assert gpus_of(done) == by_number("0", "1")
        told = [it["gpus"] for it in json.loads(report.read_text())["instances"]]
        assert told == [["0000:00:00.0"], ["0000:01:00.0"]]
        lines = done.err.splitlines()
        (head,) = [line for line in lines if line.startswith("instance  CPUs asked")]
        assert head.endswith("GPUs")
        assert sum([line.endswith("0000:01:00.0") for line in lines]) == 1
        turned = with_gpus(*launch, SHOW, CUDA_VISIBLE_DEVICES="1,0")
        assert gpus_of(turned) == by_number("1", "0")

    def test_all_of_them_in_place(self, with_gpus: Run) -> None:
        done = with_gpus(*XLAUNCH, "--gpus-per-instance", "2", SHOW)
        assert gpus_of(done) == by_number("0,1")
        assert "warning" not in done.err

    def test_without_the_option_variables_are_left_alone(self, with_gpus: Run) -> None:
        assert gpus_of(with_gpus(*XLAUNCH, SHOW)) == [{}]
        own = {"CUDA_VISIBLE_DEVICES": "1,0"}
        assert gpus_of(with_gpus(*XLAUNCH, SHOW, **own)) == [own]

    def test_a_launch_inside_keeps_and_divides_what_it_has(
        self, golden: Golden, with_gpus: Run
    ) -> None:
        outer = (*XLAUNCH, "--gpus-per-instance", "2")
        assert gpus_of(with_gpus(*outer, *XLAUNCH, SHOW)) == by_number("0,1")
        inner = (*XLAUNCH, "--gpus-per-instance", "1", "--instances", "2", *SHARED)
        assert gpus_of(with_gpus(*outer, *inner, SHOW)) == by_number("0", "1")
        too_many = with_gpus(*XLAUNCH, "--gpus-per-instance", "1", "--instances", "1", *outer, SHOW)
        golden(too_many.refused())

    def test_two_launches_have_different_ones(self, with_gpus: Run, tmp_path: Path) -> None:
        one = " ".join([*XLAUNCH, "--gpus-per-instance 1 --instances 1 --allocator glibc"])
        script = program(
            tmp_path / "two.sh",
            f"""#!/bin/sh
            cd {tmp_path}
            {one} sh -c 'touch ready; while test ! -e end; do sleep 0.1; done' &
            while test ! -e ready; do sleep 0.1; done
            {" ".join(XLAUNCH)} ps --json > ps.json
            {one} sh -c 'echo $CUDA_VISIBLE_DEVICES'
            {one} --exclusive --gpus-per-instance 2 true
            echo $?
            touch end; wait
            """,
        )
        (tmp_path / "records").mkdir()
        done = with_gpus(script, XLAUNCH_RECORDS_DIR=str(tmp_path / "records"))
        assert done.out.split() == [b"1", b"125"], done.err
        (running,) = json.loads((tmp_path / "ps.json").read_text())["launches"]
        assert running["gpus"] == ["0000:00:00.0"]
        assert "GPUs 0000:00:00.0)" in done.err

    def test_shown_and_not_run(self, with_gpus: Run) -> None:
        options = ("--gpus-per-instance", "1", "--instances", "2", *SHARED)
        shown = with_gpus(*XLAUNCH, "--dry-run", *options, SHOW).out.decode()
        assert "  CUDA_VISIBLE_DEVICES=0 1" in shown
        assert "  CUDA_DEVICE_ORDER=PCI_BUS_ID" in shown
        env = with_gpus(*XLAUNCH, "env", *options, "--instance-index", "1")
        assert b"export CUDA_VISIBLE_DEVICES=1\n" in env.out
        drawn = with_gpus(*XLAUNCH, "topology", CUDA_VISIBLE_DEVICES="1").out.decode()
        assert "NVIDIA GPU 10de:2330: 1  (0000:00:00.0)\n" in drawn
        assert "allowed GPUs: those of CUDA_VISIBLE_DEVICES=1\n" in drawn


SYNTHETIC = ("--synthetic", "package:2 node:1 gpu:4 core:8")


def test_a_made_up_machine_is_drawn_with_its_gpus(golden: Golden) -> None:
    drawn = ask("topology", *SYNTHETIC, "--gpus-per-instance", "3").out.decode()
    golden(drawn)
    told = json.loads(ask("topology", *SYNTHETIC, "--json").out)
    assert told["gpus"][5] == {
        "name": "5", "vendor": "NVIDIA", "model": "10de:2330", "pci_address": "0000:05:00.0",
        "numa_node": 1
    }  # fmt: skip


def test_variables_of_a_planned_instance() -> None:
    options = (*SYNTHETIC, "--gpus-per-instance", "2", "--allocator", "glibc", "--json")
    plan = json.loads(ask("plan", *options, "true").out)
    chosen = [it["environment"]["CUDA_VISIBLE_DEVICES"] for it in plan["instances"]]
    assert chosen == ["0,1", "2,3", "4,5", "6,7"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("max",), "'max' is not a whole number"),
        (("1", "--env", "CUDA_VISIBLE_DEVICES=1", "true"),
         "--env CUDA_VISIBLE_DEVICES and --gpus-per-instance both choose GPUs"),
        (("9",), "8 GPUs may be used: at most --gpus-per-instance 8"),
    ],
)  # fmt: skip
def test_bad_input(options: tuple[str, ...], text: str) -> None:
    assert text in ask("plan", *SYNTHETIC, "--gpus-per-instance", *options).refused()


def real_gpus() -> list[str]:
    """The UUIDs of this machine's NVIDIA GPUs in the order of nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return re.findall(r"UUID: (GPU-[0-9a-f-]+)", told)


@pytest.mark.machine
class TestReal:
    """On a machine with two NVIDIA GPUs and a torch for them."""

    @pytest.fixture
    def uuids(self, needs: Callable[[object, str], None]) -> list[str]:
        found = real_gpus()
        needs(len(found) > 1, "two NVIDIA GPUs")
        two_cpus(needs)
        return found

    def seen(self, *options: str, **variables: str) -> list[tuple[int, str]]:
        """For each instance the number of GPUs that torch sees, and the UUID of the first."""
        quiet = ("--allocator", "glibc", "--no-tag")
        launch = (*XLAUNCH, *options, *quiet, sys.executable, "-c", FIRST_GPU)
        done = run(launch, env=without_choice(**variables))
        assert done.code == 0, done.err
        told = sorted(map(json.loads, done.out.splitlines()), key=lambda one: one["index"])
        assert {one["sum"] for one in told} == {3.0}
        return [(one["count"], one["uuid"]) for one in told]

    def test_each_instance_sees_its_own(self, uuids: list[str]) -> None:
        options = ("--gpus-per-instance", "1")
        found = self.seen(*options)
        assert found == [(1, uuid) for uuid in uuids][: len(found)]
        assert len(found) >= 2

    @pytest.mark.parametrize("name", ["number", "UUID", "beginning of a UUID"])
    def test_an_inherited_choice_is_divided_in_its_order(self, uuids: list[str], name: str) -> None:
        words = {"number": ["1", "0"], "UUID": uuids[1::-1]}.get(
            name, [uuid[:13] for uuid in uuids[1::-1]]
        )
        found = self.seen("--gpus-per-instance", "1", CUDA_VISIBLE_DEVICES=",".join(words))
        assert found == [(1, uuids[1]), (1, uuids[0])]

    def test_two_for_one_instance(self, uuids: list[str]) -> None:
        found = self.seen("--gpus-per-instance", "2", "--instances", "1", "--supervise")
        assert found == [(2, uuids[0])]

    def test_sysfs_and_the_driver_name_the_same_gpus(self, uuids: list[str]) -> None:
        told = json.loads(ask("topology", "--json", env=without_choice()).out)
        assert [gpu["name"] for gpu in told["gpus"]] == [str(i) for i in range(len(uuids))]

    def test_a_second_launch_takes_the_other(self, uuids: list[str], tmp_path: Path) -> None:
        waits = f"while test ! -e {tmp_path}/end; do sleep 0.1; done"
        options = ("--gpus-per-instance", "1", "--instances", "1", "--allocator", "glibc")
        first = subprocess.Popen(
            [*XLAUNCH, *options, "sh", "-c", f"touch {tmp_path}/ready; {waits}"],
            env=without_choice(),
        )
        try:
            wait_until((tmp_path / "ready").exists, "the first launch")
            assert self.seen("--gpus-per-instance", "1", "--instances", "1") == [(1, uuids[1])]
        finally:
            (tmp_path / "end").touch()
            assert first.wait(60) == 0

    def test_devices_of_all_instances_are_watched(self, uuids: list[str], tmp_path: Path) -> None:
        report = tmp_path / "run.json"
        options = ("--gpus-per-instance", "1", "--instances", "2", "--verify-device", "--report")
        done = xlaunch(*options, report, sys.executable, "-c", BUSY, env=without_choice())
        assert done.code == 0, done.err
        devices = json.loads(report.read_text())["devices"]["devices"]
        assert [it["name"] for it in devices][:2] == ["cuda:0", "cuda:1"]
        assert [it["verdict"] for it in devices][:2] == ["worked", "worked"], devices
