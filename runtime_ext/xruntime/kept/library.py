# SPDX-License-Identifier: Apache-2.0
"""A compiled library of the store: loading it, and the description beside it."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Final

import torch

from xruntime.aoti.inputs import Inputs, InputSpec
from xruntime.aoti.package_file import check_machine, check_trusted
from xruntime.aoti.runners import CRunner
from xruntime.errors import PackageError
from xruntime.kept.calls import Nest, ServedSizes, Sizes

MAX_SUITABLE: Final = 4096
"""Maximum number of remembered sizes of checked tensors."""

LIBRARY: Final = "model.so"
DESCRIPTION: Final = "description.json"


class NotCompiledError(Exception):
    """There is no library. `final`: another attempt would fail, too."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


class Library:
    """A loaded library. Called with the tensors of a call; returns the tensors of its outputs.

    `written`: what `write_description` wrote.
    """

    def __init__(self, directory: str, written: dict[str, Any], runners: int) -> None:
        self.name = os.path.basename(directory)
        """The name of its entry."""

        self.sizes = ServedSizes(written["dims"], written["ranges"], written["conditions"])
        self.seconds = written["seconds"]
        """How long compiling took."""

        self.kept = True
        """Whether an earlier process compiled it."""

        self.outputs: Nest | None = None
        """The nest of its outputs, once they were compared with the model's."""

        self.compared: set[Sizes] = set()
        """Sizes of calls on which it was compared with the model."""

        self.compared_contexts: set[tuple[Any, ...]] = set()
        """Contexts of calls on which it was compared, see `FlatCall`."""

        inputs = written["inputs"]
        specs = None if inputs is None else tuple([spec and _read(spec) for spec in inputs])
        self._runner = CRunner(os.path.join(directory, LIBRARY), runners, directory)
        self._inputs = Inputs(self._runner.input_form, specs)
        self._suitable: set[Sizes] = set()
        """Sizes for which tensors were checked before; they are not checked again."""

    def __call__(self, tensors: list[torch.Tensor], sizes: Sizes | None = None) -> Any:
        """Raises PackageInputError for tensors of another layout; PackageError if the code fails.

        `sizes`: those of a `flat_call` of the form that the code is for. They decide alone whether its tensors
        suit, so these are checked once.
        """
        if sizes not in self._suitable:
            given, tensors = tensors, self._inputs.of_call(tuple(tensors), {})
            unchanged = all(one is other for one, other in zip(given, tensors, strict=True))
            if sizes is not None and unchanged and len(self._suitable) < MAX_SUITABLE:
                self._suitable.add(sizes)
        return self._runner.run(tensors)

    @property
    def is_running(self) -> bool:
        """Whether some thread runs the code."""
        return self._runner.is_running


def load_library(store: str, name: str, *, runners: int) -> Library:
    """Load an entry of the store at that path. Raises FileNotFoundError without one, NotCompiledError for one that says why there is no
    code, and PackageError, OSError, ValueError, KeyError or TypeError for one that cannot be used.
    """
    directory = os.path.join(store, name)
    os.lstat(directory)
    check_trusted(directory)
    path = os.path.join(directory, DESCRIPTION)
    check_trusted(path)
    with open(path, encoding="utf-8") as stream:
        written = json.load(stream)
    if "refused" in written:
        raise NotCompiledError(str(written["refused"]), final=True)
    check_machine(written["machine"], directory)
    library = os.path.join(directory, LIBRARY)
    check_trusted(library)
    if os.stat(library).st_size != written["bytes"]:  # loading half a library crashes
        raise PackageError(f"{library} is not whole")
    with contextlib.suppress(OSError):  # for the pruner: this entry was used now
        os.utime(path)
    return Library(directory, written, runners)


def write_description(
    directory: str, sizes: ServedSizes, specs: Any, machine: dict[str, str], seconds: float
) -> None:
    """Write what `CodeStore.load` reads. Raises OSError."""
    inputs = specs and [
        spec
        and [
            str(spec.dtype).removeprefix("torch."),
            spec.dims,
            *[sorted(numbers.items()) for numbers in spec[2:]],
        ]
        for spec in specs
    ]
    written = {
        "dims": sizes.dims,
        "ranges": sizes.ranges,
        "conditions": sizes.conditions,
        "inputs": inputs,
        "machine": machine,
        "bytes": os.stat(os.path.join(directory, LIBRARY)).st_size,
        "seconds": round(seconds, 1),
    }
    _write(directory, written)


def write_refusal(directory: str, reason: str) -> None:
    """Write why there is no code. Raises OSError."""
    _write(directory, {"refused": reason})


def _write(directory: str, written: dict[str, Any]) -> None:
    with open(os.path.join(directory, DESCRIPTION), "w", encoding="utf-8") as stream:
        json.dump(written, stream, indent=1)


def _read(spec: Any) -> InputSpec:
    dtype, dims, sizes, strides = spec
    return InputSpec(getattr(torch, dtype), dims, dict(sizes), dict(strides))
