# SPDX-License-Identifier: Apache-2.0
"""Embedding bags of many tables, looked up in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from xruntime.errors import EmbeddingBagError
from xruntime.nn.embedding_call import MODES, Lookups
from xruntime.nn.embedding_operators import merged_embedding_bag
from xruntime.nn.native_operators import TYPES


class TableSpec(NamedTuple):
    """The size of one table. **Ex.:** ``TableSpec(100_000, 128)``."""

    num_embeddings: int
    """Rows."""
    embedding_dim: int
    """Columns."""


class MergedEmbeddingBag(nn.Module):
    """A list of nn.EmbeddingBag in one operator: gathers the bags of all tables in parallel.

    tables
        For each table its numbers of rows and columns, a TableSpec or a pair. Tables may differ.
    mode
        "sum", "mean" or "max", for all tables.
    include_last_offset, sparse
        As in nn.EmbeddingBag. Sparse gradients are coalesced.
    dtype
        torch.float32, torch.bfloat16 or torch.float16; default: torch.get_default_dtype(). Sums are
        computed in fp32 and rounded once.
    weights
        The tables, of those sizes; Parameters are shared, not copied. Default: drawn as in
        nn.EmbeddingBag.

    `weights` has a Parameter for each table: what is ``i.weight`` in the state_dict of an
    nn.ModuleList of nn.EmbeddingBag is ``weights.i`` here. Raises EmbeddingBagError.
    """

    def __init__(
        self,
        tables: Iterable[tuple[int, int]],
        *,
        mode: str = "sum",
        include_last_offset: bool = False,
        sparse: bool = False,
        dtype: torch.dtype | None = None,
        weights: Sequence[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        specs = [TableSpec(*table) for table in tables]
        if mode not in MODES:
            raise EmbeddingBagError(f"mode={mode!r}: {', '.join(MODES)} are supported")
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.sparse = sparse
        check_specs(specs)
        if weights is None:
            chosen = torch.get_default_dtype() if dtype is None else dtype
            weights = [
                nn.init.normal_(torch.empty(spec.num_embeddings, spec.embedding_dim, dtype=chosen))
                for spec in specs
            ]
        check_weights(weights, specs)
        self.weights = nn.ParameterList(weights)
        if sparse:
            for weight in self.weights:
                weight.register_post_accumulate_grad_hook(mark_coalesced)

    @classmethod
    def from_embeddingbag_list(cls, modules: Sequence[nn.EmbeddingBag], **options: Any) -> Self:
        """Merge modules; the new module shares their Parameters.

        modules
            They agree in mode, include_last_offset, sparse and dtype. padding_idx, max_norm and
            scale_grad_by_freq are not supported.
        options
            More arguments of this class, such as a learning rate.

        Raises EmbeddingBagError.
        """
        check_modules(modules)
        weights = [module.weight for module in modules]
        merged = cls(
            [(weight.shape[0], weight.shape[1]) for weight in weights],
            mode=modules[0].mode,
            include_last_offset=bool(modules[0].include_last_offset),
            weights=weights,
            **cls._options_of(modules[0]),
            **options,
        )
        return merged.train(modules[0].training)

    @classmethod
    def _options_of(cls, module: nn.EmbeddingBag) -> dict[str, Any]:
        """Return further arguments of this class that a module has."""
        return {"sparse": bool(module.sparse)}

    def to_embeddingbag_list(self) -> list[nn.EmbeddingBag]:
        """Return one nn.EmbeddingBag for each table, which shares its Parameter."""
        modules = []
        for weight in self.weights:
            rows, columns = weight.shape
            module = nn.EmbeddingBag(
                rows,
                columns,
                mode=self.mode,
                sparse=self.sparse,
                include_last_offset=self.include_last_offset,
                _weight=weight.detach(),
            )
            module.weight = weight
            modules.append(module)
        return modules

    def forward(
        self,
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None = None,
        per_sample_weights: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Return the bags of each table: tensors of shape (bags, columns), of the table's dtype.

        indices
            For each table, int32 or int64: of shape (bags, length), or (n,) with offsets.
        offsets
            For each table, the position of each bag's first index, in the dtype of the indices.
        per_sample_weights
            For each table, a factor for each index, in the dtype of the tables. Only for "sum".

        Raises EmbeddingIndexError, which is an IndexError, for an index that is no row of its table;
        EmbeddingBagError for wrong shapes, dtypes and offsets; OperatorError for tensors on different
        devices and derivatives in forward mode; all before a row is read. The second derivative is not
        defined: backward through a gradient is an OperatorError.
        """
        lookups = Lookups(
            list(indices),
            list(offsets or ()),
            list(per_sample_weights or ()),
            MODES[self.mode],
            self.include_last_offset,
        )
        return self._look_up(lookups)

    def _look_up(self, lookups: Lookups) -> list[torch.Tensor]:
        return list(merged_embedding_bag(list(self.weights), self.sparse, lookups))

    def extra_repr(self) -> str:
        tables = ", ".join(f"{tuple(weight.shape)}" for weight in self.weights)
        return f"{tables}, mode={self.mode!r}"


def mark_coalesced(parameter: torch.Tensor) -> None:
    """Mark a sparse gradient with ascending rows as coalesced, which torch forgets: optimizers would sort."""
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse or gradient.is_coalesced():
        return
    rows = gradient._indices()[0]  # noqa: SLF001 - indices() refuses without the mark
    if bool((rows[1:] > rows[:-1]).all()):
        gradient._coalesced_(True)


def check_specs(specs: Sequence[TableSpec]) -> None:
    """Check sizes. Raises EmbeddingBagError."""
    if not specs:
        raise EmbeddingBagError("no tables: give at least one")
    for number, spec in enumerate(specs):
        if not 0 <= spec.num_embeddings < 2**31 or spec.embedding_dim < 1:
            raise EmbeddingBagError(
                f"table {number}: {spec.num_embeddings} rows and {spec.embedding_dim} columns: allowed"
                " are 0 to 2**31 - 1 rows, and at least 1 column"
            )


def check_weights(weights: Sequence[torch.Tensor], specs: Sequence[TableSpec]) -> None:
    """Check tables. Raises EmbeddingBagError."""
    if len(weights) != len(specs):
        raise EmbeddingBagError(f"{len(weights)} weights for {len(specs)} tables")
    for number, (weight, spec) in enumerate(zip(weights, specs, strict=True)):
        if weight.dtype not in TYPES or weight.device.type not in ("cpu", "meta"):
            raise EmbeddingBagError(
                f"table {number} is of {weight.dtype} on {weight.device}: torch.float32,"
                " torch.bfloat16 and torch.float16 on the CPU are supported"
            )
        if tuple(weight.shape) != tuple(spec) or weight.dtype != weights[0].dtype:
            raise EmbeddingBagError(
                f"table {number}: weights of {weight.dtype} and shape {tuple(weight.shape)}; its size is"
                f" {tuple(spec)}, and table 0 is of {weights[0].dtype}"
            )


def check_agreement(noun: str, number: int, one: object, first: object, *options: str) -> None:
    """Check that one of several has the options of the first. Raises EmbeddingBagError."""
    for option in options:
        ours, wanted = getattr(one, option), getattr(first, option)
        if ours != wanted:
            raise EmbeddingBagError(
                f"{noun} {number} has {option}={ours!r}, and {noun} 0 {wanted!r}: merge {noun}s that"
                " agree in it"
            )


def check_modules(modules: Sequence[nn.EmbeddingBag]) -> None:
    """Check that modules can be merged. Raises EmbeddingBagError."""
    if not modules:
        raise EmbeddingBagError("no modules: give at least one")
    for number, module in enumerate(modules):
        for option in ("padding_idx", "max_norm"):
            if getattr(module, option) is not None:
                raise EmbeddingBagError(
                    f"module {number} has {option}={getattr(module, option)}, which is not supported"
                )
        if module.scale_grad_by_freq:
            raise EmbeddingBagError(
                f"module {number} has scale_grad_by_freq=True, which is not supported"
            )
        check_agreement(
            "module", number, module, modules[0], "mode", "include_last_offset", "sparse"
        )
        dtype = module.weight.dtype
        if dtype != modules[0].weight.dtype:
            raise EmbeddingBagError(
                f"module {number} is of {dtype}, and module 0 of {modules[0].weight.dtype}: convert one"
            )
