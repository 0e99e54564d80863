# SPDX-License-Identifier: Apache-2.0
"""Weights in pages of 2 MiB, which are read faster: the processor looks up fewer addresses."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterable
from typing import Final, NamedTuple

import torch
from torch import nn

from xlaunch import read_machine
from xruntime.generation.mapped_files import MappedFiles, lines

_MADV_COLLAPSE: Final = 25
"""Linux 6.1 and newer; older ones refuse it."""

_PAGE_BYTES: Final = 2 << 20
_ALIGNMENT: Final = 64
"""Bytes of a cache line: tensors in files lie at any address."""

_MAX_SHARE: Final = 0.9
"""Weights in files are not copied if they take more of the available memory."""


class _Span(NamedTuple):
    """Addresses of memory, begin to end - 1."""

    begin: int
    end: int

    def inner(self, page_bytes: int) -> _Span:
        """Return the part that consists of whole pages; it may be empty."""
        begin = -(-self.begin // page_bytes) * page_bytes
        return _Span(begin, max(begin, self.end // page_bytes * page_bytes))


def put_into_large_pages(weights: Iterable[torch.Tensor]) -> int:
    """Put weights into large pages where the kernel allows it; return the bytes that are in such pages.

    Weights in anonymous memory stay at their addresses, and the kernel moves the pages. The kernel keeps files in
    small pages, so weights that are pages of a file, such as those of safetensors, are copied: the tensors stay the
    same objects with the same values, and no longer depend on the file. Each is dropped from memory once it is
    copied, so there is one copy at a time and at most one tensor more.
    """
    tensors = list({id(weight): weight for weight in weights}.values())
    _copy_from_files(tensors)
    return _collapse(tensors)


def drop_file_pages(tensors: Iterable[torch.Tensor], files: MappedFiles) -> None:
    """Drop pages of files from the process's memory, which it reads again if they are needed."""
    for span in map(_span, tensors):
        _drop(span, files)


def large_memory(size: int) -> torch.Tensor:
    """Return `size` bytes with any values, in large pages where the kernel allows it."""
    try:
        memory, offset = _new_memory(size)
    except OSError:
        return torch.empty(size, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset)


def _new_memory(size: int) -> tuple[mmap.mmap, int]:
    """Return memory for large pages, and where the first one begins.

    Raises OSError without large pages, or at a limit of addresses.
    """
    memory = mmap.mmap(-1, size + _PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _PAGE_BYTES


def _collapse(tensors: list[torch.Tensor]) -> int:
    collapsed = 0
    spans: list[_Span] = []
    for begin, end in sorted({_span(tensor) for tensor in tensors}):
        if spans and begin - spans[-1].end < mmap.PAGESIZE:  # in one page with the last
            spans[-1] = _Span(spans[-1].begin, max(end, spans[-1].end))
        else:
            spans.append(_Span(begin, end))
    for span in spans:
        pages = span.inner(_PAGE_BYTES)
        if _advise(pages, _MADV_COLLAPSE):
            collapsed += pages.end - pages.begin
    return collapsed


def _copy_from_files(tensors: list[torch.Tensor]) -> None:
    """Copy tensors whose memory is a private mapping of a file into anonymous memory."""
    files = MappedFiles()
    groups: dict[_Span, list[torch.Tensor]] = {}
    for tensor in tensors:
        span = _span(tensor)
        if _can_move(tensor) and files.holding(*span):
            groups.setdefault(span, []).append(tensor)
    spans = sorted(groups)
    # Tensors that share a part of their memory would no longer do so.
    if any(before.end > after.begin for before, after in itertools.pairwise(spans)):
        return
    sizes = [-(-(span.end - span.begin) // _ALIGNMENT) * _ALIGNMENT for span in spans]
    if sum(sizes) < _PAGE_BYTES or sum(sizes) > _MAX_SHARE * _available_bytes():
        return
    try:
        memory, offset = _new_memory(sum(sizes))
    except OSError:
        return
    for span, size in zip(spans, sizes, strict=True):
        for number, tensor in enumerate(groups[span]):
            copy = torch.frombuffer(
                memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset
            ).view(tensor.shape)
            if number == 0:
                copy.copy_(tensor.detach())  # the team's threads touch the pages first
            tensor.data = copy
        _drop(span, files)
        offset += size


def _drop(span: _Span, files: MappedFiles) -> None:
    mapping = files.holding(*span)
    if mapping is not None and files.is_unchanged(mapping):
        _advise(span.inner(mmap.PAGESIZE), mmap.MADV_DONTNEED)


def _span(tensor: torch.Tensor) -> _Span:
    return _Span(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def _can_move(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.is_cpu
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not tensor.is_inference()
    )


def _available_bytes() -> float:
    """Memory that new pages may take."""
    limit = read_machine().limits.memory_limit_bytes
    room = float("inf") if limit is None else limit - _size("self/status", "RssAnon:")
    return min(_size("meminfo", "MemAvailable:"), room)


def _size(name: str, field: str) -> int:
    """Return a size in a file of /proc, in bytes; 0 without it."""
    return next((int(line.split()[1]) << 10 for line in lines(name) if line.startswith(field)), 0)


def _advise(span: _Span, advice: int) -> bool:
    """Call madvise(2); return whether the kernel did what is asked to some memory."""
    if span.begin >= span.end:
        return False
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return False
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advised: int = advise(span.begin, span.end - span.begin, advice)
    return advised == 0
