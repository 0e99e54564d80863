# SPDX-License-Identifier: Apache-2.0
"""`ipex.nn.modules`: xruntime's merged embedding bags with the arguments of the extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from xruntime import nn as native
from xruntime.compat.ipex.replacements import missing
from xruntime.errors import EmbeddingBagError
from xruntime.nn import FrozenBatchNorm2d
from xruntime.nn.embedding_bag import check_agreement, check_modules

__all__ = [
    "EmbeddingSpec",
    "FrozenBatchNorm2d",
    "MergedEmbeddingBag",
    "MergedEmbeddingBagWithAdaGrad",
    "MergedEmbeddingBagWithSGD",
    "SGDArgs",
]


class EmbeddingSpec(NamedTuple):
    """One table. **Ex.:** ``EmbeddingSpec(1000, 128, "sum", torch.float32, None, False, False)``."""

    num_embeddings: int
    embedding_dim: int
    pooling_mode: str
    """"sum" or "mean"; xruntime's bags also have "max"."""
    dtype: torch.dtype
    weight: torch.Tensor | None
    """The table, which is not copied. None: initialized randomly as in nn.EmbeddingBag."""
    sparse: bool
    include_last_offset: bool


class SGDArgs(NamedTuple):
    """Options of an update."""

    weight_decay: float
    lr: float


def _specs(modules: Sequence[nn.EmbeddingBag]) -> list[EmbeddingSpec]:
    check_modules(modules)
    specs = []
    for module in modules:
        rows, columns = module.weight.shape
        options = bool(module.sparse), bool(module.include_last_offset)
        specs.append(
            EmbeddingSpec(rows, columns, module.mode, module.weight.dtype, module.weight, *options)
        )
    return specs


def _arguments(specs: Sequence[EmbeddingSpec]) -> dict[str, Any]:
    """The arguments of xruntime's modules. Raises EmbeddingBagError."""
    if not specs:
        raise EmbeddingBagError("no tables: give at least one EmbeddingSpec")
    first = specs[0]
    for number, spec in enumerate(specs):
        options = "pooling_mode", "dtype", "sparse", "include_last_offset"
        check_agreement("table", number, spec, first, *options)
        if spec.weight is not None and spec.weight.dtype != spec.dtype:
            raise EmbeddingBagError(
                f"table {number} has dtype={spec.dtype}, and its weight is {spec.weight.dtype}"
            )
    weights = [
        nn.init.normal_(torch.empty(spec.num_embeddings, spec.embedding_dim, dtype=spec.dtype))
        if spec.weight is None
        else spec.weight
        for spec in specs
    ]
    return {
        "tables": [(spec.num_embeddings, spec.embedding_dim) for spec in specs],
        "mode": first.pooling_mode,
        "include_last_offset": first.include_last_offset,
        "weights": weights,
    }


class _FromModules:
    """The constructors and conversions that the classes below share."""

    @classmethod
    def from_embeddingbag_list(
        cls, tables: Sequence[nn.EmbeddingBag], *options: float, **named: float
    ) -> Self:
        """Merge modules, whose memory is shared, with options of the class. Raises EmbeddingBagError."""
        merged: Any = cls(_specs(tables), *options, **named)  # type: ignore[call-arg]
        merged.train(tables[0].training)
        return merged  # type: ignore[no-any-return]

    def to_bfloat16_train(self: Any) -> None:
        """Convert the tables to bf16, with remainders that keep their fp32 values if they are updated."""
        self.to(torch.bfloat16)


class MergedEmbeddingBag(_FromModules, native.MergedEmbeddingBag):  # type: ignore[misc]
    """`xruntime.nn.MergedEmbeddingBag` from a list of EmbeddingSpec, also of float64.

    Raises EmbeddingBagError.
    """

    def __init__(self, embedding_specs: Sequence[EmbeddingSpec]) -> None:
        arguments = _arguments(embedding_specs)
        sparse = embedding_specs[0].sparse
        if embedding_specs[0].dtype != torch.float64:
            super().__init__(**arguments, sparse=sparse)
            return
        nn.Module.__init__(self)
        self.weights = nn.ParameterList(arguments["weights"])
        self.mode, self.include_last_offset = arguments["mode"], arguments["include_last_offset"]
        self.sparse = sparse

    def forward(
        self,
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None = None,
        per_sample_weights: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """As xruntime's; torch computes bags of float64 tables, one table after the other."""
        if self.weights[0].dtype != torch.float64:
            return super().forward(indices, offsets, per_sample_weights)
        return [
            nn.functional.embedding_bag(
                indices[table],
                weight,
                None if offsets is None else offsets[table],
                mode=self.mode,
                sparse=self.sparse,
                per_sample_weights=None
                if per_sample_weights is None
                else per_sample_weights[table],
                include_last_offset=self.include_last_offset,
            )
            for table, weight in enumerate(self.weights)
        ]


class MergedEmbeddingBagWithSGD(_FromModules, native.MergedEmbeddingBagWithSGD):  # type: ignore[misc]
    """`xruntime.nn.MergedEmbeddingBagWithSGD` from a list of EmbeddingSpec.

    Backward updates the tables in training mode only. Raises EmbeddingBagError.
    """

    def __init__(
        self, embedding_specs: Sequence[EmbeddingSpec], lr: float = 0.01, weight_decay: float = 0
    ) -> None:
        super().__init__(lr=lr, weight_decay=weight_decay, **_arguments(embedding_specs))

    @property
    def sgd_args(self) -> SGDArgs:
        """The options of the next update. Schedulers change them in `optimizer.param_groups`."""
        group = self.optimizer.param_groups[0]
        return SGDArgs(group["weight_decay"], group["lr"])

    @sgd_args.setter
    def sgd_args(self, value: SGDArgs) -> None:
        self.optimizer.param_groups[0].update(value._asdict())


class MergedEmbeddingBagWithAdaGrad(_FromModules, native.MergedEmbeddingBagWithAdaGrad):  # type: ignore[misc]
    """`xruntime.nn.MergedEmbeddingBagWithAdaGrad` from a list of EmbeddingSpec."""

    def __init__(
        self, embedding_specs: Sequence[EmbeddingSpec], lr: float = 0.01, eps: float = 1e-10
    ) -> None:
        super().__init__(lr=lr, eps=eps, **_arguments(embedding_specs))


__getattr__ = missing(__name__)
