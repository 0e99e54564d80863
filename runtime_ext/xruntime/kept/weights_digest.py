# SPDX-License-Identifier: Apache-2.0
"""What tells weights apart: a hash of their values, or of the files that they are mapped from."""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from xruntime.generation.mapped_files import FileMapping, MappedFiles

CHUNK_BYTES: Final = 16 << 20
"""Weights are hashed in pieces of this size, by as many threads as torch has."""


MIN_AGE_S: Final = 2
"""A file that was changed later may change once more without another time, as file systems count it."""


def weights_digest(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a hash of what the tensors hold. Equal memory is hashed once."""
    pieces: dict[tuple[int, int], None] = {}
    kept = []  # copies whose memory must live until it has been hashed
    for given in tensors:
        tensor = given
        if given.layout is not torch.strided or not _is_dense(given):
            tensor = given.to_dense().contiguous()
            kept.append(tensor)
        size = tensor.numel() * tensor.element_size()
        start = tensor.data_ptr()
        for offset in range(0, size, CHUNK_BYTES):
            pieces[start + offset, min(CHUNK_BYTES, size - offset)] = None

    def digest(piece: tuple[int, int]) -> bytes:
        start, size = piece
        # hashlib releases the GIL.
        return hashlib.sha256((ctypes.c_char * size).from_address(start)).digest()

    whole = hashlib.sha256()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for piece_digest in pool.map(digest, pieces):
            whole.update(piece_digest)
    return whole.digest()


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor) or not tensor.numel()


def files_digest(tensors: Iterable[torch.Tensor], files: MappedFiles) -> bytes | None:
    """Return a hash of the places in files that the tensors are unchanged pages of; None if one is something else.

    It reads no weights. A file counts by device, inode, size and times of change: another file, or this one with
    other contents, has others.
    """
    versions: dict[FileMapping, tuple[int, ...] | None] = {}
    whole = hashlib.sha256()
    for tensor in tensors:
        if not tensor.is_contiguous():
            return None
        begin = tensor.data_ptr()
        mapping = files.holding(begin, begin + tensor.nbytes)
        if mapping is None or not files.is_unchanged(mapping):
            return None
        if mapping not in versions:
            versions[mapping] = _version(mapping)
        version = versions[mapping]
        if version is None:
            return None
        place = mapping.offset + begin - mapping.begin
        whole.update(repr((version, place, tensor.nbytes)).encode())
    return whole.digest()


def _version(mapping: FileMapping) -> tuple[int, ...] | None:
    """What changes with a file; None if it was changed just now, or if its path leads elsewhere."""
    try:
        status = os.stat(mapping.path)
    except OSError:
        return None
    age_s = time.time() - max(status.st_mtime, status.st_ctime)
    if status.st_ino != mapping.inode or age_s < MIN_AGE_S:
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times
