# SPDX-License-Identifier: Apache-2.0
"""One native call over the bags of many tables: its checks, its arrays of addresses, its errors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from xruntime import native
from xruntime.errors import EmbeddingBagError, EmbeddingIndexError
from xruntime.nn.native_operators import TYPES, check

Tensors = Sequence[torch.Tensor]

MODES = {"sum": native.BAG_SUM, "mean": native.BAG_MEAN, "max": native.BAG_MAX}
"""Names of reductions, with their numbers in xkernels/embedding.h."""

_INDEX_TYPES = {torch.int32: native.INT32, torch.int64: native.INT64}


class Lookups(NamedTuple):
    """What is looked up in each table."""

    indices: Tensors
    """One-dimensional with offsets, otherwise of shape (bags, length of a bag)."""
    offsets: Tensors
    """Empty: none."""
    factors: Tensors
    """Per-sample weights, with the shapes of the indices; empty: none."""
    mode: int
    include_last_offset: bool

    def bags(self, table: int) -> int:
        """Return the number of a table's bags."""
        if not self.offsets:
            return self.indices[table].shape[0]
        return self.offsets[table].shape[0] - int(self.include_last_offset)

    def of(self, tables: Sequence[int]) -> Lookups:
        """Return the lookups in some of the tables."""
        indices, offsets, factors = (
            [tensors[table] for table in tables] if tensors else [] for tensors in self[:3]
        )
        return Lookups(indices, offsets, factors, self.mode, self.include_last_offset)


def check_lookups(lookups: Lookups, tables: int, dtype: torch.dtype) -> None:
    """Check dtypes and shapes, and no values. Raises EmbeddingBagError.

    dtype
        That of the tables and of per-sample weights.
    """
    if dtype not in TYPES:
        raise EmbeddingBagError(f"tables of {dtype}: {_names(TYPES)} are supported")
    indices, offsets, factors = lookups.indices, lookups.offsets, lookups.factors
    for name, given in (("indices", indices), ("offsets", offsets), ("factors", factors)):
        if len(given) != tables and (given or name == "indices"):
            raise EmbeddingBagError(
                f"{len(given)} tensors of {_WORDS[name]} for {tables} tables: give one for each table"
            )
    if factors and lookups.mode != native.BAG_SUM:
        raise EmbeddingBagError("per-sample weights need mode='sum', as in nn.EmbeddingBag")
    for table in range(tables):
        index_dtype = indices[table].dtype
        if index_dtype not in _INDEX_TYPES or index_dtype != indices[0].dtype:
            raise EmbeddingBagError(
                f"table {table}: indices of {index_dtype}: all indices and offsets have one dtype,"
                f" {_names(_INDEX_TYPES)}"
            )
        shape = tuple(indices[table].shape)
        if offsets:
            offset = offsets[table]
            if len(shape) != 1 or offset.dim() != 1:
                raise EmbeddingBagError(
                    f"table {table}: indices of shape {shape} and offsets of shape"
                    f" {tuple(offset.shape)}: both have one dimension; indices of shape"
                    " (bags, length) are given without offsets"
                )
            if offset.dtype != index_dtype:
                raise EmbeddingBagError(
                    f"table {table}: offsets of {offset.dtype} with indices of {index_dtype}:"
                    " convert one of them"
                )
            if lookups.include_last_offset and offset.shape[0] == 0:
                raise EmbeddingBagError(
                    f"table {table}: no offsets: with include_last_offset=True there is one more than"
                    " bags"
                )
        elif len(shape) != 2 or lookups.include_last_offset:
            raise EmbeddingBagError(
                f"table {table}: indices of shape {shape} without offsets: give offsets"
                + ("" if lookups.include_last_offset else ", or indices of shape (bags, length)")
            )
        if factors and (factors[table].dtype != dtype or tuple(factors[table].shape) != shape):
            raise EmbeddingBagError(
                f"table {table}: per-sample weights of {factors[table].dtype} and shape"
                f" {tuple(factors[table].shape)}: they have the tables' dtype, {dtype}, and the shape"
                f" of the indices, {shape}"
            )


_WORDS = {"indices": "indices", "offsets": "offsets", "factors": "per-sample weights"}


def _names(dtypes: dict[torch.dtype, int]) -> str:
    *most, last = (str(dtype) for dtype in dtypes)
    return f"{', '.join(most)} or {last}"


class BagsCall:
    """The arguments of a native function, which keep their tensors alive."""

    def __init__(
        self, lookups: Lookups, dtype: torch.dtype, rows: Sequence[int], dims: Sequence[int]
    ) -> None:
        """Set what all functions use; `rows` and `dims` are those of the tables."""
        count = len(rows)
        self.tables = (native.CBagTable * count)()
        self._kept: list[torch.Tensor] = []
        for number, table in enumerate(self.tables):
            table.rows = rows[number]
            table.dim = dims[number]
            table.index_count = lookups.indices[number].numel()
            table.bags = lookups.bags(number)
        self.set("indices", lookups.indices)
        self.set("offsets", lookups.offsets)
        self.set("factors", lookups.factors)
        index_dtype = lookups.indices[0].dtype if count else torch.int64
        self._bags = native.CBags(
            count=count,
            tables=self.tables,
            value_type=TYPES[dtype],
            index_type=_INDEX_TYPES[index_dtype],
            mode=lookups.mode,
            include_last_offset=lookups.include_last_offset,
        )

    def set(self, field: str, tensors: Tensors) -> None:
        """Set a field of all tables to the tensors' addresses, or copies' if they are not contiguous.

        No tensors: the field stays NULL.
        """
        for table, tensor in zip(self.tables, tensors, strict=False):
            contiguous = tensor.contiguous()
            self._kept.append(contiguous)
            setattr(table, field, contiguous.data_ptr())

    def run(self, function: str, *numbers: float) -> None:
        """Call a function of the library.

        Raises EmbeddingIndexError, EmbeddingBagError, KernelsUnavailableError, MemoryError; nothing
        has been changed then.
        """
        problem = native.CBagProblem()
        result = getattr(native.library(), function)(
            ctypes.byref(self._bags), *numbers, ctypes.byref(problem)
        )
        table = self.tables[problem.table] if self.tables else native.CBagTable()
        where = f"{problem.value} at position {problem.position}"
        if result == native.Problem.INVALID_INDEX:
            allowed = f"allowed are 0 to {table.rows - 1}" if table.rows else "no index is allowed"
            raise EmbeddingIndexError(
                f"table {problem.table}: index {where}: {allowed}, because the table has"
                f" {table.rows} rows"
            )
        offsets = {
            native.Problem.INVALID_FIRST_OFFSET: "the first offset must be 0",
            native.Problem.DECREASING_OFFSET: "offsets must not decrease",
            native.Problem.LARGE_OFFSET: f"there are {table.index_count} indices",
            native.Problem.INVALID_LAST_OFFSET: (
                f"with include_last_offset=True the last one is {table.index_count}, the number of"
                " indices"
            ),
        }
        if result in offsets:
            raise EmbeddingBagError(f"table {problem.table}: offset {where}: {offsets[result]}")
        check(result)
