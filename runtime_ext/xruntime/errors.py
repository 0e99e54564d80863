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


class CPUPoolError(UsageError, ValueError):
    """CPUs that cannot be had, or a question that a pool of CPUs cannot answer."""
