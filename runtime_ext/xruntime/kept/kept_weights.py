# SPDX-License-Identifier: Apache-2.0
"""Packed weights of a language model that the next process finds again.

kept = KeptWeights(model, layers, files)  # the matrices, and how many bits each is to have
packed = kept.load()                      # None: pack them
kept.save(packed)                         # for the next process
kept.note                                 # what became of it

An entry of the store is named by a digest of all values, so other weights, such as those of a model that was trained
meanwhile, never find it. Its file ends with a digest of what is before, and with the `files_digest` of the weights that
were packed: while the model's are unchanged pages of these files, they need not be read to find it. The file is read,
not mapped: so the weights lie in pages of 2 MiB, on the memory node of the process, and stay what they are if it changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import nn

from xlaunch.ownership import inspect_ownership
from xruntime.errors import PackageError
from xruntime.generation.large_pages import large_memory
from xruntime.generation.mapped_files import MappedFiles
from xruntime.generation.packed_weights import PackedWeight, packed_bytes
from xruntime.kept.store import store_for
from xruntime.kept.weights_digest import files_digest, weights_digest

FORMAT: Final = 2
"""Changes with the layout of the file, and with the values that `xk_pack_weights` computes."""

MIN_BYTES: Final = 32 << 20
"""Smaller models are packed faster than anyone notices."""

_PREFIX: Final = "weights-"
FILE: Final = "weights.bin"
ALIGNMENT: Final = 64
DIGEST_BYTES: Final = 32
NO_FILES: Final = bytes(DIGEST_BYTES)
"""In place of the `files_digest` of weights that are no pages of files."""

PIECE_BYTES: Final = 4 << 20
"""A thread reads so much and then hashes it, while it is in a cache."""

_log = logging.getLogger("xruntime")
_saved: Final[set[str]] = set()
"""What this process has saved, whatever the values: a program that trains would fill the disk."""


class KeptWeights:
    """The packed form of some matrices of a model.

    It is kept if the model was loaded from a checkpoint, has at least `MIN_BYTES`, and the store has room.

    layers
        Matrices on the CPU, each with the number of bits that a weight is to have.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[tuple[torch.Tensor, int]], files: MappedFiles
    ) -> None:
        self.note = ""
        """For the explanation; empty if there is nothing to say."""

        self._layers = layers
        self._is_kept = False
        if sum(weight.nbytes for weight, _ in layers) < MIN_BYTES:
            return
        checkpoint = getattr(getattr(model, "config", None), "_name_or_path", None)
        self._store = store_for(model)
        if not checkpoint:
            self.note = "packed at each start, as the model is not from a checkpoint"
        elif self._store.temporary is not None:
            self.note = f"packed at each start: {self._store.temporary}"
        else:
            self._starts, self._size = _places(layers)
            described = _description(layers)
            self._kind = f"{checkpoint} {described}"
            self._described = described.encode()
            source = files_digest((weight for weight, _ in layers), files)
            self._source = NO_FILES
            if source is not None:
                self._source = hashlib.sha256(self._described + source).digest()
            self._is_kept = True

    def load(self) -> list[PackedWeight] | None:
        """Return the packed matrices; None if they are not kept. A damaged entry is removed."""
        if not self._is_kept:
            return None
        name = self._name_by_files() or self._name
        try:
            memory = self._read(os.path.join(self._store.path, name))
        except FileNotFoundError:
            return None
        except (OSError, PackageError) as error:
            self.note = f"kept weights are removed: {error}"
            self._store.remove(name)
            return None
        self.note = "read from the cache"
        return [
            PackedWeight.within(memory[start:], weight.shape, bits)
            for (weight, bits), start in zip(self._layers, self._starts, strict=True)
        ]

    def save(self, packed: Sequence[PackedWeight]) -> None:
        """Write them in a thread, for which the end of the program waits."""
        if not self._is_kept or self._kind in _saved:
            return
        _saved.add(self._kind)
        self.note = "; ".join(filter(None, (self.note, "kept for the next start")))
        what = (self._name, packed)
        threading.Thread(target=self._write, args=what, name="xruntime-weights").start()

    @functools.cached_property
    def _name(self) -> str:
        """The name of the entry, for which all weights are read."""
        digest = weights_digest([weight.detach() for weight, _ in self._layers])
        return _PREFIX + hashlib.sha256(self._described + digest).hexdigest()[:32]

    def _name_by_files(self) -> str | None:
        """The name of an entry that was made of the same unchanged files."""
        for name in self._store.names(_PREFIX) if self._source != NO_FILES else ():
            path = os.path.join(self._store.path, name, FILE)
            with contextlib.suppress(OSError), open(path, "rb", 0, opener=_open) as stream:
                if (
                    os.pread(stream.fileno(), DIGEST_BYTES, self._size + DIGEST_BYTES)
                    == self._source
                ):
                    return name
        return None

    def _note_files(self, path: str) -> None:
        """Write which files an entry's weights are in, if others were there."""
        with contextlib.suppress(OSError), open(path, "r+b", 0, opener=_open) as stream:
            os.pwrite(stream.fileno(), self._source, self._size + DIGEST_BYTES)

    def _read(self, directory: str) -> torch.Tensor:
        """Return what a file holds. Raises OSError, and PackageError if it cannot be used."""
        path = os.path.join(directory, FILE)
        with open(path, "rb", buffering=0, opener=_open) as stream:
            refusal = inspect_ownership(directory).refusal or inspect_ownership(path).refusal
            if refusal is not None:
                raise PackageError(f"{path}: {refusal}")
            if os.fstat(stream.fileno()).st_size != self._size + 2 * DIGEST_BYTES:
                raise PackageError(f"{path} is not whole")
            memory = large_memory(self._size)
            digest = _digest(stream.fileno(), self._size, into=_bytes_of(memory))
            if os.pread(stream.fileno(), DIGEST_BYTES, self._size) != digest:
                raise PackageError(f"{path} is damaged")
            noted = os.pread(stream.fileno(), DIGEST_BYTES, self._size + DIGEST_BYTES)
        if noted != self._source != NO_FILES:
            self._note_files(path)
        with contextlib.suppress(OSError):  # for the pruner: this entry was used now
            os.utime(path)
        return memory

    def _write(self, name: str, packed: Sequence[PackedWeight]) -> None:
        try:
            with self._store.locked(name, _leave), self._store.partial() as partial:
                if os.path.lexists(os.path.join(self._store.path, name)):
                    return
                with open(os.path.join(partial, FILE), "x+b", opener=_open) as stream:
                    for weight, start in zip(packed, self._starts, strict=True):
                        stream.seek(start)
                        stream.write(_bytes_of(weight.values))
                        stream.write(_bytes_of(weight.scales))
                    stream.truncate(self._size)  # the gap behind the last one
                    stream.seek(self._size)
                    stream.write(_digest(stream.fileno(), self._size) + self._source)
                self._store.add(partial, name)
        except BlockingIOError:
            pass  # another process writes them
        except OSError as error:
            _log.warning("packed weights are not kept: %s", error)


def _description(layers: Sequence[tuple[torch.Tensor, int]]) -> str:
    """What decides, with the values, how matrices are packed."""
    first: dict[int, int] = {}
    lines = [
        # `weights_digest` reads matrices that share their memory once.
        (first.setdefault(weight.data_ptr(), at), *weight.shape, weight.stride(), weight.dtype, bits)
        for at, (weight, bits) in enumerate(layers)
    ]  # fmt: skip
    return repr((FORMAT, lines))


def _places(layers: Sequence[tuple[torch.Tensor, int]]) -> tuple[list[int], int]:
    """Where each matrix begins in the file, and where the last one ends."""
    starts, end = [], 0
    for weight, bits in layers:
        starts.append(end)
        end += -(-packed_bytes(weight.shape, bits) // ALIGNMENT) * ALIGNMENT
    return starts, end


def _digest(descriptor: int, size: int, into: memoryview | None = None) -> bytes:
    """Return a hash of the first `size` bytes of a file, and read them `into` memory if there is some.

    Raises OSError, and PackageError if there are fewer.
    """

    def read(start: int) -> bytes:
        end = min(start + PIECE_BYTES, size)
        piece = memoryview(bytearray(end - start)) if into is None else into[start:end]
        done = 0
        while done < len(piece):
            count = os.preadv(descriptor, [piece[done:]], start + done)
            if count == 0:
                raise PackageError("the file of kept weights is not whole")
            done += count
        return hashlib.sha256(piece).digest()

    starts = range(0, size, PIECE_BYTES)
    if into is None:  # beside the program, or at its end, when there can be no further threads
        return hashlib.sha256(b"".join(map(read, starts))).digest()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return hashlib.sha256(b"".join(pool.map(read, starts))).digest()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    memory: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _leave(_descriptor: int) -> None:
    raise BlockingIOError
