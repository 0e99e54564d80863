# SPDX-License-Identifier: Apache-2.0
"""`ipex.set_fp32_math_mode`, IPEX_FP32_MATH_MODE, `ipex.enable_onednn_fusion` and `ipex.verbose`."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator

import pytest
import torch

import xruntime.compat.ipex as ipex
from xruntime.compat.ipex import replacements
from xruntime.errors import CompatibilityError, CompatibilityWarning

ONEDNN = torch.backends.mkldnn


def precisions() -> list[str]:
    return [part.fp32_precision for part in (ONEDNN.matmul, ONEDNN.conv, ONEDNN.rnn)]


@pytest.fixture(autouse=True)
def nothing_stays_changed() -> Iterator[None]:
    replacements.reported.clear()
    before = precisions()
    yield
    for part, value in zip((ONEDNN.matmul, ONEDNN.conv, ONEDNN.rnn), before, strict=True):
        part.fp32_precision = value


def test_the_mode_is_that_of_torch() -> None:
    assert ipex.get_fp32_math_mode() is ipex.FP32MathMode.FP32
    ipex.set_fp32_math_mode(mode=ipex.FP32MathMode.BF32, device="cpu")
    assert precisions() == ["bf16"] * 3
    assert ipex.get_fp32_math_mode() is ipex.FP32MathMode.BF32
    ipex.set_fp32_math_mode(ipex.FP32MathMode.TF32)
    assert precisions() == ["tf32"] * 3
    ipex.set_fp32_math_mode()
    assert precisions() == ["ieee"] * 3
    assert ipex.get_fp32_math_mode(device="cpu") is ipex.FP32MathMode.FP32


def test_wrong_modes_and_devices_change_nothing() -> None:
    before = precisions()
    with pytest.raises(
        CompatibilityError, match=r"mode is 'BF32'; allowed are ipex.FP32MathMode.FP32"
    ):
        ipex.set_fp32_math_mode("BF32")
    with pytest.raises(CompatibilityError, match="device is 'xpu'"):
        ipex.set_fp32_math_mode(ipex.FP32MathMode.BF32, device="xpu")
    with pytest.raises(CompatibilityError, match="device is 'xpu'"):
        ipex.get_fp32_math_mode("xpu")
    assert precisions() == before


@pytest.mark.parametrize(
    ("value", "precision", "said"),
    [
        ("BF32", "bf16", "IPEX_FP32_MATH_MODE=BF32 is followed: it sets"),
        ("tf32", "tf32", "IPEX_FP32_MATH_MODE=tf32 is followed"),
        ("2", "bf16", "IPEX_FP32_MATH_MODE=2 is followed"),
        (
            "half",
            None,
            "IPEX_FP32_MATH_MODE=half is ignored: allowed are FP32, TF32, BF32, 0, 1, 2",
        ),
    ],
)
def test_the_variable_sets_the_mode(
    value: str, precision: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPEX_FP32_MATH_MODE", value)
    before = precisions()
    with pytest.warns(CompatibilityWarning, match=said):
        importlib.reload(ipex)
    assert precisions() == ([precision] * 3 if precision else before)


def test_the_switch_of_fusions_is_accepted_and_reported() -> None:
    with pytest.warns(CompatibilityWarning, match="no effect: torch.compile fuses by itself"):
        ipex.enable_onednn_fusion(False)


def test_verbose_prints_onednn_s_calls(capfd: pytest.CaptureFixture[str]) -> None:
    model, batch = torch.nn.Conv2d(16, 16, 3), torch.rand(4, 16, 32, 32)
    with torch.no_grad(), ipex.verbose(ipex.VERBOSE_ON):
        model(batch)
    ctypes.CDLL(None).fflush(None)
    assert "convolution" in capfd.readouterr().out
    with torch.no_grad(), ipex.verbose(ipex.VERBOSE_OFF):
        model(batch)
    ctypes.CDLL(None).fflush(None)
    assert "convolution" not in capfd.readouterr().out
