# SPDX-License-Identifier: Apache-2.0
"""Models and optimizers that are optimized for training, beside torch's in fp32."""

from __future__ import annotations

import copy
import pickle
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xruntime import optim, optimize
from xruntime.errors import OptimizationError
from xruntime.optimization import PassOutcome, explain

RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(12, 3, 6, 6, generator=RANDOM)
LABELS = torch.randint(0, 4, (12,), generator=RANDOM)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # A bias here would have no gradient but rounding errors, because the norm removes it.
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(images))).mean((2, 3)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(IMAGES), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def made(name: str) -> tuple[Classifier, torch.optim.Optimizer]:
    """A model and torch's optimizer with two groups, after three steps."""
    torch.manual_seed(0)
    model = Classifier()
    kind, options = OPTIMIZERS[name]
    groups = [
        {"params": [model.first.weight, model.last.weight]},
        {
            "params": [model.last.bias, *model.norm.parameters()],
            "lr": options["lr"] / 2,
        },
    ]
    optimizer = kind(groups, **options)
    train(model, optimizer, 3)
    return model, optimizer


def optimized(name: str, dtype: torch.dtype | None = torch.bfloat16, **options: Any) -> Any:
    """`made(name)`'s model, and the one and the optimizer that optimize() makes of it."""
    model, optimizer = made(name)
    return model, *optimize(model, optimizer=optimizer, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_in_fp32(name: str, dtype: torch.dtype | None) -> None:
    model, optimizer = made(name)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    faster, stepper = optimize(model, optimizer=optimizer, dtype=dtype, sample_input=IMAGES)
    assert model.training is faster.training is True
    assert type(stepper) is getattr(optim, type(optimizer).__name__)
    torch.testing.assert_close(dict(faster.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    ours = train(faster, stepper, 10)
    # The input is as it was.
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), saved, rtol=0, atol=0)
    expected = train(model, optimizer, 10)
    tolerance = 1e-4 if dtype is None else 0.05
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    # Adam steps as far for a gradient that is mostly rounding errors, so parameters are compared together.
    start, reached, found = (
        torch.cat([value.flatten() for value in state.values() if value.is_floating_point()])
        for state in (saved[0], model.state_dict(), faster.state_dict())
    )
    share = 1e-3 if dtype is None else 0.2
    assert (found - reached).norm() < share * (reached - start).norm()
    split = explain(faster).step("split_bf16")
    assert split.outcome is (PassOutcome.SKIPPED if dtype is None else PassOutcome.APPLIED)
    if dtype is not None:
        assert faster.first.weight.dtype == torch.bfloat16
        assert faster.norm.weight.dtype == torch.float32
        assert faster(IMAGES).dtype == torch.float32
        assert explain(faster).bytes_after < explain(faster).bytes_before


def test_small_updates_are_not_lost() -> None:
    """Each update is below half a unit of a bf16 weight, and together they move the fp32 weight."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    faster, stepper = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    for _ in range(100):
        stepper.zero_grad()
        faster(torch.ones(1, 1)).sum().backward()
        stepper.step()
    torch.testing.assert_close(faster.state_dict()["weight"], torch.tensor([[0.99]]))


def test_state_dicts_load_in_stock_torch_and_back() -> None:
    _, faster, stepper = optimized("adamw")
    train(faster, stepper, 2)
    plain = Classifier()
    plain.load_state_dict(faster.state_dict())
    assert all(p.dtype == torch.float32 for p in plain.parameters())
    exact = copy.deepcopy(plain.state_dict())
    train(faster, stepper, 2)
    assert not torch.equal(faster.state_dict()["last.weight"], exact["last.weight"])
    result = faster.load_state_dict(exact)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    torch.testing.assert_close(dict(faster.state_dict()), dict(exact), rtol=0, atol=0)
    # As a part of another module, both ways.
    whole = nn.ModuleDict({"part": faster})
    saved = copy.deepcopy(whole.state_dict())
    assert saved["part.last.weight"].dtype == torch.float32
    train(faster, stepper, 1)
    whole.load_state_dict(saved)
    torch.testing.assert_close(dict(faster.state_dict()), dict(exact), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="size mismatch"):
        faster.load_state_dict({**exact, "last.weight": torch.ones(2, 2)})


def test_a_part_saves_and_loads_weights_in_fp32() -> None:
    _, faster, stepper = optimized("adamw")
    train(faster, stepper, 2)
    whole, part = faster.state_dict(), faster.last.state_dict()
    assert list(part) == ["weight", "bias"]
    assert all(torch.equal(part[name], whole[f"last.{name}"]) for name in part)
    assert not torch.equal(part["weight"], part["weight"].bfloat16().float())
    drawn = {name: torch.randn(value.shape) for name, value in part.items()}
    faster.last.load_state_dict(drawn)
    torch.testing.assert_close(dict(faster.last.state_dict()), drawn, rtol=0, atol=0)
    expected = dict(whole) | {f"last.{name}": value for name, value in drawn.items()}
    torch.testing.assert_close(dict(faster.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_copy_is_a_plain_module_with_weights_in_fp32(dtype: torch.dtype | None) -> None:
    _, faster, stepper = optimized("adamw", dtype)
    train(faster, stepper, 2)
    exact = {name: value.clone() for name, value in faster.state_dict().items()}
    copied = copy.deepcopy(nn.ModuleDict({"part": faster}))["part"]
    assert type(copied) is Classifier
    assert type(copied.last) is nn.Linear
    torch.testing.assert_close(dict(copied.state_dict()), exact, rtol=0, atol=0)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in copied.parameters())
    # It goes its own way, and can be pickled.
    train(faster, stepper, 2)
    torch.testing.assert_close(dict(copied.state_dict()), exact, rtol=0, atol=0)
    drawn = {name: torch.randn_like(value.float()) for name, value in exact.items()}
    copied.load_state_dict(drawn)
    assert torch.equal(pickle.loads(pickle.dumps(copied)).last.weight, drawn["last.weight"])
    assert torch.equal(copied.last.weight, drawn["last.weight"])
    assert not torch.equal(faster.state_dict()["last.weight"], drawn["last.weight"])


def test_weights_are_averaged_in_fp32() -> None:
    _, faster, stepper = optimized("sgd")
    average = torch.optim.swa_utils.AveragedModel(faster)
    seen = []
    for _ in range(3):
        train(faster, stepper, 1)
        average.update_parameters(faster)
        seen.append(faster.last.weight.detach().float())
    assert average.module.last.weight.dtype == torch.float32
    torch.testing.assert_close(average.module.last.weight.detach(), sum(seen) / 3)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_trained_model_is_optimized_again_for_evaluation(dtype: torch.dtype | None) -> None:
    _, faster, stepper = optimized("adam", dtype)
    train(faster, stepper, 2)
    with pytest.raises(OptimizationError, match="leave inplace out, and a copy"):
        optimize(faster.eval(), inplace=True)
    fast = optimize(faster, dtype=dtype, sample_input=IMAGES, graph="none")
    with torch.no_grad():
        torch.testing.assert_close(fast(IMAGES), faster(IMAGES), rtol=0.05, atol=0.05)
    assert explain(fast).step("conv_bn").outcome is PassOutcome.APPLIED
    torch.testing.assert_close(dict(fast.state_dict()), dict(faster.state_dict()), rtol=0, atol=0)
    # Training goes on.
    before = faster.state_dict()["last.weight"].clone()
    train(faster.train(), stepper, 1)
    assert not torch.equal(faster.state_dict()["last.weight"], before)


def test_a_trained_model_is_not_pickled_and_its_parts_are_not_copied() -> None:
    faster = optimized("sgd")[1]
    with pytest.raises(OptimizationError, match=r"copy all of it by copy.deepcopy, or load its"):
        pickle.dumps(faster)
    with pytest.raises(OptimizationError, match=r"its parts are not copied"):
        copy.deepcopy(faster.last)


def test_torch_compiles_a_trained_model_whole() -> None:
    losses = []
    for compiled in (False, True):
        _, faster, stepper = optimized("sgd", sample_input=IMAGES)
        called = faster
        if compiled:
            called = torch.compile(faster, fullgraph=True, backend="aot_eager")
        losses.append(train(called, stepper, 3))
        assert called(IMAGES).dtype == torch.float32
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0.01)


def test_methods_and_parts_of_a_trained_model_take_and_return_float32() -> None:
    model, faster, _ = optimized("adamw")
    assert explain(faster).step("split_bf16").outcome is PassOutcome.APPLIED
    assert type(faster).__name__ == "Classifier"
    features = torch.randn(3, 8, requires_grad=True)
    scores = faster.last(features)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, model.last(features), rtol=0.05, atol=0.05)
    scores.sum().backward()
    assert features.grad is not None
    assert faster.last.weight.grad.dtype == torch.bfloat16


class Unknown(torch.optim.SGD):
    """A third party's optimizer."""


def test_other_optimizers_are_left_as_they_are() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = Unknown(model.parameters(), lr=0.1)
    faster, stepper = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    assert type(stepper) is Unknown
    assert stepper is not optimizer
    for name in ("fused_optimizer", "split_bf16"):
        assert explain(faster).step(name).outcome is PassOutcome.SKIPPED
    assert "Unknown is not one of torch's SGD" in explain(faster).step("fused_optimizer").reason
    assert faster.last.weight.dtype == torch.float32
    ours, expected = train(faster, stepper, 5), train(model, optimizer, 5)
    torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.05)


def test_what_our_optimizers_do_not_support_is_skipped() -> None:
    model = Classifier()
    hooked = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    for optimizer, reason in (
        (torch.optim.Adam(model.parameters(), amsgrad=True), "amsgrad=True is not supported"),
        (hooked, "SGD has hooks"),
    ):
        faster, stepper = optimize(model, optimizer=optimizer, inplace=True)
        assert stepper is optimizer
        assert faster is model
        assert reason in explain(faster).step("fused_optimizer").reason
        model = Classifier()
    lamb = optim.Lamb(model.parameters())
    faster, stepper = optimize(model, optimizer=lamb, dtype=torch.bfloat16)
    assert "one of xruntime.optim already" in explain(faster).step("fused_optimizer").reason
    assert explain(faster).step("split_bf16").outcome is PassOutcome.APPLIED
    losses = train(faster, stepper, 5)
    assert losses[-1] < losses[0]


def test_inplace_keeps_the_model_and_returns_another_optimizer() -> None:
    model, faster, stepper = optimized("sgd", sample_input=IMAGES, inplace=True)
    assert faster is model
    assert model.training
    held = {id(p) for group in stepper.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert train(faster, stepper, 5)[-1] < 2


def test_tied_and_frozen_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(10, 8)
            self.frozen = nn.Linear(8, 8)
            self.frozen.requires_grad_(False)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.frozen(self.tokens(ids)))

    model = Tied()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    faster, stepper = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    assert faster.head.weight is faster.tokens.weight
    assert faster.head.weight.dtype == torch.bfloat16
    assert faster.frozen.weight.dtype == torch.float32
    faster(torch.randint(0, 10, (2, 3))).square().mean().backward()
    stepper.step()
    saved = faster.state_dict()
    for prefix, state in (("", saved), ("0.", nn.Sequential(faster).state_dict())):
        head, tokens = state[f"{prefix}head.weight"], state[f"{prefix}tokens.weight"]
        # One storage, so that a file holds it once.
        assert head.data_ptr() == tokens.data_ptr()
        assert head.dtype == torch.float32
    fresh = Tied()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.frozen.weight, model.frozen.weight)


def test_channels_last_keeps_parameters() -> None:
    model, faster, stepper = optimized("sgd", None, sample_input=IMAGES)
    assert explain(faster).step("channels_last").outcome is PassOutcome.APPLIED
    assert faster.first.weight.is_contiguous(memory_format=torch.channels_last)
    assert any(p is faster.first.weight for p in stepper.param_groups[0]["params"])
    assert model.first.weight.is_contiguous()


def test_refusals() -> None:
    model, optimizer = made("sgd")

    def refused(text: str, **arguments: Any) -> None:
        with pytest.raises(OptimizationError, match=text):
            optimize(model, **{"optimizer": optimizer, **arguments})

    refused(r"optimizer: a torch.optim.Optimizer is expected, not a float", optimizer=0.1)
    refused(r"dtype=torch.float16: allowed for training are float32, bfloat16", dtype=torch.float16)
    refused(r"graph='compile' was removed", graph="compile")
    refused(r"measure=True is for inference", measure=True, sample_input=IMAGES)
    refused(r"no 'conv_bn' for training; allowed are channels_last", passes={"conv_bn": True})
    more = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)
    refused(r"parameters that are not in Classifier.*inplace=True", optimizer=more)
    scheduled = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 10)
    refused(r"make the scheduler after optimize", optimizer=scheduled)


def test_what_was_compiled_or_scripted_is_refused() -> None:
    model, optimizer = made("sgd")
    for given, kind in (
        (torch.compile(model), "a module that torch.compile wrapped in Python"),
        (torch.jit.script(model), "a TorchScript module"),
    ):
        with pytest.raises(OptimizationError, match=f"is {kind}: give optimize.. the module that"):
            optimize(given, optimizer=optimizer)
    faster, stepper = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    with pytest.raises(OptimizationError, match="is optimized already"):
        optimize(torch.compile(faster), optimizer=stepper)
    with pytest.raises(OptimizationError, match="cannot be scripted: load its state_dict"):
        torch.jit.script(nn.Sequential(faster))


def test_a_module_that_holds_a_trained_one_is_optimized_for_inference() -> None:
    inner, values = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    trained, _ = optimize(inner, optimizer=optimizer, dtype=torch.bfloat16)
    holder = nn.Sequential(trained, nn.Linear(4, 2)).eval()
    optimized = optimize(holder, sample_input=values, graph="none")
    torch.testing.assert_close(optimized(values), holder(values), rtol=0.05, atol=0.05)


def test_weights_of_a_conv1d_are_split(needs: Any) -> None:
    needs(find_spec("transformers"), "pip install transformers")
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(Conv1D(24, 16), nn.ReLU(), Conv1D(1, 24))
    value, losses = torch.randn(8, 16), []
    exact = copy.deepcopy(model)
    exact_optimizer = torch.optim.SGD(exact.parameters(), lr=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    faster, optimizer = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    for one, steps in ((exact, exact_optimizer), (faster, optimizer)):
        for _ in range(40):
            loss = (one(value) - value[:, :1]).square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
        losses.append(loss.item())
    assert {it.dtype for it in faster.parameters()} == {torch.bfloat16}
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
