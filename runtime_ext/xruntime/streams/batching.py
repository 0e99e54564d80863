# SPDX-License-Identifier: Apache-2.0
"""Waiting calls of equal shape that run as one call of the module.

A stream that becomes free takes its share of the calls that wait, and never waits for more: where 16
streams are busy and 40 calls wait, it takes 3, or 2 if calls run as batches of 1, 2 and 4. So nothing is
joined while streams are free, and batches grow with the load.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import inference_mode, is_inference_mode_enabled

from xruntime.compilation.inductor import first_line
from xruntime.compilation.judge import difference
from xruntime.compilation.samples import Sample
from xruntime.errors import BatchError, CompilationError
from xruntime.pytrees import Path, constant_key, entries, leaves, rebuilt, tensor_leaves
from xruntime.streams.compiled_module import CompiledForStreams
from xruntime.streams.hints import MultiStreamModuleHint
from xruntime.streams.joining import are_equal
from xruntime.streams.splitting import Branch, Call, Leaf, Plan, SplitPlan, UnsplitValue, lone_dim
from xruntime.streams.whole_batch import copied, tolerance_of, training_dependent
from xruntime.threads.torch_modes import Autocast
from xruntime.threads.worker import Submission, TaskFuture

MAX_REMEMBERED: Final = 1024
"""Maximum number of groups and sizes whose outcome is remembered; then all are forgotten."""

COMPARED_BATCHES: Final = 3
"""Number of batches of each shape and size that also run as single calls. All must agree, and the
shortest times are compared."""

WORTHWHILE: Final = 0.97
"""A batch must take at most this share of the time of its single calls."""

MAX_REASONS: Final = 8

_log = logging.getLogger("xruntime")


class BatchGroup(NamedTuple):
    """What calls must have in common to run as one."""

    shape: Hashable
    """Nest, shapes, strides and dtypes of the tensors that are joined, and all other values."""

    items: int
    """Items of each call."""

    grad: bool
    inference: bool
    autocast: Autocast | None


class Batching:
    """Joins waiting calls of `module`, and gives each its own part of the results.

    max_batch
        Maximum number of calls that run as one. Batches have 1, 2, 4, ... calls, and this many.
    input_hint, output_hint
        As of MultiStreamModule.
    check
        Compare the first three batches of each shape and size with single calls, which then give the results.

    A call that cannot be joined runs alone, and `reasons` says why: a layer is in training mode, there is
    nothing to split, the module was compiled for other shapes. Batches of a shape and size are given up if
    one of the first fails, if its results are not those of single calls, or if they take as long as single
    calls do; also if a later one fails for another reason than one of its calls.

    Raises BatchError for a `max_batch` that is no number of calls.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        max_batch: int,
        input_hint: MultiStreamModuleHint | None,
        output_hint: MultiStreamModuleHint | None,
        *,
        check: bool = True,
    ) -> None:
        if type(max_batch) is not int or max_batch < 1:
            raise BatchError(
                f"max_batch={max_batch!r}: the number of waiting calls that may run as one, at least 1,"
                " is expected"
            )
        self.sizes = batch_sizes(max_batch)
        self.reasons: list[str] = []
        """Why calls run alone, without repetition."""

        self.counts: Counter[int] = Counter()
        """Number of batches so far by size. Streams change it one at a time."""

        self._module = module
        self._input_hint = input_hint
        # One hint for the whole return value, as if it was an argument.
        self._output_hint = (
            None if output_hint is None else MultiStreamModuleHint(output_hint.whole)
        )
        self._check = check
        self._training_dependent = training_dependent(module)
        self._refused: set[tuple[Hashable, int]] = set()
        self._checked: set[tuple[Hashable, int]] = set()
        self._timed: dict[tuple[Hashable, int], list[tuple[float, float]]] = {}
        """Seconds of batches that are being compared, and of their single calls."""
        self._compiled: set[Hashable] | None = None
        """The shapes for which batches were compiled; None: any."""

        if isinstance(module, CompiledForStreams) and not module.dynamic:
            self._prepare(module)

    def _prepare(self, module: CompiledForStreams) -> None:
        """Make or load code for batches of the shapes that the module was compiled for."""
        self._compiled = set()
        for sample in module.samples:
            try:
                shape, _ = _shape_of(*sample, self._input_hint)
                for size in self.sizes[1:]:
                    joined = _joined_call([sample] * size, self._input_hint)
                    module.compile_call(Sample(*joined))
            except Exception as error:  # noqa: BLE001 - such calls run one by one
                self._note(f"a batch of the sample cannot be compiled: {first_line(error)}")
            else:
                self._compiled.add(shape)

    def group_of(self, call: Submission) -> Hashable:
        """Return the group of a call; None if it has to run alone."""
        try:
            shape, items = _shape_of(call.args, call.kwargs, self._input_hint)
        except BatchError as error:
            self._note(str(error))
            return None
        problem = self._obstacle(shape, items)
        if problem is not None:
            self._note(problem)
            return None
        return BatchGroup(shape, items, call.grad, call.inference, call.autocast)

    def take(self, waiting: deque[Submission], streams: int) -> list[Submission]:
        """Remove from `waiting` the first call and those that run with it; return them.

        Called by one stream at a time, when it is free and there is a call.
        """
        share = -(-len(waiting) // streams)
        first = waiting.popleft()
        group, taken = first.group, [first]
        wanted = 1 if group is None else self._size(group, share)
        if wanted > 1:
            indices = []
            for index, other in enumerate(waiting):
                if other.group == group and not other.future.cancelled():
                    indices.append(index)
                    if len(indices) == wanted - 1:
                        break
            indices = indices[: self._size(group, 1 + len(indices)) - 1]
            taken += [waiting[index] for index in indices]
            for index in reversed(indices):
                del waiting[index]
        self.counts[len(taken)] += 1
        return taken

    def together(self, calls: list[Submission]) -> Submission:
        """Return a call that makes all these calls of one group, and sets their futures."""
        future: TaskFuture[None] = TaskFuture()
        # A context of its own: that of a call cannot be entered twice.
        return calls[0]._replace(
            future=future,
            function=self._run,
            args=(future, calls),
            kwargs={},
            context=contextvars.Context(),
        )

    def described(self) -> Iterator[str]:
        """Describe what was joined so far, in lines."""
        counts = ", ".join(f"{self.counts[size]} of {size}" for size in self.sizes)
        yield f"up to {self.sizes[-1]} waiting calls run as one; batches so far: {counts}"
        for reason in self.reasons:
            yield f"calls run alone: {reason}"

    def _obstacle(self, shape: Hashable, items: int) -> str | None:
        """Return why a call cannot be joined with others; None if it can."""
        for name, layer in self._training_dependent:
            if layer.training:
                return f"{type(layer).__name__} {name!r} is in training mode"
        if self._compiled is not None and shape not in self._compiled:
            return (
                "batches were compiled for the shapes of the samples only: call prepare() for another one"
                " before the streams are made"
            )
        return None if items else "a call has no items"

    def _size(self, group: Hashable, limit: int) -> int:
        """Return the largest size up to `limit` that batches of the group may have."""
        fitting = [size for size in self.sizes if size <= limit]
        return max(size for size in fitting if size == 1 or (group, size) not in self._refused)

    def _run(self, batch: TaskFuture[None], calls: list[Submission]) -> None:
        for call in calls:
            # Waiters for a call wait for the batch. In this order: a waiting thread reads them in the other.
            call.future.ticket, call.future.line = batch.ticket, batch.line
        begun = [call for call in calls if call.future.set_running_or_notify_cancel()]
        try:
            done = 0
            while done < len(begun):
                size = self._size(calls[0].group, len(begun) - done)
                self._run_batch(begun[done : done + size])
                done += size
        except BaseException as error:  # noqa: BLE001 - result() raises it
            for call in begun:
                if not call.future.done():
                    call.future.set_exception(error)
        finally:
            # An exception's traceback refers to this frame, which would keep the arguments alive.
            calls.clear()
            begun.clear()
            del call

    def _run_batch(self, calls: list[Submission]) -> None:
        if len(calls) == 1:
            _give(calls, [_outcome(calls[0])])
            calls.clear()
            return
        key = (calls[0].group, len(calls))
        began = time.perf_counter()
        results = self._joint_results(calls)
        together_s = time.perf_counter() - began
        if isinstance(results, list) and (key in self._checked or not self._check):
            _give(calls, results)
            return
        before = [copied((call.args, call.kwargs)) for call in calls]
        began = time.perf_counter()
        outcomes = list(map(_outcome, calls))  # without a frame that would keep the last call
        alone_s = time.perf_counter() - began
        if not any(isinstance(outcome, _CallFailure) for outcome in outcomes):
            problem = self._problem(calls, before, outcomes, results)
            self._judge(key, problem, together_s, alone_s)
        _give(calls, outcomes)
        # As in `_run`.
        calls.clear()
        del results, before, outcomes

    def _judge(
        self, key: tuple[Hashable, int], problem: str | None, together_s: float, alone_s: float
    ) -> None:
        """Give up batches of a shape and size, or accept them when enough were compared."""
        timed = self._timed.setdefault(key, [])
        timed.append((together_s, alone_s))
        if problem is None:
            if len(timed) < COMPARED_BATCHES:
                return
            ratio = min(together for together, _ in timed) / min(alone for _, alone in timed)
            if ratio > WORTHWHILE:
                problem = f"takes {ratio:.2f} times as long as its single calls"
        self._timed.pop(key, None)
        remembered: set[tuple[Hashable, int]] = self._checked if problem is None else self._refused
        for memory in (remembered, self._timed):
            if len(memory) >= MAX_REMEMBERED:
                memory.clear()
        remembered.add(key)
        if problem is not None:
            self._note(f"a batch of {key[1]} {problem}")

    def _joint_results(self, calls: list[Submission]) -> list[Any] | _CallFailure:
        """Call the module once; return the results of all calls, or why there are none."""
        first, count = calls[0], len(calls)
        assert isinstance(first.group, BatchGroup)
        items = first.group.items
        try:
            arguments = [(call.args, call.kwargs) for call in calls]
            args, kwargs = _joined_call(arguments, self._input_hint)
            output = first.context.run(first.function, *args, **kwargs)
            return self._parts(output, items, count)
        except BaseException as error:  # noqa: BLE001 - then each call is made alone
            return _CallFailure(error)

    def _parts(self, output: Any, items: int, count: int) -> list[Any]:
        """Split the output of a batch into the results of its calls. Raises BatchError."""
        plan = SplitPlan((output,), {}, self._output_hint)
        if plan.items != items * count:
            raise BatchError(f"{items * count} items gave a result of {plan.items}")
        tensors = [tensor for _, tensor in tensor_leaves(output)]
        if any(tensor.requires_grad for tensor in tensors):
            raise BatchError(
                "autograd records the call, and one graph cannot be that of several calls: submit"
                " under torch.inference_mode()"
            )
        # Tensors of their own: a view would keep, and pickle, the results of all.
        with inference_mode(tensors[0].is_inference() or is_inference_mode_enabled()):
            return [copied(part)[0][0] for part in plan.parts([items] * count)]

    def _problem(
        self,
        calls: list[Submission],
        before: list[Call],
        outcomes: list[Any],
        results: list[Any] | _CallFailure,
    ) -> str | None:
        """Return how a batch differs from its single calls, which all succeeded; None if it does not."""
        if isinstance(results, _CallFailure):
            return f"fails, and single calls do not: {first_line(results.error)}"
        for call, (args, kwargs) in zip(calls, before, strict=True):
            if not difference((args, kwargs), (call.args, call.kwargs), 0.0).allowed:
                return "does not change the caller's arguments, and single calls do"
        for alone, joint in zip(outcomes, results, strict=True):
            others, expected = _beside_tensors(joint), _beside_tensors(alone)
            if others.keys() == expected.keys() and not all(
                are_equal(others[path], expected[path]) for path in others
            ):
                return "returns other values beside the tensors than single calls"
            try:
                deviation = difference(alone, joint, tolerance_of(self._module, alone))
            except CompilationError:
                return "returns another form of results than single calls"
            if not deviation.allowed:
                return f"computes something else than single calls: {deviation}"
        return None

    def _note(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)
            _log.warning("calls run alone, and not up to %d at once: %s", self.sizes[-1], reason)


class _CallFailure(NamedTuple):
    """The outcome of a call that raised an exception."""

    error: BaseException


class _IdentityKey(NamedTuple):
    """A value that is equal to itself only."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self.value)


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Return the sizes that batches have. **Ex.:** ``batch_sizes(6) == (1, 2, 4, 6)``."""
    powers = [1 << power for power in range(max_batch.bit_length())]
    return tuple(dict.fromkeys((*powers, max_batch)))


def _outcome(call: Submission) -> Any:
    """Return the result of a call in the calling thread, or the exception as `_CallFailure`."""
    try:
        return call.context.run(call.function, *call.args, **call.kwargs)
    except BaseException as error:  # noqa: BLE001 - result() raises it
        return _CallFailure(error)
    finally:
        del call  # as in `Batching._run`


def _give(calls: Sequence[Submission], outcomes: Sequence[Any]) -> None:
    """Set the futures of calls."""
    for call, outcome in zip(calls, outcomes, strict=True):
        if isinstance(outcome, _CallFailure):
            call.future.set_exception(outcome.error)
        else:
            call.future.set_result(outcome)


def _shape_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], hint: MultiStreamModuleHint | None
) -> tuple[Hashable, int]:
    """Return what equal calls have in common, and the number of items. Raises BatchError."""
    dim = lone_dim(args, kwargs, hint)
    if dim is not None:
        return _leaf_shape(args[0], dim), args[0].shape[dim]
    plan = SplitPlan(args, kwargs, hint)
    return (_plan_shape(plan.args), _plan_shape(plan.kwargs)), plan.items


def _leaf_shape(tensor: torch.Tensor, dim: int) -> Hashable:
    return (type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), dim)


def _plan_shape(plan: Plan) -> Hashable:
    if type(plan) is UnsplitValue:
        return _whole_shape(plan.value)
    if type(plan) is Leaf:
        return _leaf_shape(plan.tensor, plan.dim)
    assert type(plan) is Branch
    keys = [key for key, _ in entries(plan.value) or ()]
    return (type(plan.value), *keys, *map(_plan_shape, plan.inner))


def _beside_tensors(value: Any) -> dict[Path, Any]:
    return {path: leaf for path, leaf in leaves(value) if not isinstance(leaf, torch.Tensor)}


def _whole_shape(value: Any) -> Hashable:
    key = constant_key(value)
    if key is not None:
        return key
    inner = entries(value)
    if inner is None:
        return _IdentityKey(value)
    return (type(value), *(key for key, _ in inner), *(_whole_shape(item) for _, item in inner))


def _joined_call(calls: Sequence[Call], hint: MultiStreamModuleHint | None) -> Call:
    """Return one call with the items of all, which have equal shapes."""
    args, kwargs = calls[0]
    dim = lone_dim(args, kwargs, hint)
    if dim is not None:
        return (torch.cat([args[0] for args, _ in calls], dim),), kwargs
    plans = [SplitPlan(args, kwargs, hint) for args, kwargs in calls]
    return _joined([plan.args for plan in plans]), _joined([plan.kwargs for plan in plans])


def _joined(plans: Sequence[Plan]) -> Any:
    first: Plan = plans[0]
    if type(first) is UnsplitValue:
        return first.value
    if type(first) is Leaf:
        return torch.cat([plan.tensor for plan in plans if type(plan) is Leaf], first.dim)
    assert type(first) is Branch
    columns = zip(*(plan.inner for plan in plans if type(plan) is Branch), strict=True)
    return rebuilt(first.value, [_joined(column) for column in columns], first.path)
