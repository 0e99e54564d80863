# SPDX-License-Identifier: Apache-2.0
"""The operator that stands for an INT8 module in TorchScript: `xruntime::int8_module`.

torch.jit.trace cannot look into compiled code. A trace of an INT8 module therefore contains this operator
and the module's archive, a uint8 tensor with the file that `xruntime.quantization.save` writes. The first
call unpacks and compiles it; so a trace can be frozen, saved and loaded, and computes in INT8.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from xlaunch.files import temporary_directory

if TYPE_CHECKING:
    from xruntime.quantization import QuantizedModule

_LIBRARY = torch.library.Library("xruntime", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("int8_module(Tensor archive, Tensor[] inputs) -> Tensor[]")  # type: ignore[no-untyped-call]

# torch.jit has no public functions for the state of a trace, and no types for these.
_tracing_state: Any = getattr(torch._C, "_get_tracing_state")  # noqa: B009, SLF001
_set_tracing_state: Any = getattr(torch._C, "_set_tracing_state")  # noqa: B009, SLF001

_modules: MutableMapping[torch.Tensor, QuantizedModule] = WeakTensorKeyDictionary()
"""The module of each archive."""
_by_digest: weakref.WeakValueDictionary[bytes, QuantizedModule] = weakref.WeakValueDictionary()
"""The same modules: TorchScript copies constants."""
_lock = threading.RLock()


def pack(module: QuantizedModule) -> torch.Tensor:
    """Return the module's archive. Raises QuantizationError."""
    from xruntime import quantization

    with temporary_directory("xruntime-int8", tempfile.gettempdir()) as directory:
        path = Path(directory) / "module.pt2"
        quantization.save(module, path)
        archive = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with _lock:
        _modules[archive] = module
        _by_digest[_digest(archive)] = module
    return archive


def unpack(archive: torch.Tensor) -> QuantizedModule:
    """Return the module of an archive. Raises QuantizationError."""
    from xruntime import quantization

    with _lock:
        module = _modules.get(archive)
        if module is None:
            digest = _digest(archive)
            module = _by_digest.get(digest)
            if module is None:
                with temporary_directory("xruntime-int8", tempfile.gettempdir()) as directory:
                    path = Path(directory) / "module.pt2"
                    path.write_bytes(archive.numpy().tobytes())
                    module = quantization.load(path)
                _by_digest[digest] = module
            _modules[archive] = module
        return module


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Hide from torch that the calling thread traces: compiled code refuses to run in a trace."""
    state = _tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


def is_traced() -> bool:
    """Whether torch.jit.trace runs in the calling thread."""
    return _tracing_state() is not None


def _run(archive: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    from xruntime.quantization.signatures import Signature

    module = unpack(archive)
    tensors = iter(inputs)
    values = [
        given.constant if given.dtype is None else next(tensors)
        for given in Signature(module.exported, module.name).inputs
    ]
    args, kwargs = pytree.tree_unflatten(values, module.exported.call_spec.in_spec)
    with untraced():
        outputs = pytree.tree_leaves(module(*args, **kwargs))
    # An operator returns new tensors, which autograd may see.
    return [output.clone() for output in outputs if isinstance(output, torch.Tensor)]


def _digest(archive: torch.Tensor) -> bytes:
    return hashlib.sha256(archive.numpy().data).digest()


_LIBRARY.impl("int8_module", _run, "CPU")  # type: ignore[no-untyped-call]
