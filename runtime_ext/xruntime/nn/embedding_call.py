# SPDX-License-Identifier: Apache-2.0
"""One native call over the bags of many tables: its checks, its arrays of addresses, its errors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from xruntime import native
from xruntime.errors import EmbeddingBagError, EmbeddingIndexError
from xruntime.nn.native_operators import TYPES

Tensors = Sequence[torch.Tensor]
Shapes = Sequence[Sequence[int]]

MODES = {"sum": 0, "mean": 1, "max": 2}
"""Names of reductions, with their numbers in xkernels/embedding.h: XK_BAG_..."""

_INDEX_TYPES = {torch.int32: 0, torch.int64: 1}


class CBagTable(ctypes.Structure):
    """xk_bag_table of xkernels/embedding.h."""

    _fields_ = native.fields(
        (ctypes.c_int64, "rows dim index_count bags"),
        (
            ctypes.c_void_p,
            "weights indices offsets factors output max_positions gradients gradient_rows",
        ),
        (ctypes.c_int64, "gradient_row_count"),
        (ctypes.c_void_p, "remainders state"),
    )


class CBags(ctypes.Structure):
    """xk_bags of xkernels/embedding.h."""

    _fields_ = native.fields(
        (ctypes.c_int64, "count"),
        (ctypes.POINTER(CBagTable), "tables"),
        (ctypes.c_int32, "value_type index_type mode include_last_offset"),
    )


class CBagProblem(ctypes.Structure):
    """xk_bag_problem of xkernels/embedding.h."""

    _fields_ = native.fields((ctypes.c_int64, "table position value"))


def _declare(*names: str, numbers: int = 0) -> None:
    arguments = ctypes.POINTER(CBags), *[ctypes.c_double] * numbers, ctypes.POINTER(CBagProblem)
    native.declare(*names, arguments=arguments)


_declare(
    *("xk_bags_forward", "xk_bags_dense_gradients"),
    *("xk_bags_sparse_gradients", "xk_bags_factor_gradients"),
)
_declare("xk_bags_sgd", numbers=3)
_declare("xk_bags_adagrad", numbers=2)


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
    """Check what the library does not see: that dtypes and shapes agree. Raises EmbeddingBagError.

    `dtype`: that of the tables and of per-sample weights.
    """
    indices, offsets, factors = lookups.indices, lookups.offsets, lookups.factors
    lists = (("indices", indices), ("offsets", offsets), ("per-sample weights", factors))
    for name, tensors in lists:
        if len(tensors) != tables and (tensors or name == "indices"):
            raise EmbeddingBagError(
                f"{len(tensors)} tensors of {name} for {tables} tables: give one for each table"
            )
    for table in range(tables):
        index_dtype = indices[table].dtype
        if index_dtype not in _INDEX_TYPES or index_dtype != indices[0].dtype:
            raise EmbeddingBagError(
                f"table {table}: indices of {index_dtype}: all indices and offsets have one dtype,"
                f" {' or '.join(map(str, _INDEX_TYPES))}"
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


class BagsCall:
    """The arguments of a native function, which keep their tensors alive.

    shapes, dtype
        Those of the tables.
    fields
        Tensors of all tables by the field of xk_bag_table, or none: it stays NULL. What is not contiguous is
        copied.
    """

    def __init__(
        self, lookups: Lookups, shapes: Shapes, dtype: torch.dtype, **fields: Tensors
    ) -> None:
        self._dtype = dtype
        self._kept: list[torch.Tensor] = []
        self.tables = (CBagTable * len(shapes))()
        for number, (table, (rows, dim)) in enumerate(zip(self.tables, shapes, strict=True)):
            table.rows, table.dim = rows, dim
            table.index_count = lookups.indices[number].numel()
            table.bags = lookups.bags(number)
        fields |= {name: getattr(lookups, name) for name in ("indices", "offsets", "factors")}
        for name, tensors in fields.items():
            for table, tensor in zip(self.tables, tensors, strict=False):
                contiguous = tensor.contiguous()
                self._kept.append(contiguous)
                setattr(table, name, contiguous.data_ptr())
        self._bags = CBags(
            count=len(shapes),
            tables=self.tables,
            value_type=TYPES.get(dtype, -1),  # the library refuses others
            index_type=_INDEX_TYPES[lookups.indices[0].dtype],
            mode=lookups.mode,
            include_last_offset=lookups.include_last_offset,
        )

    def run(self, function: str, *numbers: float) -> None:
        """Call a function of the library.

        Raises EmbeddingIndexError, EmbeddingBagError, KernelsUnavailableError, MemoryError; nothing
        has been changed then.
        """
        place = CBagProblem()
        result = getattr(native.library(), function)(
            ctypes.byref(self._bags), *numbers, ctypes.byref(place)
        )
        native.check(result, functools.partial(self._refusal, place))

    def _refusal(self, place: CBagProblem, problem: native.ArgumentProblem) -> EmbeddingBagError:
        table = self.tables[place.table]
        value = f"{place.value} at position {place.position}"
        if problem == problem.INVALID_INDEX:
            allowed = f"allowed are 0 to {table.rows - 1}" if table.rows else "no index is allowed"
            return EmbeddingIndexError(
                f"table {place.table}: index {value}: {allowed}, because the table has"
                f" {table.rows} rows"
            )
        if problem == problem.INVALID_TYPE:
            return EmbeddingBagError(
                f"tables of {self._dtype}: torch.float32, torch.bfloat16 and torch.float16 are supported;"
                " torch.float16 is not in tables that backward updates"
            )
        if problem == problem.INVALID_MODE:
            return EmbeddingBagError(
                "per-sample weights need mode='sum', as in nn.EmbeddingBag"
                if table.factors
                else f"mode {self._bags.mode}: allowed are {MODES}"
            )
        reasons = {
            problem.INVALID_FIRST_OFFSET: f"offset {value}: the first offset must be 0",
            problem.DECREASING_OFFSET: f"offset {value}: offsets must not decrease",
            problem.LARGE_OFFSET: f"offset {value}: there are {table.index_count} indices",
            problem.INVALID_LAST_OFFSET: (
                f"offset {value}: with include_last_offset=True the last one is {table.index_count},"
                " the number of indices"
            ),
            problem.INVALID_SIZE: (
                f"{table.rows} rows of {table.dim} columns, {table.index_count} indices in"
                f" {table.bags} bags: allowed are 1 to 2**31 - 1 columns, and up to as many of the others"
            ),
        }
        reason = reasons.get(problem, f"the library refuses its arguments: {problem.name}")
        return EmbeddingBagError(f"table {place.table}: {reason}")
