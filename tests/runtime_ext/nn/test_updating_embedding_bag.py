# SPDX-License-Identifier: Apache-2.0
"""Updates of tables in backward, against torch's optimizers on the gradients."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from tests.tiers import quick_first
from torch import nn

from xruntime.errors import EmbeddingBagError
from xruntime.nn import MergedEmbeddingBag, MergedEmbeddingBagWithAdaGrad, MergedEmbeddingBagWithSGD

pytestmark = pytest.mark.usefixtures("native")

TABLES = [(50, 33), (9, 130), (400, 600), (3, 1)]
KINDS: list[tuple[type, type, dict[str, float]]] = [
    (MergedEmbeddingBagWithSGD, torch.optim.SGD, {"lr": 0.1}),
    (MergedEmbeddingBagWithSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.03}),
    (
        MergedEmbeddingBagWithSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.03},
    ),
    (MergedEmbeddingBagWithAdaGrad, torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-6}),
]

Batch = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def batch(dtype: torch.dtype = torch.float32) -> Batch:
    """Indices, offsets and gradients of results; many rows stay untouched."""
    indices = [torch.randint((rows + 1) // 2, (60,)) for rows, _ in TABLES]
    offsets = [torch.tensor([0, 5, 5, 30, 59]) for _ in TABLES]
    gradients = [torch.randn(5, dim).to(dtype) for _, dim in TABLES]
    return indices, offsets, gradients


class Reference:
    """Tables in fp64 with an optimizer of torch, which only sees rows that were named."""

    def __init__(self, module: Any, kind: type, options: dict[str, float]) -> None:
        self.mode = module.mode
        self.tables = [nn.Parameter(weight.double().detach()) for weight in module.master_weights()]
        self.optimizer = kind(self.tables, **options)

    def step(self, tables: list[torch.Tensor], data: Batch) -> None:
        """Step with the gradients at `tables`, and undo what it does to rows that are not named."""
        before = [table.detach().clone() for table in self.tables]
        states = [
            {k: v.clone() for k, v in self.optimizer.state[table].items() if v is not None}
            for table in self.tables
        ]
        for master, table, indices, offsets, gradient in zip(
            self.tables, tables, *data, strict=True
        ):
            leaf = table.detach().double().requires_grad_()
            result = nn.functional.embedding_bag(indices, leaf, offsets, mode=self.mode)
            result.backward(gradient.double())
            master.grad = leaf.grad
        self.optimizer.step()
        for table, old, state, indices in zip(self.tables, before, states, data[0], strict=True):
            rest = torch.ones(table.shape[0], dtype=torch.bool)
            rest[indices] = False
            with torch.no_grad():
                table[rest] = old[rest]
            for name, now in self.optimizer.state[table].items():
                if now is not None and now.dim() == 2:
                    now[rest] = state[name][rest] if name in state else 0.0


def assert_near(module: Any, reference: Reference) -> None:
    for one, exact in zip(module.master_weights(), reference.tables, strict=True):
        torch.testing.assert_close(one.double(), exact.detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("cls", "kind", "options"), KINDS)
@pytest.mark.parametrize(
    ("mode", "dtype"),
    quick_first(
        [
            pytest.param("sum", torch.float32),
            pytest.param("mean", torch.bfloat16),
            pytest.param("sum", torch.bfloat16),
            pytest.param("mean", torch.float32),
            pytest.param("max", torch.float32),
            pytest.param("max", torch.bfloat16),
        ],
        2,
    ),
)
def test_updates_are_those_of_torchs_optimizers(
    cls: type, kind: type, options: dict[str, float], mode: str, dtype: torch.dtype
) -> None:
    """With bf16 tables too, whose remainders keep the fp32 weights."""
    module = cls(TABLES, mode=mode, dtype=dtype, **options)
    reference = Reference(module, kind, options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(module.optimizer, 0.5)
    wanted = torch.optim.lr_scheduler.ExponentialLR(reference.optimizer, 0.5)
    for _ in range(3):
        data = batch(dtype)
        # Gradients are those at the bf16 halves, with which forward computes.
        reference.step([weight.detach().clone() for weight in module.weights], data)
        results = module(*data[:2])
        assert all(result.dtype == dtype for result in results)
        torch.autograd.backward(results, data[2])
        assert all(weight.grad is None for weight in module.weights)
        module.optimizer.step()
        scheduler.step()
        wanted.step()
    assert_near(module, reference)


def test_every_backward_updates() -> None:
    module = MergedEmbeddingBagWithSGD(TABLES, lr=0.1)
    reference = Reference(module, torch.optim.SGD, {"lr": 0.1})
    first, second = batch(), batch()
    start = [weight.detach().clone() for weight in module.weights]
    results = module(*first[:2]), module(*second[:2])
    for result, data in zip(results, (first, second), strict=True):
        torch.autograd.backward(result, data[2])
        reference.step(start, data)
    assert_near(module, reference)


def test_only_tables_whose_results_are_used_are_updated() -> None:
    module = MergedEmbeddingBagWithSGD(TABLES, lr=0.1, weight_decay=0.1)
    before = [weight.clone() for weight in module.weights]
    module(*batch()[:2])[1].sum().backward()
    same = [torch.equal(a, b) for a, b in zip(before, module.weights, strict=True)]
    assert same == [True, False, True, True]


def test_nothing_is_updated_in_eval_mode_or_without_grad() -> None:
    module = MergedEmbeddingBagWithSGD(TABLES)
    with torch.no_grad():
        assert not any(result.requires_grad for result in module(*batch()[:2]))
    module.eval()
    assert not any(result.requires_grad for result in module(*batch()[:2]))


def test_per_sample_weights_have_a_gradient_of_the_weights_before_the_update() -> None:
    module = MergedEmbeddingBagWithSGD(TABLES, lr=0.1)
    plain = copy.deepcopy(MergedEmbeddingBag(TABLES, weights=list(module.weights)))
    indices, offsets, gradients = batch()
    found = []
    for one in (plain, module):
        factors = [torch.linspace(-1, 1, 60, requires_grad=True) for _ in TABLES]
        torch.autograd.backward(one(indices, offsets, factors), gradients)
        found.append([factor.grad for factor in factors])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_copies_and_checkpoints_go_on_alike() -> None:
    options = {"lr": 0.1, "momentum": 0.9, "dtype": torch.bfloat16}
    module = MergedEmbeddingBagWithSGD(TABLES, **options)
    torch.autograd.backward(module(*(data := batch(torch.bfloat16))[:2]), data[2])
    file = io.BytesIO()
    torch.save({"model": module.state_dict(), "optimizer": module.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    restored = MergedEmbeddingBagWithSGD(TABLES, **{**options, "lr": 0.7})
    restored.load_state_dict(saved["model"])
    restored.optimizer.load_state_dict(saved["optimizer"])
    copied = copy.deepcopy(module)
    data = batch(torch.bfloat16)
    for one in (module, restored, copied):
        torch.autograd.backward(one(*data[:2]), data[2])
    for one in (restored, copied):
        for a, b in zip(module.master_weights(), one.master_weights(), strict=True):
            assert torch.equal(a, b)
    assert list(saved["model"]) == [f"weights.{number}" for number in range(len(TABLES))]


def test_a_checkpoint_has_every_key_of_the_group_and_hooks_may_change_it() -> None:
    made = {"lr": 0.1, "momentum": 0.9}
    module = MergedEmbeddingBagWithSGD(TABLES, **made)
    torch.optim.lr_scheduler.StepLR(module.optimizer, 1)
    saved = module.optimizer.state_dict()
    other = MergedEmbeddingBagWithSGD(TABLES, **made)
    state = other.optimizer.state[other.weights[0]]["momentum_buffer"]

    def ones(_: object, given: dict[str, Any]) -> dict[str, Any]:
        states = {
            number: {"momentum_buffer": torch.ones_like(one["momentum_buffer"])}
            for number, one in given["state"].items()
        }
        return given | {"state": states}

    other.optimizer.register_load_state_dict_pre_hook(ones)
    other.optimizer.register_load_state_dict_post_hook(lambda of: state.add_(1))
    other.optimizer.load_state_dict(saved)
    assert other.optimizer.param_groups[0]["initial_lr"] == 0.1
    assert other.optimizer.state[other.weights[0]]["momentum_buffer"] is state
    assert (state == 2).all()
    torch.optim.lr_scheduler.StepLR(other.optimizer, 1, last_epoch=3)  # it needs initial_lr


def test_the_state_goes_where_the_tables_go() -> None:
    data = batch(torch.bfloat16)
    options = {"momentum": 0.9, "dtype": torch.bfloat16}
    modules = [MergedEmbeddingBagWithSGD(TABLES, **options) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    for number in range(3):
        if number == 1:
            modules[1].share_memory()
        for module in modules:
            torch.autograd.backward(module(*data[:2]), data[2])
    for one, other in zip(*(module.master_weights() for module in modules), strict=True):
        assert torch.equal(one, other)
    for weight in modules[1].weights:
        state = modules[1].optimizer.state[weight]
        assert all(value.is_shared() for value in state.values())
        modules[1].bfloat16()
        assert modules[1].optimizer.state[weight]["momentum_buffer"].dtype == torch.float32
    modules[1].to("meta")
    assert len(modules[1].optimizer.state) == len(TABLES)
    for weight in modules[1].weights:
        assert all(value.is_meta for value in modules[1].optimizer.state[weight].values())
    results = modules[1]([one.to("meta") for one in data[0]], [one.to("meta") for one in data[1]])
    assert all(one.is_meta for one in results)


def test_fp32_weights_are_loaded_exactly() -> None:
    values = [torch.randn(size) for size in TABLES]
    for dtype in (torch.float32, torch.bfloat16):
        module = MergedEmbeddingBagWithSGD(TABLES, dtype=dtype)
        module.load_master_weights(values)
        for one, value in zip(module.master_weights(), values, strict=True):
            assert torch.equal(one, value)
    with pytest.raises(EmbeddingBagError, match="other shapes"):
        module.load_master_weights(values[1:])


def test_merging_modules_shares_their_memory() -> None:
    tables = [nn.EmbeddingBag(*size, mode="sum") for size in TABLES]
    module = MergedEmbeddingBagWithSGD.from_embeddingbag_list(tables, lr=1.0)
    data = batch()
    torch.autograd.backward(module(*data[:2]), data[2])
    for table, weight in zip(tables, module.weights, strict=True):
        assert torch.equal(table.weight, weight)
        assert table.weight.requires_grad


# Bad input changes nothing.


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(EmbeddingBagError, match=r"lr=-1\.0: allowed are finite numbers"):
        MergedEmbeddingBagWithSGD(TABLES, lr=-1.0)
    module = MergedEmbeddingBagWithSGD(TABLES)
    before = [weight.clone() for weight in module.weights]
    data = batch()
    for option, value, message in (
        ("lr", float("nan"), "lr=nan"),
        ("momentum", 0.9, "momentum was 0 when the module was made"),
    ):
        results = module(*data[:2])
        module.optimizer.param_groups[0][option] = value
        with pytest.raises(EmbeddingBagError, match=message):
            torch.autograd.backward(results, data[2])
        module.optimizer.param_groups[0][option] = 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, module.weights, strict=True))


def test_tables_that_cannot_be_updated_are_refused() -> None:
    shared = torch.zeros(4, 2)
    for tables, options, message in (
        ([(3, 2)], {"dtype": torch.float16}, r"tables of torch\.float16 cannot be updated"),
        ([(4, 2), (4, 2)], {"weights": [shared, shared]}, "two tables share memory"),
        ([(2, 4)], {"weights": [shared.t()]}, "table 0 is not contiguous"),
    ):
        with pytest.raises(EmbeddingBagError, match=message):
            MergedEmbeddingBagWithSGD(tables, **options)


def test_state_of_other_options_is_refused() -> None:
    saved = MergedEmbeddingBagWithSGD(TABLES, momentum=0.9).optimizer.state_dict()
    with pytest.raises(EmbeddingBagError, match=r"table 0: the saved state.*momentum_buffer"):
        MergedEmbeddingBagWithSGD(TABLES).optimizer.load_state_dict(saved)


def test_state_of_another_table_is_refused() -> None:
    """A state of one row would be copied to every row."""
    saved = MergedEmbeddingBagWithSGD([(1, 2)], momentum=0.9).optimizer
    saved.state[saved.param_groups[0]["params"][0]]["momentum_buffer"].fill_(3)
    module = MergedEmbeddingBagWithSGD([(4, 2)], momentum=0.9)
    with pytest.raises(EmbeddingBagError, match="of other options or another table"):
        module.optimizer.load_state_dict(saved.state_dict())
    assert not module.optimizer.state[module.weights[0]]["momentum_buffer"].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_gradients_of_values_before_an_update_are_refused(dtype: torch.dtype) -> None:
    """Their graphs have kept tensors that backward has changed since."""
    module = MergedEmbeddingBagWithSGD(TABLES, momentum=0.9, dtype=dtype)
    kept = [tensor for state in module.optimizer.state.values() for tensor in state.values()]
    factor = torch.ones((), requires_grad=True)
    losses = [(tensor.detach() * factor).sum() for tensor in (*module.weights, *kept)]
    data = batch(dtype)
    torch.autograd.backward(module(*data[:2]), data[2])
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_indices_that_changed_meanwhile_are_refused_before_any_update() -> None:
    module = MergedEmbeddingBagWithSGD([(5, 2)])
    before = module.weights[0].clone()
    with pytest.raises(IndexError, match="table 0: index 5 at position 1"):
        torch.ops.xruntime.merged_embedding_bag_update_(
            [torch.ones(1, 2)],
            [module.weights[0].detach()],
            *([], [], []),
            module._number,
            *([torch.tensor([0, 5])], [torch.tensor([0])], [], 0, False),
        )
    assert torch.equal(module.weights[0], before)


def test_conversions_of_the_dtype_keep_the_exact_weights() -> None:
    module = MergedEmbeddingBagWithSGD([(7, 5), (3, 33)], lr=0.1)
    before = [weight.detach().clone() for weight in module.weights]
    module.to(torch.bfloat16)
    assert all(weight.dtype == torch.bfloat16 for weight in module.weights)
    assert all(map(torch.equal, module.master_weights(), before))
    sum(bags.float().sum() for bags in module([torch.tensor([[1, 2]])] * 2)).backward()
    changed = module.master_weights()
    assert all(torch.equal(new[0], old[0]) for new, old in zip(changed, before, strict=True))
    assert all(torch.allclose(new[1], old[1] - 0.1) for new, old in zip(changed, before, strict=True))  # fmt: skip
    module.float()
    assert all(map(torch.equal, module.weights, changed))
    assert all("remainder" not in module.optimizer.state[weight] for weight in module.weights)
    with pytest.raises(EmbeddingBagError, match=r"cannot be torch\.float16"):
        module.half()
    assert all(map(torch.equal, module.weights, changed))
