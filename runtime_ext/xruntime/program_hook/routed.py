# SPDX-License-Identifier: Apache-2.0
"""The optimized form of a program's module, and the calls that it may take."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from xruntime.compilation.accuracy import Difference, difference
from xruntime.kept.watched_state import WatchedState
from xruntime.optimization.aside import compiled_aside
from xruntime.optimization.run import Known
from xruntime.optimization.runner import transformed
from xruntime.optimization.steps import explain
from xruntime.program_hook.refusals import (
    DifferentError,
    NotYetError,
    PipelineError,
    SlowerError,
    UnfitError,
    form_of,
    mode_refusal,
    sizes_of,
)
from xruntime.pytrees import entries, leaves, rebuilt, tensor_leaves

MAX_COMPARED_SIZES: Final = 8
"""Calls of so many sizes are compared with the program's module; a compiler may make new code for each."""

LATER_TOLERANCE: Final = 2.0
"""Factor on the tolerance after the first call: the largest of more differences is larger. It would still
show code that is wrong for other sizes."""

PLAINLY_FASTER: Final = 0.8
"""A form whose call takes at most this share of the module's time is timed only once."""

MAX_TIMING_S: Final = 1.0
"""Maximum time spent on timing calls again, so that a program with long calls is not delayed."""

Optimize = Callable[[torch.nn.Module, tuple[Any, Any], Known], torch.nn.Module]
"""Makes the optimized form of a module, with a call's arguments as the sample, and what the call returned."""


class Routed:
    """Calls the optimized form of `module` where its results agree with the module's.

    Made for a call, which `prepare` runs and compares; `tolerance` is for that, as in
    `xruntime.compilation.accuracy`. `run` calls the program's module. Raises UnfitError for arguments
    that a call may change.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        run: Callable[..., Any],
        args: Any,
        kwargs: Any,
        tolerance: float,
    ) -> None:
        self._run = run
        self._form = form_of(args=args, kwargs=kwargs)
        self._sample = _cloned((args, kwargs))
        self._tolerance = tolerance
        self._state = WatchedState(module)
        self._dtypes: dict[Any, torch.dtype] = {}
        self._compared: set[Any] = set()
        self.optimized: torch.nn.Module | None = None
        self.difference: Difference | None = None
        """The largest difference between the two on the first call."""

    def prepare(
        self,
        module: torch.nn.Module,
        args: Any,
        kwargs: Any,
        optimize: Optimize,
        *,
        must_be_faster: bool,
    ) -> tuple[Any, Exception | None]:
        """Return the outputs of the program's module, and why there is no optimized form, or None.

        `must_be_faster`: the form is left if it is slower than the module, before it is compiled aside.
        Raises only what the program's own call raises.
        """
        random_before, began = torch.get_rng_state(), time.perf_counter()
        expected = self._run(module, *args, **kwargs)
        known = Known(expected, time.perf_counter() - began)
        random_after, plain_random = torch.get_rng_state(), random.getstate()
        try:
            self._check_first_call(args, kwargs, expected, random_before)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.optimized = optimize(module, _cloned(self._sample), known)
                if compiled_aside(self.optimized) is None:
                    sample_args, sample_kwargs = self._sample
                    outputs = self.optimized(*sample_args, **sample_kwargs)
                    self.difference = self._compare(expected, outputs, self._tolerance)
                else:  # `optimize` has compared the modules, and kept code is compared at its first call
                    self.difference = explain(self.optimized).difference
                    self._note_dtypes(expected)
                if must_be_faster:
                    self._check_faster(module)
            self._check_unchanged("optimizing it changed it")
            self._compared.add(sizes_of(args, kwargs))
        except Exception as error:  # noqa: BLE001 - the program goes on with its own module
            self.optimized = None
            return expected, error
        finally:
            torch.set_rng_state(random_after)
            random.setstate(plain_random)
        return expected, None

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the outputs. Raises UnfitError if the optimized form can no longer be used."""
        assert self.optimized is not None
        if transformed():
            return self._run(module, *args, **kwargs)
        self._check_unchanged("the program changed it")
        if mode_refusal(module, args, kwargs) is not None:
            return self._run(module, *args, **kwargs)
        try:
            form = form_of(args=args, kwargs=kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, the module knows
            form = None
        if form != self._form:
            return self._run(module, *args, **kwargs)
        sizes = sizes_of(args, kwargs)
        # Code that takes over later is compared with the modules by `CompiledAside`.
        limit = 2 if compiled_aside(self.optimized) is not None else MAX_COMPARED_SIZES
        compare = sizes not in self._compared and len(self._compared) < limit
        if not compare:
            return self._restored(self.optimized(*args, **kwargs), ())
        # First, because it may refuse the sizes: the program's error then, before anything is compiled.
        expected = self._run(module, *args, **kwargs)
        outputs = self._restored(self.optimized(*args, **kwargs), ())
        self._compare(expected, outputs, LATER_TOLERANCE * self._tolerance)
        self._compared.add(sizes)
        return expected

    def _check_faster(self, module: torch.nn.Module) -> None:
        """Raise SlowerError if calls of the optimized form take longer than the module's."""
        assert self.optimized is not None
        args, kwargs = self._sample
        aside, form = compiled_aside(self.optimized), self.optimized
        module_s = form_s = float("inf")
        first = time.perf_counter()
        for _ in range(3):
            began = time.perf_counter()
            self._run(module, *args, **kwargs)
            between = time.perf_counter()
            if aside is None or aside.compiled:
                form(*args, **kwargs)
            else:  # a call of the form would begin to compile
                aside.plain(args, kwargs)
            module_s = min(module_s, between - began)
            form_s = min(form_s, time.perf_counter() - between)
            if form_s < PLAINLY_FASTER * module_s or time.perf_counter() - first > MAX_TIMING_S:
                break
        if form_s > module_s:
            raise SlowerError(f"a call takes {form_s / module_s:.2f} times as long")

    def _check_first_call(
        self, args: Any, kwargs: Any, outputs: Any, random_before: torch.Tensor
    ) -> None:
        """Raise UnfitError if the call had side effects."""
        try:
            form_of(output=outputs)
        except UnfitError as error:
            raise NotYetError(str(error)) from None
        if not torch.equal(torch.get_rng_state(), random_before):
            raise UnfitError("a call draws random numbers")
        if not _same((args, kwargs), self._sample):
            raise PipelineError("a call changes its arguments")
        change = self._state.change()
        if change is not None:
            raise NotYetError(f"a call changes it ({change})")

    def _compare(self, expected: Any, outputs: Any, tolerance: float) -> Difference:
        if type(expected) is not type(outputs):
            raise UnfitError(
                f"its optimized form returns {type(outputs).__name__}, not {type(expected).__name__}"
            )
        found = difference(expected, outputs, tolerance)
        if not found.allowed:
            raise DifferentError(f"its optimized form computes something else: {found}")
        self._note_dtypes(expected)
        return found

    def _note_dtypes(self, expected: Any) -> None:
        self._dtypes.update({path: tensor.dtype for path, tensor in tensor_leaves(expected)})

    def _check_unchanged(self, what: str) -> None:
        change = self._state.change()
        if change is not None:
            raise UnfitError(f"{what} ({change})")

    def _restored(self, value: Any, path: tuple[Any, ...]) -> Any:
        """The outputs with the dtypes that the program's module gives, and of the caller's mode."""
        if isinstance(value, torch.Tensor):
            value = value.to(self._dtypes.get(path, value.dtype))
            made_otherwise = value.is_inference() and not torch.is_inference_mode_enabled()
            return value.clone() if made_otherwise else value
        inner = entries(value)
        if not inner:
            return value
        found = [self._restored(item, (*path, key)) for key, item in inner]
        same = all(one is item for one, (_, item) in zip(found, inner, strict=True))
        return value if same else rebuilt(value, found, path)


def _cloned(value: Any, path: tuple[Any, ...] = ("call",)) -> Any:
    """A copy of a nest with copies of its tensors, of the same strides."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    inner = entries(value)
    if inner is None:
        return value
    return rebuilt(value, [_cloned(item, (*path, key)) for key, item in inner], path)


def _same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same values; NaN equals itself."""
    left, right = list(leaves(one)), list(leaves(other))
    if [path for path, _ in left] != [path for path, _ in right]:
        return False
    for (_, a), (_, b) in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                return False
        elif a.shape != b.shape or a.dtype != b.dtype or not bool(((a == b) | (a != a)).all()):
            return False
    return True
