# SPDX-License-Identifier: Apache-2.0
"""A model that llama.cpp computes, through its bindings for Python."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any, Final

import llama_cpp  # type: ignore[import-not-found,unused-ignore]
import numpy as np

PROMPT_TOKENS_AT_ONCE: Final = 512  # llama.cpp's default
ROOM: Final = 256
"""Positions of a context beyond those of a call: it is rounded up to this, as llama.cpp rounds."""


@llama_cpp.llama_log_callback
def _ignore(_level: int, _text: bytes, _data: Any) -> None:
    """Take llama.cpp's messages."""


class LlamaCppModel:
    """Generates greedily, with a context that fits the call."""

    def __init__(self, path: Path, threads: int) -> None:
        self._threads = threads
        llama_cpp.llama_log_set(_ignore, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self._vocabulary: int = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._context: Any = None
        self._made_for = (0, 0)

    def generate(self, ids: list[list[int]], tokens: int) -> list[float]:
        """Generate that many tokens for each sequence; return when each step ended."""
        sequences, length = len(ids), len(ids[0])
        self._prepare(sequences, length + tokens)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        wanted = [(sequence, at) for sequence in range(sequences) for at in range(length)]
        chosen: dict[int, int] = {}
        for begin in range(0, len(wanted), PROMPT_TOKENS_AT_ONCE):
            part = wanted[begin : begin + PROMPT_TOKENS_AT_ONCE]
            self._decode([(s, at, ids[s][at], at == length - 1) for s, at in part], chosen)
        ends = [time.perf_counter()]
        for position in range(length, length + tokens - 1):
            self._decode([(s, position, chosen[s], True) for s in range(sequences)], chosen)
            ends.append(time.perf_counter())
        return ends

    def _prepare(self, sequences: int, positions: int) -> None:
        if self._made_for[0] == sequences and self._made_for[1] >= positions:
            return
        if self._context:
            llama_cpp.llama_free(self._context)
        room = -(-positions // ROOM) * ROOM
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = room * sequences
        parameters.n_seq_max = sequences
        parameters.n_batch = parameters.n_ubatch = PROMPT_TOKENS_AT_ONCE
        parameters.n_threads = parameters.n_threads_batch = self._threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise ValueError(f"llama.cpp makes no context of {sequences} x {room} positions")
        self._made_for = (sequences, room)

    def _decode(self, entries: list[tuple[int, int, int, bool]], chosen: dict[int, int]) -> None:
        """Compute (sequence, position, token, whether its logits are wanted); choose the next tokens."""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        try:
            batch.n_tokens = len(entries)
            for at, (sequence, position, token, wanted) in enumerate(entries):
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
                batch.seq_id[at][0], batch.logits[at] = sequence, wanted
            if problem := llama_cpp.llama_decode(self._context, batch):
                raise ValueError(f"llama_decode returns {problem}")
            for at, (sequence, _, _, wanted) in enumerate(entries):
                if wanted:
                    logits = llama_cpp.llama_get_logits_ith(self._context, at)
                    pointer = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
                    values = np.ctypeslib.as_array(pointer, (self._vocabulary,))
                    chosen[sequence] = int(values.argmax())
        finally:
            llama_cpp.llama_batch_free(batch)
