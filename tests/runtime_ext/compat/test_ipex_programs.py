# SPDX-License-Identifier: Apache-2.0
"""Programs written for Intel's extension run after a change of one import."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tests.runtime_ext.compat.scripts import PROGRAMS, migrate, run
from tests.runtime_ext.conftest import Needs
from tests.tuner.cli.commands import Desk

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture
def cpus_0_and_1(needs: Needs) -> tuple[int, int]:
    needs({0, 1} <= os.sched_getaffinity(0), "CPUs 0 and 1")
    return 0, 1


@pytest.mark.long
def test_runtime(tmp_path: Path, cpus_0_and_1: tuple[int, int]) -> None:
    done = run("runtime.py", tmp_path, cpus=cpus_0_and_1)
    found = done.found
    assert found["core_ids"] == found["core_list"] == [1]
    assert "CPUPool([1, 2]): this process may not use CPU 2; the pool has CPU 1" in done.errors
    assert found["threads_when_pinned"] == 1
    assert found["streams"] == 2
    assert found["kept"] == {"flags": {"keep": True}}
    assert found["parts"] == [3, 2]
    assert found["differences"].keys() == {"decorator", "block", "task", "run_sync", "streams"}
    assert max(found["differences"].values()) < 1e-6


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_bf16_inference(tmp_path: Path) -> None:
    found = run("bf16_inference.py", tmp_path).found
    assert (len(found["traced"]), len(found["compiled"])) == (3, 2)
    # Roundings to bf16 are there, and nothing else.
    assert all(0 < one < 0.02 * found["largest"] for one in found["traced"] + found["compiled"])


@pytest.mark.full
@pytest.mark.usefixtures("compiler", "torchao")
def test_int8_calibrated_converted_and_deployed_in_processes(tmp_path: Path) -> None:
    calibrated = run("int8.py", tmp_path, "calibrate").found
    assert calibrated["differences"] == [pytest.approx(0, abs=1e-5)]
    recipe = tmp_path / "conf.json"
    content = json.loads(recipe.read_text())
    assert {one["precision"] for one in content["operators"].values()} == {"int8"}
    # The last layer stays float.
    content["operators"]["4"]["precision"] = "float"
    recipe.write_text(json.dumps(content))
    called, *traced = run("int8.py", tmp_path, "convert").found["differences"]
    assert 0 < called < 0.02 * calibrated["largest"]
    assert traced == [called] * 2
    assert run("int8.py", tmp_path, "deploy").found["differences"] == [called] * 2


@pytest.mark.long
def test_bf16_training(tmp_path: Path) -> None:
    found = run("bf16_training.py", tmp_path).found
    assert found["losses"][-1] < 0.5 * found["losses"][0]
    assert "torch.bfloat16" in found["dtypes"]
    assert found["optimizer"].startswith("xruntime.optim")
    saved = torch.load(tmp_path / "checkpoint.pth")
    assert saved["model_state_dict"]["5.weight"].dtype == torch.float32
    remainders = [one.get("remainder") for one in saved["optimizer_state_dict"]["state"].values()]
    assert sum(one is not None for one in remainders) == 4


@pytest.mark.full
def test_hypertune(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    migrate("hypertuned.py", desk.directory)
    configuration = (PROGRAMS / "hypertune.yaml").read_text()
    desk.write("hypertune.yaml", configuration)
    done = desk.xtune("--conf-file", "hypertune.yaml", "hypertuned.py")
    assert done.code == 0, done.err
    assert "@hypertune latency (ms), minimize" in done.err
    launches = desk.xtune("export").found["launches"]
    assert len(launches) == 3
    assert launches[0]["stage"] == "baseline"
    assert all(one["configuration"]["layout"].startswith("1x") for one in launches[1:])
