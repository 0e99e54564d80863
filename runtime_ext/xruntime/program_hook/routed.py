# SPDX-License-Identifier: Apache-2.0
"""The optimized form of a program's module, and the calls that it may take."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from xlaunch.errors import XLaunchError
from xruntime.compilation.judge import Difference, Trial, difference
from xruntime.compilation.samples import Sample
from xruntime.kept.fingerprint import changed_variable, hooks_of, variables_of
from xruntime.kept.watched_state import RandomState, WatchedState
from xruntime.optimization.optimized_code import OptimizedCode, optimized_code
from xruntime.optimization.run import KnownCall
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
from xruntime.pytrees import with_tensors
from xruntime.threads.torch_modes import transformed

MAX_COMPARED_SIZES: Final = 8
"""Calls of so many sizes are compared with the program's module; a compiler may make new code for each."""

FORMS: Final = ("module", "form")

OF_THE_FORM: Final = (RuntimeError, TypeError, AttributeError, NotImplementedError, XLaunchError)
"""Errors that replaced layers and weights in another precision may cause. Others are the program's own."""

Optimize = Callable[[torch.nn.Module, tuple[Any, Any], KnownCall], torch.nn.Module]
"""Makes the optimized form of a module, with a call's arguments as the sample, and what the call returned."""


class RoutedModule:
    """Calls the optimized form of `module` where its results agree with the module's.

    Made for a call, which `prepare` runs and compares; `tolerance` is for that, as in
    `xruntime.compilation.judge`. `run` calls the program's module. Raises UnfitError for arguments
    that a call may change, and for a module whose changes cannot be followed.
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
        self._default_dtype = torch.get_default_dtype()
        self._sample = Sample(args, kwargs).copied()
        self._tolerance = tolerance
        self._state = WatchedState(module)
        if self._state.unfollowed is not None:
            raise UnfitError(self._state.unfollowed)
        self._variables = variables_of(module, type(module).forward, hooks_of(module))
        """What it reads beside itself, which may tell it from the form."""

        iterators = [it.name for it in self._variables if isinstance(it.value, Iterator)]
        if iterators:  # comparing the two would take items of it
            raise UnfitError(f"it reads {iterators[0]}, whose changes are not followed")

        self._with_gradients = torch.is_grad_enabled()
        self._compared: set[Any] = set()
        self._form_state: WatchedState | None = None
        self._trial: Trial | None = None
        self._is_final = False
        """Whether the trial is the last one: nothing more is compiled."""

        self._must_be_faster = False
        self._own_errors: set[type[Exception]] = set()
        """Errors of the form that the module has raised, too."""

        self.failure: Exception | None = None
        """Why the optimized form can no longer be used; None while it can be."""

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

        `must_be_faster`: the form is left if the next calls show that it is slower than the module.
        Raises only what the program's own call raises.
        """
        self._must_be_faster = must_be_faster
        before = RandomState()
        expected = self._run(module, *args, **kwargs)
        drawn, after = before.change(), RandomState()
        try:
            form_of(output=expected)
            self._check_effects(Sample(args, kwargs), self._sample, drawn)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.optimized = optimize(module, self._sample.copied(), KnownCall(expected))
                if self.code is None:
                    sample_args, sample_kwargs = self._sample
                    outputs = self.optimized(*sample_args, **sample_kwargs)
                    self.difference = self._compare(expected, outputs)
                else:  # `optimize` has compared the modules, and kept code is compared at its first call
                    self.difference = explain(self.optimized).difference
            change = self._state.change()
            if change is not None:
                raise UnfitError(f"optimizing it changed it ({change})")  # noqa: TRY301 - as above
            self._form_state = WatchedState(self.optimized)
            self._trial = Trial(*FORMS)
            self._compared.add(sizes_of(args, kwargs))
        except Exception as error:  # noqa: BLE001 - the program goes on with its own module
            self.optimized = None
            return expected, error
        finally:
            after.restore()
        return expected, None

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the outputs, or raise what the program's module raises; `failure` says whether the form is left."""
        assert self.optimized is not None
        began = time.perf_counter()
        if not self._takes(module, args, kwargs):
            return self._run(module, *args, **kwargs)
        sizes = sizes_of(args, kwargs)
        # Code that takes over later is compared with the modules by `OptimizedCode`.
        code = self.code
        limit = 2 if code is not None else MAX_COMPARED_SIZES
        if sizes not in self._compared and len(self._compared) < limit:
            return self._compared_call(module, args, kwargs)
        trial = self._present_trial(code)
        if sizes != sizes_of(*self._sample) or trial is None:
            return self._form_call(module, args, kwargs)
        return trial.computed(
            began,
            lambda: self._run(module, *args, **kwargs),
            lambda: self._form_call(module, args, kwargs),
            lambda: self._end_trial(trial, code),
        )

    @property
    def code(self) -> OptimizedCode | None:
        """The form's code, that may still be compiled; None without any."""
        return None if self.optimized is None else optimized_code(self.optimized)

    def _takes(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether the form may compute a call, which is of the form that it was made for."""
        if transformed() or torch.get_default_dtype() != self._default_dtype:
            return False
        change = self._state.change() or changed_variable(self._variables)
        if change is not None:
            self.failure = UnfitError(f"the program changed it ({change})")
            return False
        if torch.is_grad_enabled() != self._with_gradients:
            return False
        if mode_refusal(module, args, kwargs) is not None:
            return False
        try:
            return form_of(args=args, kwargs=kwargs) == self._form
        except Exception:  # noqa: BLE001 - whatever it is, the module knows
            return False

    def _present_trial(self, code: OptimizedCode | None) -> Trial | None:
        """Return the trial that the next call may be a turn of: one while code is compiled, and one after that."""
        if self._is_final or code is None:
            return self._trial
        if code.is_timing:
            return None  # some calls of the form run code, and some run modules
        if code.is_settled:
            self._trial, self._is_final = Trial(*FORMS), True
        return self._trial

    def _form_call(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call the form. Where it fails for a reason of its own, the module is called.

        The program's own errors are raised as they are, and the call is not repeated: it may have written to its
        arguments.
        """
        assert self.optimized is not None
        assert self._form_state is not None
        try:
            return with_tensors(_outside_inference_mode, self.optimized(*args, **kwargs))
        except Exception as error:
            kind, text = type(error), f"its optimized form fails: {type(error).__name__}: {error}"
            own = not issubclass(kind, OF_THE_FORM) or kind in self._own_errors
            if own and self._form_state.change() is None:
                raise
            changed = self._form_state.change() is not None
        try:
            outputs = self._run(module, *args, **kwargs)
        except Exception as error:
            self._own_errors.add(type(error))
            if changed or type(error) is not kind:
                self.failure = UnfitError(text)
            raise
        self.failure = UnfitError(text)
        return outputs

    def _compared_call(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the module's outputs; compare those of the form, which is called on copies of the arguments."""
        assert self.optimized is not None
        before, random_before = Sample(args, kwargs).copied(), RandomState()
        # The module first: it may refuse the sizes.
        expected = self._run(module, *args, **kwargs)
        try:
            self._check_effects(Sample(args, kwargs), before, random_before.change())
            outputs = self.optimized(*before[0], **before[1])
            self._compare(expected, outputs)
            self._compared.add(sizes_of(args, kwargs))
        except Exception as error:  # noqa: BLE001 - the program goes on with its own module
            self.failure = error
        return expected

    def _end_trial(self, trial: Trial, code: OptimizedCode | None) -> None:
        """Once the trial is decided, leave a form that is slower as the program calls it and not being compiled."""
        is_first = code is not None and not self._is_final
        decided = trial.is_faster or trial.is_slower or trial.is_over()
        if trial is not self._trial or not (decided or (is_first and trial.is_faster is False)):
            return
        self._trial = None
        if code is not None and is_first:
            code.speedup = trial.ratio  # the compiler may take what the form saves
        # Modules that are to be compiled may be no faster until then.
        is_left = trial.is_slower and (code is None or self._is_final)
        if is_left or (self._must_be_faster and not trial.is_faster and trial.ratio < 1.0):
            self.failure = SlowerError(f"a call takes {1 / trial.ratio:.2f} times as long")
        elif code is not None and code.compiled:
            code.note(
                f"a call is {trial.ratio:.2f} times as fast as one of the program's own model"
            )

    def _check_effects(self, call: Sample, before: Sample, drawn: str | None) -> None:
        """Raise UnfitError if the call drew random numbers, or changed its arguments, the module or what that reads."""
        if drawn is not None:
            raise UnfitError("a call draws random numbers")
        if not call.is_unchanged(before):
            raise PipelineError("a call changes its arguments")
        change = self._state.change()
        if change is not None:
            raise NotYetError(f"a call changes it ({change})")
        variable = changed_variable(self._variables)
        if variable is not None:
            raise NotYetError(f"a call changes the global variable {variable}")

    def _compare(self, expected: Any, outputs: Any) -> Difference:
        if type(expected) is not type(outputs):
            raise UnfitError(
                f"its optimized form returns {type(outputs).__name__}, not {type(expected).__name__}"
            )
        largest = difference(expected, outputs, self._tolerance)
        if not largest.allowed or largest.other_dtypes:
            raise DifferentError(f"its optimized form computes something else: {largest}")
        return largest


def _outside_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the caller may change where it may change those of the program's module."""
    made_otherwise = tensor.is_inference() and not torch.is_inference_mode_enabled()
    return tensor.clone() if made_otherwise else tensor
