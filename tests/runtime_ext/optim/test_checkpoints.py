# SPDX-License-Identifier: Apache-2.0
"""State that is saved and loaded: training goes on bit for bit; torch's optimizers understand it."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from tests.runtime_ext.optim.training import (
    EVERY,
    OPTIONS,
    masters,
    ours,
    parameters_of,
    set_gradients,
    torchs,
    train,
)

from xruntime.errors import OptimizerError
from xruntime.optim.native_optimizer import NativeOptimizer


def saved_and_loaded(value: Any) -> Any:
    """As a file has it; only tensors, numbers, dtypes and containers may be in it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same_state(one: NativeOptimizer, other: NativeOptimizer) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    for number, state in first["state"].items():
        assert state.keys() == second["state"][number].keys()
        for key, value in state.items():
            assert torch.equal(value, second["state"][number][key])
            assert value.dtype == second["state"][number][key].dtype


@pytest.mark.parametrize("rounding", ["split", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", EVERY)
def test_training_goes_on_bit_for_bit(name: str, dtype: torch.dtype, rounding: str) -> None:
    options = {"rounding": rounding, "state_dtype": torch.bfloat16}
    parameters = parameters_of(dtype)
    optimizer = ours(name, parameters, generator=torch.Generator().manual_seed(3), **options)
    train(optimizer, parameters, range(3))
    saved = saved_and_loaded([[p.detach() for p in parameters], optimizer.state_dict()])
    train(optimizer, parameters, range(3, 6))

    again = parameters_of(dtype)
    for parameter, value in zip(again, saved[0], strict=True):
        parameter.data.copy_(value)
    loaded = ours(name, again, lr=123.0, **options)
    loaded.load_state_dict(saved[1])
    train(loaded, again, range(3, 6))
    for one, other in zip(parameters, again, strict=True):
        assert torch.equal(one, other)
    assert_same_state(optimizer, loaded)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_like_its_original(duplicate: Any) -> None:
    parameters = parameters_of(torch.bfloat16)
    optimizer = ours("adam", parameters, rounding="stochastic")
    train(optimizer, parameters, range(2))
    copied = duplicate(optimizer)
    others = copied.param_groups[0]["params"]
    train(optimizer, parameters, range(2, 4))
    train(copied, others, range(2, 4))
    for one, other in zip(parameters, others, strict=True):
        assert one is not other
        assert torch.equal(one, other)


def test_manual_seed_decides_what_stochastic_rounding_draws() -> None:
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        parameters = parameters_of(torch.bfloat16)
        train(ours("plain", parameters, lr=0.001, rounding="stochastic"), parameters, range(4))
        results.append(torch.cat([p.detach().flatten() for p in parameters]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


class Model(torch.nn.Module):
    """Tied weights, a buffer, a frozen parameter."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.first = torch.nn.Linear(5, 4)
        self.second = torch.nn.Linear(4, 5)
        self.tied = torch.nn.Linear(5, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.tied.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("counts", torch.arange(3))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.second(self.first(x)))


def fit(model: Model, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    train(optimizer, trained, seeds)


@pytest.mark.parametrize("name", OPTIONS)
def test_training_in_fp32_goes_on_in_split_bf16_and_back(name: str) -> None:
    """Weights and state move from torch to here and to torch again, and stay close to torch alone."""
    full = Model(torch.float32)
    reference = torchs(name, full.parameters())
    fit(full, reference, range(3))

    half = Model(torch.bfloat16)
    optimizer = ours(name, half.parameters())
    optimizer.load_state_dict(saved_and_loaded(reference.state_dict()))
    optimizer.load_master_state_dict(half, saved_and_loaded(full.state_dict()))
    for key, value in optimizer.master_state_dict(half).items():
        assert torch.equal(value, full.state_dict()[key]), key
    fit(half, optimizer, range(3, 6))

    back = Model(torch.float32)
    back.load_state_dict(saved_and_loaded(optimizer.master_state_dict(half)))
    again = torchs(name, back.parameters())
    again.load_state_dict(saved_and_loaded(optimizer.torch_state_dict()))
    fit(back, again, range(6, 9))

    fit(full, reference, range(3, 9))
    for one, other in zip(back.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_master_state_dict_is_a_copy_in_fp32() -> None:
    model = Model(torch.bfloat16)
    optimizer = ours("adam", model.parameters())
    before = optimizer.master_state_dict(model)
    assert {v.dtype for v in before.values()} == {torch.float32, torch.int64}
    kept = {name: value.clone() for name, value in before.items()}
    fit(model, optimizer, range(2))
    for name, value in before.items():
        assert torch.equal(value, kept[name])
    after = optimizer.master_state_dict(model)
    assert torch.equal(after["first.weight"], after["tied.weight"])
    assert not torch.equal(after["first.weight"], model.first.weight.float())
    torch.testing.assert_close(
        after["first.weight"], model.first.weight.detach().float(), rtol=2**-8, atol=0
    )


def test_given_weights_are_dropped_with_a_warning_if_other_code_writes_the_parameters() -> None:
    model, full = Model(torch.bfloat16), Model(torch.float32)
    weights = {name: value + 1e-3 for name, value in full.state_dict().items()}
    optimizer = ours("adam", model.parameters())
    optimizer.load_master_state_dict(model, weights)
    with torch.no_grad():
        model.first.weight.copy_(model.first.weight.clone())  # as a broadcast does
    message = "Adam: other code, such as DistributedDataParallel, has written 1 parameters after"
    with pytest.warns(UserWarning, match=message):
        masters = optimizer.master_state_dict(model)
    assert torch.equal(masters["first.weight"], model.first.weight.float())
    assert torch.equal(masters["first.bias"], weights["first.bias"])
    optimizer.load_master_state_dict(model, weights)
    assert torch.equal(optimizer.master_state_dict(model)["first.weight"], weights["first.weight"])
    fit(model, optimizer, range(1))
    with torch.no_grad():
        model.first.weight.mul_(1)  # a mask after a step: what steps have accumulated is kept
    fit(model, optimizer, range(1, 2))
    masters = optimizer.master_state_dict(model)
    assert not torch.equal(masters["first.weight"], model.first.weight.float())


def test_state_keeps_the_layout_of_its_parameter() -> None:
    start = torch.randn(4, 3, 5, 2).bfloat16()
    parameter = torch.nn.Parameter(start.contiguous(memory_format=torch.channels_last))
    optimizer = ours("adam", [parameter])
    train(optimizer, [parameter], range(2))
    plain = torch.nn.Parameter(parameter.detach().contiguous())
    loaded = ours("adam", [plain])
    loaded.load_state_dict(optimizer.state_dict())
    set_gradients([parameter], [plain], seed=5)
    optimizer.step()
    loaded.step()
    assert torch.equal(masters(optimizer, [parameter])[0], masters(loaded, [plain])[0])


def test_a_state_of_another_model_is_refused_and_changes_nothing() -> None:
    parameters = parameters_of(torch.bfloat16)
    optimizer = ours("adam", parameters)
    train(optimizer, parameters, range(1))
    before = copy.deepcopy(optimizer)
    other = parameters_of(torch.bfloat16, ((5, 3), (1,), (0,), (17, 33), ()))
    larger = ours("adam", other)
    train(larger, other, range(1))
    with pytest.raises(
        OptimizerError, match=r"'exp_avg' .* shape \(5, 3\), the parameter \(3, 5\)"
    ):
        optimizer.load_state_dict(larger.state_dict())
    amsgrad = torch.optim.Adam(parameters_of(torch.float32), amsgrad=True)
    with pytest.raises(OptimizerError, match="amsgrad=True is not supported"):
        optimizer.load_state_dict(amsgrad.state_dict())
    assert_same_state(optimizer, before)


def test_what_hooks_of_loading_change_is_kept() -> None:
    parameters = parameters_of(torch.bfloat16)
    optimizer = ours("adam", parameters)
    train(optimizer, parameters, range(2))
    saved = optimizer.state_dict()
    exact = saved["state"][0]["exp_avg"] * 3
    calls = []

    def triple(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        states = {
            number: state | {"exp_avg": state["exp_avg"] * 3}
            for number, state in given["state"].items()
        }
        return given | {"state": states}

    def empty(loaded: torch.optim.Optimizer) -> None:
        calls.append(loaded.state[parameters[0]]["exp_avg"].clone())
        loaded.state[parameters[0]]["exp_avg_sq"].zero_()

    hooks = [
        optimizer.register_load_state_dict_pre_hook(triple),
        optimizer.register_load_state_dict_post_hook(empty),
    ]
    optimizer.load_state_dict(saved)
    assert torch.equal(calls[0], exact)  # in fp32: not by way of the parameter's dtype
    state = optimizer.state[parameters[0]]
    assert torch.equal(state["exp_avg"], exact)
    assert (state["exp_avg_sq"] == 0).all()
    for hook in hooks:
        hook.remove()
    optimizer.load_state_dict(saved)
    assert len(calls) == 1
    assert torch.equal(optimizer.state[parameters[0]]["exp_avg"] * 3, exact)


def test_torch_has_no_lamb() -> None:
    with pytest.raises(OptimizerError, match=r"torch\.optim has no such optimizer"):
        ours("lamb", parameters_of(torch.bfloat16)).torch_state_dict()
