# SPDX-License-Identifier: Apache-2.0
"""Merged embedding bags against nn.EmbeddingBag in fp64, on their modules' surface."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from xruntime.errors import EmbeddingBagError, EmbeddingIndexError, OperatorError
from xruntime.nn import MergedEmbeddingBag, embedding_call, embedding_operators

pytestmark = pytest.mark.usefixtures("native")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


class Bags(NamedTuple):
    """Lookups in some tables, with random gradients of the results."""

    indices: list[torch.Tensor]
    offsets: list[torch.Tensor]
    factors: list[torch.Tensor]
    gradients: list[torch.Tensor]


def modules(sizes: list[tuple[int, int]], **options: Any) -> list[nn.EmbeddingBag]:
    return [nn.EmbeddingBag(*size, **options) for size in sizes]


def draw(
    tables: list[nn.EmbeddingBag],
    *,
    bags: int = 7,
    count: int = 60,
    index_dtype: torch.dtype = torch.int64,
) -> Bags:
    """Bags of random lengths, some of them empty."""
    drawn = []
    for table in tables:
        rows, dim = table.weight.shape
        indices = torch.randint(rows, (count,), dtype=index_dtype)
        inner = torch.randint(count + 1, (bags - 1,)).sort().values
        inner[1:3] = inner[1]
        last = [torch.tensor([count])] if table.include_last_offset else []
        offsets = torch.cat([torch.zeros(1), inner, *last]).to(index_dtype)
        values = {"dtype": table.weight.dtype}
        drawn.append(
            (indices, offsets, torch.randn(count, **values), torch.randn(bags, dim, **values))
        )
    return Bags(*(list(one) for one in zip(*drawn, strict=True)))


def expected(
    tables: list[nn.EmbeddingBag], bags: Bags, *, weighted: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """nn.EmbeddingBag's results and gradients of weights and factors, in fp64."""
    results, weights, factors = [], [], []
    for at, table in enumerate(tables):
        exact = copy.deepcopy(table).double()
        exact.sparse = False
        factor = bags.factors[at].detach().double().requires_grad_()
        offsets = bags.offsets[at].long() if bags.offsets else None
        result = exact(bags.indices[at].long(), offsets, factor if weighted else None)
        result.backward(bags.gradients[at].double())
        results.append(result.detach())
        weights.append(exact.weight.grad)
        factors.append(factor.grad)
    return results, weights, factors


def assert_near(actual: list[Any], wanted: list[Any], *, terms: float = 1) -> None:
    for one, exact in zip(actual, wanted, strict=True):
        dense = one.to_dense() if one.layout == torch.sparse_coo else one
        tolerance = TOLERANCE[one.dtype] * terms
        scale = max(1.0, float(exact.abs().max())) if exact.numel() else 1.0
        torch.testing.assert_close(
            dense.double(), exact, rtol=tolerance, atol=tolerance * 4 * scale, equal_nan=True
        )


def run(
    tables: list[nn.EmbeddingBag], bags: Bags, *, weighted: bool = False, terms: float = 1
) -> None:
    """Compare forward and backward with nn.EmbeddingBag's; `terms` widens the tolerance."""
    merged = MergedEmbeddingBag.from_embeddingbag_list(tables)
    factors = [factor.clone().requires_grad_() for factor in bags.factors] if weighted else None
    results = merged(bags.indices, bags.offsets or None, factors)
    torch.autograd.backward(results, bags.gradients)
    wanted, weights, wanted_factors = expected(tables, bags, weighted=weighted)
    assert [result.dtype for result in results] == [table.weight.dtype for table in tables]
    assert_near([result.detach() for result in results], wanted, terms=terms)
    assert_near([weight.grad for weight in merged.weights], weights, terms=terms)
    if factors is not None:
        assert_near([factor.grad for factor in factors], wanted_factors)


# Values.


@pytest.mark.parametrize(
    "first", [1, *(pytest.param(first, marks=pytest.mark.long) for first in (65, 129, 193))]
)
def test_gradients_of_every_dim_are_those_of_embedding_bag(first: int) -> None:
    """IPEX's are wrong from 32 columns on, which gradients of ones do not show."""
    tables = modules([(20, dim) for dim in range(first, first + 64)], mode="sum")
    run(tables, draw(tables, bags=5, count=30))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_modes_and_dtypes(mode: str, dtype: torch.dtype) -> None:
    for last, index_dtype in ((False, torch.int64), (True, torch.int32)):
        tables = modules(
            [(50, 33), (1, 1), (9, 130), (400, 700)],
            mode=mode,
            dtype=dtype,
            include_last_offset=last,
        )
        run(tables, draw(tables, index_dtype=index_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_sample_weights(dtype: torch.dtype) -> None:
    tables = modules([(50, 33), (1, 1), (9, 130), (400, 700)], mode="sum", dtype=dtype)
    run(tables, draw(tables), weighted=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_indices_of_two_dimensions(weighted: bool) -> None:
    tables = modules([(50, 33), (9, 5)], mode="sum")
    bags = draw(tables)
    bags = bags._replace(
        indices=[indices[:56].view(7, 8) for indices in bags.indices],
        factors=[factors[:56].view(7, 8) for factors in bags.factors],
        offsets=[],
    )
    run(tables, bags, weighted=weighted)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_longer_than_the_kernels_window_and_rows_named_often(mode: str) -> None:
    tables = modules([(3, 40), (2, 520)], mode=mode)
    run(tables, draw(tables, bags=4, count=3000), terms=30)


@pytest.mark.parametrize("rows", [70_000, pytest.param(5_000_000, marks=pytest.mark.long)])
def test_many_rows(rows: int) -> None:
    """Sorting takes several digits."""
    tables = modules([(rows, 2)], mode="sum")
    run(tables, draw(tables, bags=50, count=20_000))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_nothing_to_look_up(mode: str) -> None:
    tables = modules([(5, 3), (5, 3)], mode=mode)
    merged = MergedEmbeddingBag.from_embeddingbag_list(tables)
    none = torch.empty(0, dtype=torch.int64)
    results = merged([none, none], [torch.zeros(4, dtype=torch.int64), none])
    assert [tuple(result.shape) for result in results] == [(4, 3), (0, 3)]
    assert not results[0].any()
    (results[0].sum() + results[1].sum()).backward()
    assert not merged.weights[0].grad.any()
    rows = MergedEmbeddingBag([(0, 3)], mode=mode)([none], [torch.zeros(2, dtype=torch.int64)])
    assert torch.equal(rows[0], torch.zeros(2, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_nan_and_infinity_are_torchs(mode: str) -> None:
    table = nn.EmbeddingBag(8, 40, mode=mode)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0])
    with torch.no_grad():
        table.weight.copy_(special[torch.randint(6, (8, 40))])
    run([table], draw([table], bags=30, count=100))


def test_tensors_that_are_not_contiguous() -> None:
    tables = modules([(50, 33)], mode="sum")
    bags = draw(tables)
    spread = [indices.repeat_interleave(2)[::2] for indices in bags.indices]
    gradients = [gradient.t().contiguous().t() for gradient in bags.gradients]
    run(tables, bags._replace(indices=spread, gradients=gradients))


# Gradients that are sparse, or needed in part.


def test_sparse_gradients_are_coalesced_and_train_as_dense_ones() -> None:
    tables = modules([(500, 33), (9, 5)], mode="sum", sparse=True)
    bags = draw(tables)
    run(tables, bags)
    merged = MergedEmbeddingBag.from_embeddingbag_list(tables)
    dense = copy.deepcopy(merged)
    dense.sparse = False
    for module in (merged, dense):
        module.zero_grad()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        torch.autograd.backward(module(bags.indices, bags.offsets), bags.gradients)
        optimizer.step()
    assert all(weight.grad.is_coalesced() for weight in merged.weights)
    for one, other in zip(merged.weights, dense.weights, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch's Adagrad
def test_optimizers_of_xruntime_take_the_sparse_gradients() -> None:
    """They update bf16 tables as torch's optimizers update fp32 ones with these gradients."""
    from xruntime import optim

    for ours, torchs in ((optim.SGD, torch.optim.SGD), (optim.Adagrad, torch.optim.Adagrad)):
        merged = MergedEmbeddingBag([(500, 33)], sparse=True, dtype=torch.bfloat16)
        (weight,) = merged.weights
        exact = nn.Parameter(weight.detach().float())
        bags = draw(merged.to_embeddingbag_list())
        torch.autograd.backward(merged(bags.indices, bags.offsets), bags.gradients)
        exact.grad = weight.grad.float()
        optimizer = ours(merged.parameters(), lr=0.1)
        optimizer.step()
        torchs([exact], lr=0.1).step()
        found = optimizer.master_state_dict(merged)["weights.0"]
        torch.testing.assert_close(found, exact.detach(), rtol=1e-5, atol=1e-5)


def test_results_without_a_gradient_and_frozen_tables() -> None:
    tables = modules([(20, 3), (20, 3), (20, 3)], mode="sum")
    merged = MergedEmbeddingBag.from_embeddingbag_list(tables)
    merged.weights[2].requires_grad_(False)
    bags = draw(tables)
    results = merged(bags.indices, bags.offsets)
    (results[0].sum() + results[2].sum()).backward()
    assert [weight.grad is None for weight in merged.weights] == [False, True, True]


# The module.


def test_state_dict_maps_to_that_of_a_list() -> None:
    tables = nn.ModuleList(modules([(20, 3), (10, 4)], mode="mean"))
    merged = MergedEmbeddingBag([(20, 3), (10, 4)], mode="mean")
    state = {
        f"weights.{name.removesuffix('.weight')}": value
        for name, value in tables.state_dict().items()
    }
    merged.load_state_dict(state)
    back = merged.to_embeddingbag_list()
    for table, other in zip(tables, back, strict=True):
        assert torch.equal(table.weight, other.weight)
        assert (other.mode, other.num_embeddings) == (table.mode, table.num_embeddings)
    assert back[0].weight is merged.weights[0]


def test_autocast_keeps_the_tables_dtype() -> None:
    tables = modules([(20, 3)], mode="sum")
    merged = MergedEmbeddingBag.from_embeddingbag_list(tables)
    bags = draw(tables)
    with torch.autocast("cpu", torch.bfloat16):
        assert merged(bags.indices, bags.offsets)[0].dtype == torch.float32


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("of", ["tables", "per-sample weights"])
def test_the_second_derivative_is_refused_and_not_dropped(of: str, sparse: bool) -> None:
    merged = MergedEmbeddingBag([(7, 3)], sparse=sparse)
    factors = torch.ones(1, 3, requires_grad=True)
    (result,) = merged([torch.tensor([[1, 2, 2]])], None, [factors])
    source = merged.weights[0] if of == "tables" else factors
    (gradient,) = torch.autograd.grad(result.square().sum(), source, create_graph=True)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    with pytest.raises(OperatorError, match="merged_embedding_bag: its second derivative is not"):
        gradient.sum().backward()


def test_derivatives_in_forward_mode_are_refused_and_not_dropped() -> None:
    merged = MergedEmbeddingBag([(7, 3)]).requires_grad_(False)
    factors = torch.ones(1, 3)
    with pytest.raises(OperatorError, match="derivatives in forward mode"):
        torch.func.jvp(
            lambda x: merged([torch.tensor([[1, 2, 2]])], None, [x]), (factors,), (factors,)
        )


def test_devices() -> None:
    """All are on the meta device, or none: results of tables with values have values."""
    merged = MergedEmbeddingBag([(7, 3)])
    indices = [torch.tensor([[1, 2]], device="meta")]
    with pytest.raises(OperatorError, match="merged_embedding_bag: tensors on cpu and meta"):
        merged(indices)
    (result,) = merged.to("meta")(indices)
    assert result.shape == (1, 3)
    assert result.is_meta


# Bad input.


INDEX, OFFSET = torch.tensor([1, 2, 3]), torch.tensor([0])
BOTH, STARTS = [INDEX, INDEX], [OFFSET, OFFSET]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([INDEX, torch.tensor([1, 9, 7])], STARTS),
         "table 1: index 7 at position 2: allowed are 0 to 6|table 1: index 9 at position 1"),
        (([INDEX, torch.tensor([1, -1])], STARTS),
         "table 1: index -1 at position 1: allowed are 0 to 6, because the table has 7 rows"),
        (([torch.tensor([-(2**63)]), INDEX], STARTS), f"table 0: index {-(2**63)} at position 0"),
        (([torch.tensor([2**31 - 1], dtype=torch.int32)] * 2, [OFFSET.int()] * 2),
         f"table 0: index {2**31 - 1} at position 0"),
        (([INDEX[None], INDEX[None] + 9],), "table 1: index 10 at"),
        ((BOTH, [OFFSET, OFFSET + 1]),
         "table 1: offset 1 at position 0: the first offset must be 0"),
        ((BOTH, [torch.tensor([0, 2, 1]), OFFSET]),
         "table 0: offset 1 at position 2: offsets must not decrease"),
        ((BOTH, [torch.tensor([0, 4]), OFFSET]),
         "table 0: offset 4 at position 1: there are 3 indices"),
        (([INDEX], [OFFSET]), "1 tensors of indices for 2 tables"),
        ((BOTH, [OFFSET]), "1 tensors of offsets for 2 tables"),
        (([INDEX, INDEX.float()], STARTS),
         "table 1: indices of torch.float32: .*torch.int32 or torch.int64"),
        (([INDEX, INDEX.int()], STARTS),
         "table 1: indices of torch.int32: all indices and offsets have one dtype"),
        ((BOTH, [OFFSET, OFFSET.int()]),
         "table 1: offsets of torch.int32 with indices of torch.int64"),
        ((BOTH,),
         r"table 0: indices of shape \(3,\) without offsets: give offsets, or indices of shape"),
        (([INDEX[None]] * 2, STARTS),
         r"table 0: indices of shape \(1, 3\) and offsets of shape \(1,\)"),
        ((BOTH, STARTS, [torch.ones(3), torch.ones(2)]),
         r"table 1: per-sample weights of torch.float32 and shape \(2,\)"),
        ((BOTH, STARTS, [torch.ones(3).double()] * 2),
         "table 0: per-sample weights of torch.float64.*have the tables' dtype, torch.float32"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(given: tuple[Any, ...], message: str) -> None:
    merged = MergedEmbeddingBag([(7, 3), (7, 3)])
    kind = EmbeddingIndexError if "index" in message[:15] else EmbeddingBagError
    with pytest.raises(kind, match=message):
        merged(*given)
    assert issubclass(EmbeddingIndexError, IndexError)


@pytest.mark.parametrize(
    ("weights", "factors", "mode", "message"),
    [
        ([torch.ones(7, 3).double()], [], 0, "tables of torch.float64: torch.float32, "),
        ([torch.ones(7, 3)], [torch.ones(3)], 1, "per-sample weights need mode='sum'"),
        ([torch.ones(7, 3)], [], 7, "mode 7: allowed are {'sum': 0"),
        (
            [torch.ones(7, 3), torch.ones(7, 0)],
            [],
            0,
            "table 1: 7 rows of 0 columns, 3 indices in 1 bags: allowed",
        ),
    ],
)
def test_the_library_refuses_what_it_sees(
    weights: list[torch.Tensor], factors: list[torch.Tensor], mode: int, message: str
) -> None:
    tables = len(weights)
    lookups = embedding_call.Lookups([INDEX] * tables, [OFFSET] * tables, factors, mode, False)
    with pytest.raises(EmbeddingBagError, match=message):
        embedding_operators.merged_embedding_bag(weights, False, lookups)


def test_the_last_offset_is_the_number_of_indices() -> None:
    merged = MergedEmbeddingBag([(7, 3)], include_last_offset=True)
    with pytest.raises(EmbeddingBagError, match=r"offset 2 at position 1: with .* one is 3"):
        merged([INDEX], [torch.tensor([0, 2])])
    with pytest.raises(EmbeddingBagError, match="table 0: no offsets"):
        merged([INDEX], [INDEX[:0]])


def test_a_bad_index_among_many_is_found_by_a_team() -> None:
    merged = MergedEmbeddingBag([(1000, 4)])
    indices = torch.randint(1000, (200_000,))
    indices[150_001], indices[170_000] = 1000, -5
    with pytest.raises(IndexError, match="table 0: index 1000 at position 150001"):
        merged([indices], [torch.tensor([0])])


def test_backward_operators_check_indices_too() -> None:
    given, lookups = [torch.ones(1, 2)], ([torch.tensor([0, 3])], [OFFSET])
    for name, *arguments in (
        ("dense_gradients", given, [3], [], *lookups, []),
        ("sparse_gradients", given, [3], [], *lookups, []),
        ("factor_gradients", given, [torch.ones(3, 2)], *lookups, [torch.ones(2)]),
    ):
        operator = getattr(torch.ops.xruntime, f"merged_embedding_bag_{name}")
        with pytest.raises(IndexError, match="table 0: index 3 at position 1"):
            operator(*arguments, 0, False)


def test_modules_that_cannot_be_merged_are_named() -> None:
    base = nn.EmbeddingBag(5, 3)
    for options, message in (
        ({"padding_idx": 1}, "module 1 has padding_idx=1"),
        ({"max_norm": 1.0}, r"module 1 has max_norm=1\.0"),
        ({"scale_grad_by_freq": True}, "module 1 has scale_grad_by_freq=True"),
        ({"mode": "sum"}, "module 1 has mode='sum', and module 0 'mean'"),
        ({"include_last_offset": True}, "module 1 has include_last_offset=True"),
        ({"sparse": True}, "module 1 has sparse=True"),
        ({"dtype": torch.bfloat16}, "module 1 is of torch.bfloat16"),
    ):
        with pytest.raises(EmbeddingBagError, match=message):
            MergedEmbeddingBag.from_embeddingbag_list([base, nn.EmbeddingBag(5, 3, **options)])
    with pytest.raises(EmbeddingBagError, match="no modules"):
        MergedEmbeddingBag.from_embeddingbag_list([])


def test_impossible_tables_are_refused() -> None:
    for tables, options, message in (
        ([], {}, "no tables"),
        ([(3, 0)], {}, "table 0: 3 rows and 0 columns"),
        ([(3, 2)], {"mode": "median"}, "mode='median': sum, mean, max are supported"),
        ([(3, 2)], {"dtype": torch.float64}, r"table 0 is of torch\.float64"),
    ):
        with pytest.raises(EmbeddingBagError, match=message):
            MergedEmbeddingBag(tables, **options)
