# SPDX-License-Identifier: Apache-2.0
"""`device`, `describe_device` and `device_option`: what works is taken, and everything else has a reason."""

from __future__ import annotations

import argparse
import json
import re
import sys

import click
import pytest
import torch
from click.testing import CliRunner
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.interpreters import start_python
from torch.utils._python_dispatch import TorchDispatchMode

from xlaunch.machine.topology import Gpu, Vendor
from xruntime import DeviceError, cli, describe_device, device, device_option, devices


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said before, and no variable chooses."""
    monkeypatch.setattr(devices, "_said", set())
    monkeypatch.delenv("XLAUNCH_DEVICE", raising=False)


@pytest.fixture
def gpu(needs: Needs) -> torch.device:
    needs(torch.cuda.is_available(), "a GPU that torch computes on by CUDA")
    return torch.device("cuda", torch.cuda.current_device())


def test_auto_takes_what_works_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = device("auto")
    assert (torch.ones(2, device=chosen) + 1).tolist() == [2.0, 2.0]
    assert device() == device(chosen) == chosen
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"xruntime: device {chosen} (")
    if chosen.type == "cpu":
        assert all(kind in line.partition("; not ")[2] for kind in ("cuda", "xpu", "mps"))


def test_named_device_is_taken_although_others_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert device("cpu") == torch.device("cpu")
    assert re.fullmatch(r"xruntime: device cpu \(.+\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:-1", "cuda:x", "cpu:1", "CPU", "meta"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=f"^device '{name}': not auto, cpu, cuda"):
        device(name)


def test_variable_is_what_auto_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLAUNCH_DEVICE", "cpu")
    assert device() == torch.device("cpu")
    assert capsys.readouterr().err.startswith("xruntime: XLAUNCH_DEVICE: device cpu (")
    monkeypatch.setenv("XLAUNCH_DEVICE", "gpu")
    assert device("cpu") == torch.device("cpu")
    with pytest.raises(DeviceError, match=r"^XLAUNCH_DEVICE: device 'gpu': not auto"):
        device()
    monkeypatch.setenv("XLAUNCH_DEVICE", "")
    assert device().type in ("cpu", "cuda", "xpu", "mps")


@pytest.mark.machine
def test_driver_error_is_a_reason_of_one_line(
    needs: Needs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build that says it has CUDA and MPS, and fails on both."""
    needs(not torch.version.cuda and not torch.backends.mps.is_built(), "a build of torch for CPUs")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.backends.mps.is_built", lambda: True)
    assert device() == torch.device("cpu")
    (line,) = capsys.readouterr().err.splitlines()
    assert "; not cuda: Torch not compiled with CUDA enabled; not xpu: not in this build" in line
    assert "; not mps: " in line
    with pytest.raises(
        DeviceError, match=r"^device cuda: Torch not compiled with CUDA enabled; cpu"
    ):
        device("cuda")


@pytest.mark.machine
def test_gpu_beside_a_build_without_it_is_told(
    needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(not torch.version.cuda and not torch.version.hip, "a build of torch without CUDA")
    monkeypatch.setattr(devices, "read_gpus", lambda tree: (Gpu(Vendor.NVIDIA, "10de:2335"),))
    with pytest.raises(
        DeviceError, match=r"this machine has a GPU of NVIDIA: install torch's build"
    ):
        device("cuda")


def test_device_that_computes_something_else_is_refused() -> None:
    class WrongProducts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            wrong = func is torch.ops.aten.mm.default and result.is_floating_point()
            return result + 1 if wrong else result

    with WrongProducts(), pytest.raises(DeviceError, match="cpu: it computes a wrong product"):
        device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_modes_of_the_program_do_not_matter(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            assert device("cpu") == torch.device("cpu")
    finally:
        torch.set_default_dtype(before)


def test_description_of_the_cpu() -> None:
    found = describe_device("cpu")
    assert found.device == "cpu"
    assert found.name
    assert found.instruction_set == torch.backends.cpu.get_cpu_capability()
    assert found.torch.startswith(torch.__version__)
    if sys.platform == "linux":
        assert found.memory_bytes > 1 << 28
        assert found.cpus is not None
    first, *rows = str(found).splitlines()
    assert first == "device cpu"
    assert [row.split()[0] for row in rows][:2] == ["name", "memory"]
    assert "None" not in str(found)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train.py")
    assert device_option(parser) is parser
    return parser.parse_args(arguments)


def test_option_of_argparse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse("--device", "cpu").device == torch.device("cpu")
    assert parse().device == device()
    with pytest.raises(SystemExit) as caught:
        parse("--device", "False")
    assert caught.value.code == 2
    error = "argument --device: device 'False': not auto, cpu, cuda[:N], xpu[:N] or mps"
    assert capsys.readouterr().err.endswith(f"train.py: error: {error}\n")
    monkeypatch.setenv("XLAUNCH_DEVICE", "cpu")
    assert parse().device == torch.device("cpu")


def test_option_in_a_group_with_many_others(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse cannot wrap a usage whose metavars have brackets."""
    parser = argparse.ArgumentParser()
    device_option(parser.add_argument_group("where"))
    for name in ("one", "two", "three", "four", "five", "six"):
        parser.add_argument(f"--a-long-option-{name}")
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--help"])
    assert caught.value.code == 0
    assert "XLAUNCH_DEVICE" in capsys.readouterr().out


def test_option_of_click() -> None:
    @click.command()
    @device_option
    def train(device: torch.device) -> None:
        click.echo(f"on {device!r}")

    told = CliRunner().invoke(train, ["--device", "cpu"])
    assert told.stdout == "on device(type='cpu')\n"
    wrong = CliRunner().invoke(train, ["--device", "False"])
    assert wrong.exit_code == 2
    assert wrong.output.endswith(
        "Invalid value for '--device': device 'False': not auto, cpu, cuda[:N], xpu[:N] or mps\n"
    )
    assert "XLAUNCH_DEVICE" in CliRunner().invoke(train, ["--help"]).output


def test_option_of_something_else_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"^device_option\('train.py'\): not a parser"):
        device_option("train.py")


def test_command_prints_the_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"schema_version": 1, **describe_device("cpu")._asdict()}
    assert cli.run(["device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{describe_device('cpu')}\n"


@pytest.mark.machine
def test_gpu_is_taken_and_described(gpu: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    assert device() == gpu
    name = torch.cuda.get_device_name(gpu)
    assert capsys.readouterr().err == f"xruntime: device {gpu} ({name})\n"
    found = describe_device("cuda")
    assert (found.device, found.name) == (str(gpu), name)
    assert 0 < found.free_bytes <= found.memory_bytes
    assert found.compute_capability
    assert found.bf16 == torch.cuda.is_bf16_supported(including_emulation=False)
    assert (torch.version.cuda or torch.version.hip or "") in found.torch


@pytest.mark.machine
def test_number_beyond_the_gpus_is_refused(gpu: torch.device) -> None:
    count = torch.cuda.device_count()
    with pytest.raises(DeviceError, match=rf"^device cuda:{count}: there is none of this number"):
        device(f"cuda:{count}")


@pytest.mark.machine
def test_hidden_gpu_is_told_and_the_cpu_taken(gpu: torch.device) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = start_python("-m", "xruntime", "device", "--json", **hidden)
    assert json.loads(done.stdout)["device"] == "cpu"
    assert "; not cuda: No CUDA GPUs are available" in done.stderr
    done = start_python("-m", "xruntime", "device", "cuda", **hidden)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "xruntime: error: device cuda: No CUDA GPUs are available;"
        " cpu always works, auto takes what works\n"
    )


@pytest.mark.machine
def test_gpu_under_the_programs_modes(gpu: torch.device) -> None:
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode(), gpu:
        assert device() == gpu
