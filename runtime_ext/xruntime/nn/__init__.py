# SPDX-License-Identifier: Apache-2.0
"""Modules and functions that torch lacks on CPUs, on native kernels."""

from xruntime.nn.embedding_bag import MergedEmbeddingBag, TableSpec
from xruntime.nn.frozen_norm import FrozenBatchNorm2d
from xruntime.nn.interaction_operator import interaction
from xruntime.nn.nms_operator import batched_nms, nms
from xruntime.nn.roi_align_operator import RoIAlign, roi_align
from xruntime.nn.updating_embedding_bag import (
    MergedEmbeddingBagWithAdaGrad,
    MergedEmbeddingBagWithSGD,
)

__all__ = [
    "FrozenBatchNorm2d",
    "MergedEmbeddingBag",
    "MergedEmbeddingBagWithAdaGrad",
    "MergedEmbeddingBagWithSGD",
    "RoIAlign",
    "TableSpec",
    "batched_nms",
    "interaction",
    "nms",
    "roi_align",
]
