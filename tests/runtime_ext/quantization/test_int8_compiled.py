# SPDX-License-Identifier: Apache-2.0
"""INT8 modules, compiled: by themselves, from a file, in streams, pinned."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tests.runtime_ext.quantization.int8_models import calibrated, images, residual

from xruntime import CPUPool, MultiStreamModule, compile_for_streams, pin
from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.quantization import QuantConf, QuantizedModule, convert, load, prepare, save

pytestmark = pytest.mark.usefixtures("compiler", "torchao")

TOLERANCE = 0.02
"""Of the outputs' norm: a value that is rounded to the neighbouring integer in some layers."""


@pytest.fixture(scope="module")
def module(compiler: None, torchao: None) -> QuantizedModule:
    return convert(calibrated(residual()))


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return ((left - right).norm() / right.norm()).item()


@pytest.mark.long
def test_a_module_is_compiled_into_int8_kernels(
    module: QuantizedModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.utils import run_and_get_code

    with torch.inference_mode(), pin(CPUPool(CPUPool().core_ids[:1])):
        outputs, sources = run_and_get_code(module, images(4))
    kernels = "\n".join(sources)
    assert "qconv" in kernels
    assert "qlinear" in kernels
    assert distance(outputs, module.eager(images(4))) < TOLERANCE
    with torch.no_grad():
        assert distance(outputs, residual()(images(4))) < 0.05


@pytest.mark.long
def test_streams_and_pins_compute_the_same(
    module: QuantizedModule, two: CPUPool, first: CPUPool, nothing_stays_changed: None
) -> None:
    assert kind_of(module) is CallableKind.COMPILED_CPP
    with pin(first):
        expected = module(images(4))
    with pin(second_of(two)):
        assert torch.equal(module(images(4)), expected)
    with MultiStreamModule(module, num_streams=2, cpu_pool=two) as streams:
        joined = streams(torch.cat([images(4), images(4)]))
    assert torch.equal(joined, torch.cat([expected, expected]))


def second_of(pool: CPUPool) -> CPUPool:
    return CPUPool(pool.core_ids[1:])


@pytest.mark.full
def test_a_loaded_module_computes_the_same(
    module: QuantizedModule, first: CPUPool, tmp_path: Path
) -> None:
    save(module, tmp_path / "model.pt2")
    with pin(first):
        assert torch.equal(load(tmp_path / "model.pt2")(images(4)), module(images(4)))


@pytest.mark.full
def test_it_can_be_compiled_for_streams(module: QuantizedModule, first: CPUPool) -> None:
    fast = compile_for_streams(module, images(4), threads=1)
    with pin(first):
        assert torch.equal(fast(images(4)), module(images(4)))


@pytest.mark.full
def test_each_shape_has_code_of_its_own(
    module: QuantizedModule, first: CPUPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="xruntime")
    with pin(first):
        before = module(images(4))
        other = module(images(6))
        graphs = len(caplog.messages)
        assert torch.equal(module(images(4)), before)
        assert len(caplog.messages) == graphs > 0
    assert distance(other, module.eager(images(6))) < TOLERANCE


@pytest.mark.long
def test_dynamic_ranges_include_zero() -> None:
    """Inductor's own leave it out: of positive inputs, the largest were clipped by the smallest."""
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6)).eval()
    module = convert(prepare(model, QuantConf("dynamic"), torch.rand(4, 8)))
    # It resets torch's compiler, so nothing that was compiled before is called again.
    _, sources = run_and_get_code(module, torch.rand(4, 8))
    assert "qlinear" in "\n".join(sources)
    for low, high in ((5.0, 6.0), (-6.0, -5.0), (-1.0, 1.0)):
        batch = torch.empty(4, 8).uniform_(low, high)
        outputs = module(batch)
        torch.testing.assert_close(outputs, module.eager(batch), rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            assert distance(outputs, model(batch)) < 0.02
