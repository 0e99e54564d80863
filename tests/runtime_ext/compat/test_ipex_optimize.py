# SPDX-License-Identifier: Apache-2.0
"""The arguments of `ipex.optimize`, and what is reported of them."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import xruntime.compat.ipex as ipex
from xruntime import optimization
from xruntime.compat.ipex import optimizing, replacements, switches
from xruntime.errors import CompatibilityWarning, OptimizationError
from xruntime.optimization import PassOutcome

BATCH = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def nothing_reported() -> None:
    replacements.reported.clear()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 5)]
    return nn.Sequential(*layers).eval()


def applied(model: nn.Module) -> set[str]:
    steps = optimization.explain(model).steps
    return {step.name for step in steps if step.outcome is PassOutcome.APPLIED}


def test_the_result_can_be_traced_and_the_original_stays() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = ipex.optimize(model, torch.bfloat16)
    assert isinstance(fast, nn.Sequential)
    assert {"conv_bn", "dropout", "precision", "weights"} <= applied(fast)
    assert "graph" not in applied(fast)
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(fast, BATCH))
        torch.testing.assert_close(traced(BATCH), model(BATCH), atol=0.02, rtol=0)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("argument", "name"),
    [("conv_bn_folding", "conv_bn"), ("replace_dropout_with_identity", "dropout")],
)
def test_switches(argument: str, name: str) -> None:
    model = small_model()
    assert name in applied(ipex.optimize(model, dtype=torch.bfloat16))
    off: dict[str, Any] = {argument: False}
    assert name not in applied(ipex.optimize(model, dtype=torch.bfloat16, **off))
    on: dict[str, Any] = {argument: True}
    assert name in applied(ipex.optimize(model, level="O0", **on))


def test_every_switch_is_a_pass_or_reported() -> None:
    passes = {*optimization.INFERENCE, *optimization.TRAINING}
    assert set(optimizing.PASSES.values()) <= passes
    names = inspect.signature(ipex.optimize).parameters
    assert names.keys() >= {*optimizing.PASSES, *optimizing.WITHOUT_EFFECT}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"auto_kernel_selection": True}, "auto_kernel_selection=True.*no effect: torch chooses"),
        ({"weights_prepack": False}, "weights_prepack=False.*no effect: torch's compiler"),
        ({"optimize_lstm": True}, "optimize_lstm=True.*no effect: torch calls oneDNN's LSTM"),
        (
            {"fuse_update_step": True},
            "fuse_update_step=True.* has no effect here: it is for training",
        ),
        ({"graph_mode": True}, "graph_mode=True.* compiles only with sample_input"),
    ],
)
def test_arguments_without_effect_are_reported_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.warns(CompatibilityWarning, match=said) as warned:
        ipex.optimize(small_model(), **arguments)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ipex.optimize(small_model(), **arguments)


def test_level_o0_takes_fp32_and_no_lower_dtype() -> None:
    model = small_model()
    plain = ipex.optimize(model, level="O0", dtype=torch.float32)
    assert applied(plain) == applied(ipex.optimize(model, level="O0"))
    assert torch.equal(plain(BATCH), model(BATCH))
    with pytest.raises(OptimizationError, match="level='O0' changes no numerics"):
        ipex.optimize(model, level="O0", dtype=torch.bfloat16)


def test_channels_last_is_switched_off_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "channels_last", None)
    assert "channels_last" in applied(ipex.optimize(small_model()))
    with pytest.warns(CompatibilityWarning, match=r"it is passes={'channels_last': False}"):
        ipex.disable_auto_channels_last()
    assert "channels_last" not in applied(ipex.optimize(small_model()))
    with pytest.warns(CompatibilityWarning, match=r"ipex\.optimize, which does it by default"):
        ipex.enable_auto_channels_last()
    assert "channels_last" in applied(ipex.optimize(small_model()))


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch 2.11's own
def test_the_backend_of_torch_compile_is_inductor() -> None:
    model = small_model()
    with torch.no_grad():
        for options in ({}, {"options": {"freezing": True}}, {"mode": "max-autotune"}):
            replacements.reported.clear()
            torch.compiler.reset()
            compiled: Any = torch.compile(model, backend="ipex", **options)
            with pytest.warns(CompatibilityWarning, match=r"Inductor.* leave the backend out"):
                outputs = compiled(BATCH)
            torch.testing.assert_close(outputs, model(BATCH))


def test_a_torchscript_module_is_returned_as_it_is() -> None:
    scripted = torch.jit.script(nn.Linear(3, 3).eval())
    with pytest.warns(CompatibilityWarning, match="returns a TorchScript module as it is"):
        assert ipex.optimize(scripted, dtype=torch.bfloat16) is scripted


def test_a_sample_checks_the_result() -> None:
    fast = ipex.optimize(small_model(), dtype=torch.bfloat16, sample_input=(BATCH,))
    assert optimization.explain(fast).difference is not None


@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_bf16_under_autocast_where_the_models_own_are(training: bool) -> None:
    """As the extension's were: it did nothing to outputs."""
    model = small_model().train(training)
    fast: Any = ipex.optimize(
        model,
        dtype=torch.bfloat16,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1) if training else None,
    )
    fast = fast[0] if training else fast
    assert fast(BATCH).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert model(BATCH).dtype == dtype
            assert fast(BATCH).dtype == (dtype if dtype == torch.bfloat16 else torch.float32)
    plain = optimization.optimize(small_model(), dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(BATCH).dtype == torch.float32


def test_compiled_outputs_are_bf16_under_autocast() -> None:
    fast = torch.compile(ipex.optimize(small_model(), dtype=torch.bfloat16), backend="eager")
    with torch.no_grad():
        assert fast(BATCH).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert fast(BATCH).dtype == torch.bfloat16


def test_training_in_fp16_is_refused() -> None:
    model = small_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(OptimizationError, match="for training are float32, bfloat16"):
        ipex.optimize(model, dtype=torch.float16, optimizer=optimizer)


def test_inplace() -> None:
    model = small_model()
    assert ipex.optimize(model, dtype=torch.bfloat16, inplace=True) is model


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"dtype": torch.int8}, OptimizationError, "dtype=torch.int8: allowed are float32"),
        ({"level": "O2"}, OptimizationError, "level='O2': allowed are 'O0', 'O1'"),
        ({"sample_input": BATCH.bfloat16()}, Exception, "bfloat16"),
        ({"graph": "none"}, TypeError, "unexpected keyword argument 'graph'"),
    ],
)
def test_bad_input_changes_nothing(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    model = small_model()
    before = {name: (value, value.clone()) for name, value in model.state_dict().items()}
    with pytest.raises(error, match=said) as raised:
        ipex.optimize(model, **arguments, inplace=True)
    assert len(str(raised.value).splitlines()) == 1
    assert type(model) is nn.Sequential
    for name, value in model.state_dict().items():
        assert value.data_ptr() == before[name][0].data_ptr()
        assert torch.equal(value, before[name][1])


def test_training_returns_the_optimizer_and_takes_its_switches() -> None:
    model = small_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"optimizer": optimizer, "dtype": torch.bfloat16}
    fast, fused = ipex.optimize(model, **given)
    assert isinstance(fused, ipex.optim.SGD)
    assert {"split_bf16", "fused_optimizer"} <= applied(fast)
    assert fast[0].weight.dtype == torch.bfloat16
    assert model[0].weight.dtype == torch.float32
    plain, _ = ipex.optimize(model, **given, split_master_weight_for_bf16=False)
    assert "split_bf16" not in applied(plain)
    assert plain[0].weight.dtype == torch.float32
    with pytest.warns(CompatibilityWarning, match=r"conv_bn_folding=True.* it is for inference"):
        ipex.optimize(model, **given, conv_bn_folding=True)
