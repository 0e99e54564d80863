# SPDX-License-Identifier: Apache-2.0
"""Two ways to run the code of a package: its own C interface, and torch's runner.

The C interface is stable; the functions that convert tensors for it (torch._C._aoti) are private to torch.
Tested with torch 2.11 and 2.13. `c_interface_problem` tests the conversion before its first use.

Source: torch/csrc/inductor/aoti_runtime/interface.h.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
import weakref
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from xruntime.errors import ClosedError, PackageError
from xruntime.native import pointer_in

_Pointer = ctypes.c_void_p
_Size = ctypes.c_size_t
_Text = ctypes.c_char_p
_Pointers, _Texts = ctypes.POINTER(_Pointer), ctypes.POINTER(_Text)

_PREFIX: Final = "AOTInductorModelContainer"
_FUNCTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "CreateWithDevice": (_Pointers, _Size, _Text, _Text),
    "Delete": (_Pointer,),
    "GetNumInputs": (_Pointer, ctypes.POINTER(_Size)),
    "GetNumOutputs": (_Pointer, ctypes.POINTER(_Size)),
    "GetCallSpec": (_Pointer, _Texts, _Texts),
    "Run": (*(_Pointer, _Pointers, _Size, _Pointers, _Size, _Pointer, _Pointer),),
}
"""The functions of the C interface that are used, with their arguments; each returns 0 on success."""

_LAST_ERROR: Final = "AOTInductorGetLastError"
"""Since torch 2.13; older code writes the reason of a failure to standard error."""

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (_Pointer, _Text, _Pointer), ctypes.py_object


class _Slot(NamedTuple):
    """Memory for the addresses of one call's tensors."""

    inputs: Any
    outputs: Any


class CRunner:
    """The code of a package, called by its C interface."""

    def __init__(self, library: str, runners: int, path: str) -> None:
        self._path = path
        self._runners = runners
        self._library = loaded = _loaded(library, path)
        self._handle = handle = _Pointer()
        arguments = ctypes.byref(handle), runners, b"cpu", None
        self._call("CreateWithDevice", *arguments, failure="cannot be set up")
        # Not at the interpreter's exit, when threads may still run the code.
        self._free = weakref.finalize(self, _freed, loaded, handle)
        self._free.atexit = False
        self.inputs: int | None = self._count("Inputs")
        """The number of tensors that it takes."""
        self._outputs = self._count("Outputs")
        self.input_form, self._output_spec = self._read_forms()
        self._closing = threading.Lock()
        self._slots: SimpleQueue[_Slot | None] = SimpleQueue()
        """A None at the end means that the package is closed."""

        for _ in range(runners):
            slot = _Slot((_Pointer * self.inputs)(), (_Pointer * self._outputs)())
            self._slots.put(slot)

    def run(self, tensors: list[torch.Tensor]) -> Any:
        """Return the outputs in the exported form. The tensors must have been checked."""
        slot = self._slots.get()
        if slot is None:
            self._slots.put(None)
            raise ClosedError(f"{self._path} is closed: load it again")
        try:
            for i, capsule in enumerate(_aoti().unsafe_alloc_void_ptrs_from_tensors(tensors)):
                slot.inputs[i] = pointer_in(capsule, None)
            ctypes.memset(slot.outputs, 0, ctypes.sizeof(slot.outputs))
            # The code takes over the input tensors. The GIL is released in this call.
            arguments = slot.inputs, self.inputs, slot.outputs, self._outputs, None, None
            self._call("Run", self._handle, *arguments, failure="failed")
            pointers = list(slot.outputs)
        finally:
            self._slots.put(slot)
        return self._output_spec.unflatten(_tensors_at(pointers))

    @property
    def is_running(self) -> bool:
        """Whether some thread is in a call."""
        return self._slots.qsize() < self._runners

    def close(self) -> None:
        with self._closing:
            if not self._free.alive:
                return
            for _ in range(self._runners):
                self._slots.get()
            self._free()
            self._slots.put(None)

    def _count(self, what: str) -> int:
        number, failure = _Size(), f"does not report its number of {what.lower()}"
        self._call(f"GetNum{what}", self._handle, ctypes.byref(number), failure=failure)
        return number.value

    def _read_forms(self) -> tuple[Any, Any]:
        """Read an example of the arguments' nest, and torch's description of the outputs."""
        inputs, outputs = _Text(), _Text()
        arguments = self._handle, ctypes.byref(inputs), ctypes.byref(outputs)
        self._call("GetCallSpec", *arguments, failure="does not report how it is called")
        texts = (inputs.value or b"").decode(), (outputs.value or b"").decode()
        return _forms(*texts, path=self._path)

    def _call(self, function: str, *arguments: Any, failure: str) -> None:
        """Call a function of the C interface. Raises PackageError with the code's message if it fails."""
        if not getattr(self._library, f"{_PREFIX}{function}")(*arguments):
            return
        message = _Text()
        # The message is stored by thread.
        last_error = getattr(self._library, _LAST_ERROR, None)
        if last_error is not None:
            last_error(ctypes.byref(message))
        reason = (message.value or b"").decode(errors="replace").strip()
        raise PackageError(f"{self._path} {failure}: {reason or 'the reason is on standard error'}")


class TorchRunner:
    """The code of a package, called by torch's own runner, which holds the GIL."""

    def __init__(self, path: str, runners: int, model: str) -> None:
        from torch._inductor.package.package import load_package

        # torch._inductor.aoti_load_package, the public function, has no parameter for the number.
        parameters = inspect.signature(load_package).parameters
        many: dict[str, Any] = {"num_runners": runners} if "num_runners" in parameters else {}
        self._path = path
        try:
            self._package: Any = load_package(path, model, **many)
            texts = self._package.loader.get_call_spec()
        except (RuntimeError, OSError, ValueError) as error:
            raise PackageError(f"{path} cannot be loaded by torch: {error}") from error
        self.input_form, self._output_spec = _forms(texts[0], texts[1], path=path)
        self.inputs: int | None = None

    def run(self, tensors: list[torch.Tensor]) -> Any:
        package = self._package
        if package is None:
            raise ClosedError(f"{self._path} is closed: load it again")
        return self._output_spec.unflatten(package.loader.boxed_run(list(tensors)))

    def close(self) -> None:
        self._package = None


Runner: TypeAlias = "CRunner | TorchRunner"


def _loaded(library: str, path: str) -> ctypes.CDLL:
    """Load the library and declare its functions. Raises PackageError."""
    try:
        # All symbols are looked up now: a missing one is an error instead of a crash later.
        loaded = ctypes.CDLL(library)
        for name, arguments in _FUNCTIONS.items():
            function = getattr(loaded, f"{_PREFIX}{name}")
            function.argtypes, function.restype = arguments, ctypes.c_int32
    except (OSError, AttributeError) as error:
        text = str(error).replace(library, "its library")
        if "not permitted" in text:
            remedy = "the temporary directory forbids execution: set TMPDIR to one that allows it"
        else:
            remedy = (
                f"it was compiled with another torch than {torch.__version__}, or uses operators of a"
                " library that has to be imported first"
            )
        raise PackageError(f"{path} cannot be loaded ({text}): {remedy}") from error
    last_error = getattr(loaded, _LAST_ERROR, None)
    if last_error is not None:
        last_error.argtypes, last_error.restype = (_Texts,), ctypes.c_int32
    return loaded


def _freed(library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
    library.AOTInductorModelContainerDelete(handle)
    # ctypes never unloads a library, and this one can be as large as the weights.
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (_Pointer,)
    close(library._handle)  # noqa: SLF001 - ctypes has no public name for the handle


def _forms(inputs: str, outputs: str, *, path: str) -> tuple[Any, Any]:
    """Parse the descriptions of a call: a nest like (args, kwargs), and the outputs' pytree spec."""
    import torch.utils._pytree as pytree

    try:
        spec = pytree.treespec_loads(inputs)
        form = spec.unflatten([None] * spec.num_leaves)
        args, kwargs = form
        return (tuple(args), dict(kwargs)), pytree.treespec_loads(outputs)
    except Exception as error:
        raise PackageError(
            f"{path}: the form of its calls cannot be read ({error}). If its arguments or outputs are of"
            " a library's classes, import that library first"
        ) from error


def _aoti() -> Any:
    return torch._C._aoti  # noqa: SLF001 - see the module's docstring


def _tensors_at(pointers: list[int | None]) -> list[torch.Tensor | None]:
    """Take ownership of the output tensors. An output that is None has no address."""
    capsules = [_new_capsule(pointer, None, None) for pointer in pointers if pointer is not None]
    # alloc_tensor_by_stealing_from_void_ptr, for a single tensor, never frees it.
    tensors = iter(_aoti().alloc_tensors_by_stealing_from_void_ptrs(capsules))
    return [None if pointer is None else next(tensors) for pointer in pointers]


@functools.cache
def c_interface_problem() -> str | None:
    """Return why this torch cannot call the C interface; None if a tensor can be converted and back."""
    try:
        sent = torch.arange(6.0).reshape(2, 3)
        (capsule,) = _aoti().unsafe_alloc_void_ptrs_from_tensors([sent])
        back = _tensors_at([pointer_in(capsule, None)])[0]
        whole = back is not None and back.data_ptr() == sent.data_ptr() and torch.equal(back, sent)
    except Exception as error:  # noqa: BLE001 - after any failure torch's own runner is used
        return f"torch {torch.__version__} converts tensors differently ({error})"
    return None if whole else f"torch {torch.__version__} converts tensors differently"
