# SPDX-License-Identifier: Apache-2.0
"""What can go wrong inside a script that uses xruntime."""

from __future__ import annotations

from xlaunch.errors import UsageError, XLaunchError


class KernelsUnavailableError(XLaunchError):
    """The native library is absent, cannot be loaded, or is of another version."""


class AffinityRefusedError(XLaunchError):
    """The kernel refuses to let a thread run on the CPUs that were asked for."""


class SecondRuntimeError(XLaunchError):
    """Two OpenMP runtimes with threads of their own are active in this process."""


class ClosedError(XLaunchError, RuntimeError):
    """Work was handed to something that was closed."""


class LostInForkError(XLaunchError, RuntimeError):
    """A result is waited for in a forked child, and the worker that makes it is in the parent."""


class HintError(XLaunchError, TypeError):
    """A hint holds something that is neither a dimension nor None, nor a nest of these."""


class BatchError(XLaunchError, ValueError):
    """A call cannot be split over streams, or what the streams returned cannot be joined."""


class StreamCountError(XLaunchError, ValueError):
    """A number of streams that cannot be had on this pool or with this module."""


class InterpreterLockWarning(UserWarning):
    """Streams wait for each other, because what they run holds the interpreter's lock."""


class UncheckedInputWarning(UserWarning):
    """Tensors are handed to a package's code that cannot be compared with what it was made for."""


class CPUPoolError(UsageError, ValueError):
    """CPUs that cannot be had, or a question that a pool of CPUs cannot answer."""


class SampleError(XLaunchError, TypeError):
    """What was given as a sample of a stream's input does not say how the module is called."""


class CompilationError(XLaunchError, RuntimeError):
    """A module cannot be compiled for streams, or computes something else when it is compiled."""


class ThreadCountError(XLaunchError, ValueError):
    """A number of threads that cannot be had, or that compiled code was not made for."""


class PackageError(XLaunchError, RuntimeError):
    """A file is no package of compiled code that this process may, or can, load and run."""


class PackageInputError(PackageError, ValueError):
    """A call does not fit the arguments that a package was compiled for."""


class AllocatorError(UsageError):
    """What was asked of the memory allocator cannot be done."""


class AllocatorUnsupportedError(AllocatorError):
    """The allocator that serves this process has no such thing, or was built without it."""


class UnknownSettingError(AllocatorError, LookupError):
    """The allocator has no setting of that name."""


class ReadOnlySettingError(AllocatorError):
    """A setting of the allocator cannot be changed, or not any more, or cannot be read."""


class SettingTypeError(AllocatorError, TypeError):
    """A setting of the allocator takes values of another type."""


class SettingValueError(AllocatorError, ValueError):
    """A setting of the allocator does not take that value."""
