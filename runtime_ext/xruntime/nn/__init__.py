# SPDX-License-Identifier: Apache-2.0
"""Modules and functions that torch lacks on CPUs, on native kernels."""

from xruntime.nn.box_suppression import batched_nms, nms
from xruntime.nn.dot_interaction import interaction
from xruntime.nn.embedding_bag import MergedEmbeddingBag, TableSpec
from xruntime.nn.frozen_norm import FrozenBatchNorm2d
from xruntime.nn.region_align import RoIAlign, roi_align
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
