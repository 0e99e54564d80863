# SPDX-License-Identifier: Apache-2.0
"""Finding the tensors that a package takes in the arguments of a call, and checking them.

Compiled code assumes the memory layout of compile time, and torch's own runner checks nothing: a tensor
of another dtype, shape or layout gives wrong numbers without an error. The package's C++ has the expected
values, in checks that AOTI_RUNTIME_CHECK_INPUTS=1 would switch on. They are read from there and made
before the call, because that variable holds for all packages of a process, and an input that those
checks refuse is never freed.

Sizes that may vary are not compared with limits: the limits in the code are those under which Inductor
chose its kernels, and not the ones that the package was exported for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from xlaunch.text import counted
from xruntime.errors import PackageInputError
from xruntime.pytrees import Path, described, entries, place

_NUMBER = re.compile(
    r'"input_handles\[(\d+)\]: unmatched (dim|stride) value at (\d+), "\s*<<\s*"expected: (-?\d+), "'
)
_VARYING = re.compile(r'"input_handles\[(\d+)\]: dim value is too (?:small|large) at (\d+), "')
_HANDLE = re.compile(r"\b(\w+)(?:_handle)? = \w*(?:Handle)?\(?input_handles\[(\d+)\]\)?;")
_DTYPE = re.compile(r"int32_t (\w+)_expected_dtype = aoti_torch_dtype_(\w+)\(\);")


CONTIGUOUS: Final = "contiguous"
CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format by the number of dimensions."""


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor is stored channels-last, and not contiguous at the same time."""
    return tensor.layout is torch.strided and memory_format(tensor) == "channels_last"


def memory_format(tensor: torch.Tensor) -> str | None:
    """How a tensor lies in memory; None if it has gaps or another order."""
    if tensor.is_contiguous():
        return CONTIGUOUS
    wanted = CHANNELS_LAST.get(tensor.dim())
    if wanted is not None and tensor.is_contiguous(memory_format=wanted):
        return "channels_last"
    return None


class InputSpec(NamedTuple):
    """One tensor that the code was compiled for.

    **Ex.:** ``InputSpec(torch.float32, 2, {1: 128}, {0: 128, 1: 1})``: any number of rows of 128.
    """

    dtype: torch.dtype
    dims: int
    sizes: dict[int, int]
    """The sizes by dimension; only the fixed ones."""

    strides: dict[int, int]
    """The strides by dimension; only the fixed ones. Others follow from sizes that vary."""


def input_specs(sources: Iterable[str], count: int | None) -> tuple[InputSpec | None, ...] | None:
    """Read the specs of `count` inputs from the package's C++; None for an input without a complete one.

    Without a count, the C++ determines it; if it has no checks, the result is None.
    """
    sources = list(sources)
    if count is None:
        checked = [int(index) for source in sources for _, index in _HANDLE.findall(source)]
        if not checked:
            return None
        count = max(checked) + 1
    dtypes: dict[int, torch.dtype] = {}
    fixed: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    varying: dict[int, set[int]] = defaultdict(set)
    for source in sources:
        names = {name: int(index) for name, index in _HANDLE.findall(source)}
        for name, dtype in _DTYPE.findall(source):
            torch_dtype = getattr(torch, dtype, None)
            if name in names and isinstance(torch_dtype, torch.dtype):
                dtypes[names[name]] = torch_dtype
        for index, what, dim, value in _NUMBER.findall(source):
            fixed[what, int(index)][int(dim)] = int(value)
        for index, dim in _VARYING.findall(source):
            varying[int(index)].add(int(dim))

    def spec(i: int) -> InputSpec | None:
        sizes, strides = fixed["dim", i], fixed["stride", i]
        every = set(range(1 + max((*sizes, *strides, *varying[i]), default=-1)))
        if i not in dtypes or sizes.keys() | varying[i] != every:
            return None  # checks are missing, as in the C++ of another torch
        # If all sizes are fixed, all strides are; the innermost one always is.
        complete = every <= strides.keys() if sizes.keys() == every else bool(strides)
        return InputSpec(dtypes[i], len(every), sizes, strides) if complete else None

    return tuple(map(spec, range(count)))


class Inputs:
    """Finds the tensors of a call in the order that the code takes them, and checks them.

    `form` is a nest (args, kwargs) of the same structure as in the exported call; its leaves do not
    matter.
    """

    def __init__(self, form: Any, specs: tuple[InputSpec | None, ...] | None) -> None:
        self._args, self._kwargs = form
        self._specs = specs

    @property
    def unchecked(self) -> str:
        """The inputs without a spec, in words; empty if all have one."""
        if self._specs is None:
            return "all inputs"
        unknown = sum(spec is None for spec in self._specs)
        return f"{unknown} of {counted(len(self._specs), 'input')}" if unknown else ""

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call.

        A tensor with other strides than the code expects is copied if the code has all strides. Raises
        PackageInputError if the call has another form, or a tensor another dtype, shape, device or layout.
        """
        tensors: list[tuple[Path, torch.Tensor]] = []
        _collect(self._args, args, ("args",), tensors)
        _collect(self._kwargs, kwargs, ("kwargs",), tensors)
        if self._specs is None:
            return [tensor for _, tensor in tensors]
        if len(tensors) != len(self._specs):
            raise PackageInputError(
                f"the call has {counted(len(tensors), 'tensor')} and the package takes {len(self._specs)}: numbers"
                " and flags became part of the code when it was compiled"
            )
        return [
            tensor if spec is None else _fitting(path, tensor, spec)
            for (path, tensor), spec in zip(tensors, self._specs, strict=True)
        ]


def _collect(form: Any, value: Any, path: Path, tensors: list[tuple[Path, torch.Tensor]]) -> None:
    """Append the tensors of `value` to `tensors`, in the order of `form`."""
    is_tensor = isinstance(value, torch.Tensor)
    expected, given = entries(form), None if is_tensor else entries(value)
    if expected is not None and given is not None:
        there = dict(given)
        if there.keys() != dict(expected).keys():
            raise _form_error(form, value, path)
        for key, inner in expected:
            _collect(inner, there[key], (*path, key), tensors)
    elif expected is not given:
        raise _form_error(form, value, path)
    elif is_tensor:
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise PackageInputError(
                f"{place(path)} is a tensor on {value.device} with the layout {value.layout}: the package"
                " takes dense tensors on the CPU"
            )
        tensors.append((path, value))


def _form_error(form: Any, value: Any, path: Path) -> PackageInputError:
    if path == ("args",):
        has, expected = f"{len(value)} positional arguments", f"{len(form)}"
    elif path == ("kwargs",):
        has, expected = f"the keyword arguments {_names(value)}", _names(form)
    else:
        expected = "one value" if entries(form) is None else described(form)
        return PackageInputError(
            f"{place(path)} is {described(value)}, and the package was exported with {expected} there"
        )
    return PackageInputError(
        f"the call has {has}, and the package was exported with {expected}: call it as the module was called"
        " then"
    )


def _names(arguments: dict[str, Any]) -> str:
    return ", ".join(arguments) or "(none)"


def _fitting(path: Path, tensor: torch.Tensor, spec: InputSpec) -> torch.Tensor:
    """Return the tensor, or a copy in the expected layout. Raises PackageInputError."""
    shape, strides = tensor.shape, tensor.stride()
    if tensor.dtype is not spec.dtype:
        raise PackageInputError(
            f"{place(path)} is {tensor.dtype}, and the package was compiled for {spec.dtype}: convert it by"
            f" .to({spec.dtype})"
        )
    if len(shape) != spec.dims or any(shape[dim] != size for dim, size in spec.sizes.items()):
        sizes = [str(spec.sizes.get(dim, "any")) for dim in range(spec.dims)]
        expected = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        raise PackageInputError(
            f"{place(path)} is {tuple(shape)}, and the package was compiled for {expected}"
        )
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    fits = _has_strides(shape, strides, spec.strides)
    if len(spec.strides) == spec.dims:
        return tensor if fits else _laid_out(path, tensor, spec.strides)
    # The code computes the other strides from the sizes: as for a dense tensor, unless its sample was
    # not dense.
    if fits and (memory_format(tensor) is not None or not _may_be_dense(shape, spec.strides)):
        return tensor
    raise PackageInputError(
        f"{place(path)} has the strides {strides}, and the package was compiled for tensors without gaps in"
        " one memory format: use .contiguous(), or the memory format of the sample"
    )


def _laid_out(path: Path, tensor: torch.Tensor, strides: dict[int, int]) -> torch.Tensor:
    if 0 in strides.values():
        raise PackageInputError(
            f"{place(path)} has the strides {tensor.stride()}, and the package was compiled for an"
            f" expanded tensor with {tuple(strides.values())}: expand it like the sample"
        )
    wanted = [strides[dim] for dim in range(tensor.dim())]
    return torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype).copy_(tensor)


def _has_strides(shape: torch.Size, strides: tuple[int, ...], expected: dict[int, int]) -> bool:
    """Whether the strides are the expected ones, where these are known and matter."""
    # Strides of dimensions of size 1, and of empty tensors, are never used.
    return not shape.numel() or all(
        strides[dim] == stride or shape[dim] == 1 for dim, stride in expected.items()
    )


def _may_be_dense(shape: torch.Size, expected: dict[int, int]) -> bool:
    """Whether a tensor without gaps, contiguous or channels-last, has the expected strides."""
    formats = (torch.contiguous_format, CHANNELS_LAST.get(len(shape), torch.contiguous_format))
    dense = [torch.empty(shape, device="meta", memory_format=layout) for layout in formats]
    return any(_has_strides(shape, tensor.stride(), expected) for tensor in dense)
