# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of xruntime."""

from __future__ import annotations

from typing import Any, NoReturn

from xlaunch.errors import UsageError, XLaunchError


def refusing(error: type[Exception], text: str) -> Any:
    """Return a method that raises an error, for an object that cannot be changed."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise error(text)

    return refuse


class KernelsUnavailableError(XLaunchError):
    """The native library is missing, cannot be loaded, or has another version."""


class AffinityRefusedError(XLaunchError):
    """The kernel refuses to let a thread run on the requested CPUs."""


class SecondRuntimeError(XLaunchError):
    """Two OpenMP runtimes are active in the process."""


class ClosedError(XLaunchError, RuntimeError):
    """Work was submitted to a closed object."""


class LostInForkError(XLaunchError, RuntimeError):
    """A forked child waits for a result of a worker in its parent."""


class HintError(XLaunchError, TypeError):
    """A hint contains anything other than dimensions, None, and nests of these."""


class BatchError(XLaunchError, ValueError):
    """A call cannot be split over streams, or the streams' outputs cannot be joined."""


class StreamCountError(XLaunchError, ValueError):
    """A number of streams that is impossible with this pool or module."""


class GILWarning(UserWarning):
    """Streams wait for each other, because what they run holds the GIL."""


class UncheckedInputWarning(UserWarning):
    """A package does not say which tensors it takes, so its inputs are not checked."""


class CompatibilityError(UsageError, ValueError):
    """An argument of Intel's extension that is not supported here."""


class CompatibilityWarning(UserWarning):
    """An argument of Intel's extension does something else here, or nothing."""


class CPUPoolError(UsageError, ValueError):
    """CPUs that are not allowed or do not exist, or an impossible operation on a CPU pool."""


class SampleError(XLaunchError, TypeError):
    """A sample from which a module cannot be compiled."""


class CompilationError(XLaunchError, RuntimeError):
    """A module cannot be compiled, or computes something else when it is compiled."""


class DeviceError(UsageError, RuntimeError):
    """A device that is unknown or does not work."""


class ThreadCountError(XLaunchError, ValueError):
    """An impossible number of threads, or one that the code was not compiled for."""


class PackageError(XLaunchError, RuntimeError):
    """A file is not a package, or this process may not or cannot run it."""


class PackageInputError(PackageError, ValueError):
    """A call does not fit the arguments that a package was compiled for."""


class AllocatorError(UsageError):
    """An operation on the memory allocator failed."""


class AllocatorUnsupportedError(AllocatorError):
    """The allocator that serves this process does not support the operation."""


class UnknownSettingError(AllocatorError, LookupError):
    """The allocator has no setting of that name."""


class ReadOnlySettingError(AllocatorError):
    """A setting of the allocator cannot be changed now, or cannot be read."""


class SettingTypeError(AllocatorError, TypeError):
    """A setting of the allocator has another type."""


class SettingValueError(AllocatorError, ValueError):
    """A setting of the allocator does not take the value."""


class OptimizerError(UsageError, ValueError):
    """Parameters, gradients or options that an optimizer does not support."""


class OperatorError(UsageError, ValueError):
    """Tensors or numbers that an operator does not support."""


class EmbeddingBagError(UsageError, ValueError):
    """Tables, indices, offsets or options that merged embedding bags do not support."""


class EmbeddingIndexError(EmbeddingBagError, IndexError):
    """An index that is no row of its table."""


class QuantizationError(XLaunchError, RuntimeError):
    """A module cannot be calibrated, converted, saved or loaded as INT8."""


class UnobservedError(QuantizationError):
    """A recipe quantizes a tensor that was not observed in the calibration."""


class RecipeError(UsageError, ValueError):
    """A recipe for INT8 that cannot be read, or that does not fit the module."""


class OptimizationError(UsageError, ValueError):
    """A model, a sample or an option from which `optimize` cannot make anything."""
