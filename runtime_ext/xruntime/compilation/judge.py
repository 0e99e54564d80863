# SPDX-License-Identifier: Apache-2.0
"""Judges another form of a model: whether it computes the same as the modules, and which of the two is faster.

**The same**: one tolerance for each precision. Compiled code adds in another order, folds batch norms into weights, and keeps in fp32 what the eager
module rounds after each operator. Both are right; they differ by rounding errors.

- fp32 sums are rounded in fp32: n terms in another order differ by about sqrt(n) roundings of 2**-24
  each. A sum of 4,096 terms in each of 100 layers: 640 roundings, 4e-5 of the values. The tolerance
  is 1e-3, which leaves room for layers that amplify.
- Sums of bf16 and fp16 are kept in fp32 and rounded once for each layer, to 8 or 11 bits: of some
  hundred such roundings the differences add up like sqrt(100) to 10 or 20 of 2**-9 or 2**-12. The
  tolerance is 26 of them: 5e-2 and 6e-3.
- INT8 rounds activations to 8 bits: where two sums differ at all, they may be rounded to neighbouring
  integers, which makes more of the later sums differ. In deep networks the difference grows to the error
  of the quantization itself: 0.09 in MiniLM's six layers. The tolerance is 0.25. A module with
  int8 weights is INT8.
- fp64: 1e-9, since vectorised functions are not exact to the last bits.

The difference is relative to the largest value of an output, because it comes from sums of such
values: small values can be the result of cancellation.

Where both sides are rounded, single values may differ by more although both sides are right: in MiniLM in
bf16 the outputs for padding, which nobody uses, by 0.02 to 0.11 of the largest value, as far as stock modules
differ from fp32 there. The root mean square of all differences is 0.01 of that of the values in each batch. A
scaling of 2.2 instead of 2 makes both 0.1. So single values may differ by four tolerances if the root mean
square is at most half of one; not in fp32 and fp64.

**Faster**: the two forms take turns, in calls that are made anyway or in calls with a sample, see `Trial`.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import torch

from xruntime.errors import CompilationError
from xruntime.pytrees import are_equal, constant_key, described, leaves, parts, place
from xruntime.threads.torch_modes import Autocast

TOLERANCES: Final[Mapping[torch.dtype, float]] = {
    torch.int8: 0.25,
    torch.bfloat16: 5e-2,
    torch.float16: 6e-3,
    torch.float32: 1e-3,
    torch.float64: 1e-9,
}
"""Tolerance by precision in use, the coarsest first."""


MAX_OUTLIER: Final = 4.0
"""Largest difference of a single value in tolerances, see the module's text."""

MAX_TYPICAL: Final = 0.5
"""Largest root mean square in tolerances of an output that has outliers."""

MIN_GAIN: Final = 1.03
"""How many times as fast a form must be to take over."""

MIN_PAIRS: Final = 5
"""The range of five values includes the median with a probability of 94 %; that of four with 88 %."""

MAX_CALLS: Final = 40
MAX_SHORT_CALLS: Final = 400
MIN_TRIAL_S: Final = 0.2
"""Short calls go on until then: 40 of a millisecond end within a moment of other work, which would decide."""

MAX_TRIAL_S: Final = 1.0
CONFIDENCE: Final = 0.9


class Difference(NamedTuple):
    """The output that differs most.

    **Ex.:** ``Difference(absolute=0.012, relative=0.004, tolerance=0.05, where="output['logits']")``
    """

    absolute: float
    """The largest absolute difference of two values."""

    relative: float
    """The same, divided by the largest value of that output; infinite if NaN or infinity is in only one
    of the two, or integers or booleans differ."""

    tolerance: float
    where: str

    typical: float = 0.0
    """The root mean square of the differences, divided by that of the values."""

    other_dtypes: str = ""
    """The outputs that have another floating-point precision in the compiled module; empty if none."""

    @property
    def allowed(self) -> bool:
        if self.relative <= self.tolerance:
            return True
        rounded = self.tolerance > TOLERANCES[torch.float32]
        few = self.typical <= MAX_TYPICAL * self.tolerance
        return rounded and few and self.relative <= MAX_OUTLIER * self.tolerance

    def __str__(self) -> str:
        if self.relative == 0:
            text = "the outputs are equal"
        elif math.isinf(self.relative):
            text = f"{self.where} differs by more than rounding (at most {self.absolute:.3g})"
        else:
            text = (
                f"the largest difference is {self.absolute:.3g}, {self.relative:.2g} of the largest"
                f" value, in {self.where} ({self.tolerance:.2g} allowed)"
            )
        return f"{text}; {self.other_dtypes}" if self.other_dtypes else text


def tolerance_for(values: Iterable[torch.Tensor], autocast: Autocast | None) -> float:
    """Return the tolerance of the coarsest precision among the tensors' and autocast's."""
    used = {value.dtype for value in values}
    if autocast is not None:
        used.add(autocast.dtype)
    return next((TOLERANCES[dtype] for dtype in TOLERANCES if dtype in used), 1e-3)


def difference(expected: Any, seen: Any, tolerance: float) -> Difference:
    """Return the largest difference between the tensors and numbers of two outputs, of those that are not allowed
    if any.

    Raises CompilationError if their forms, shapes or dtypes differ, except floating-point precisions,
    which autocast chooses and `other_dtypes` names; and if integers, texts or other constants differ.
    """
    differences = [Difference(0.0, 0.0, tolerance, "output")]
    other_dtypes = []
    expected_leaves = list(leaves(expected, ("output",), parts))
    seen_leaves = dict(leaves(seen, ("output",), parts))
    if [path for path, _ in expected_leaves] != list(seen_leaves):
        raise CompilationError(
            f"the eager module's output is {described(expected)}, and the compiled one's is"
            f" {described(seen)}, with other values in it"
        )
    for path, value in expected_leaves:
        other = seen_leaves[path]
        if type(value) is not type(other):
            raise CompilationError(
                f"{place(path)} is {described(value)} from the eager module, and {described(other)}"
                " from the compiled one"
            )
        if isinstance(value, torch.Tensor):
            floating = value.is_floating_point() and other.is_floating_point()
            if value.shape != other.shape or (value.dtype != other.dtype and not floating):
                raise CompilationError(
                    f"{place(path)} is {described(value)} of {value.dtype} from the eager module, and"
                    f" {described(other)} of {other.dtype} from the compiled one"
                )
            if value.dtype != other.dtype:
                other_dtypes.append(
                    f"{place(path)} is {other.dtype} there and {value.dtype} in the eager module"
                )
            absolute, relative, typical = _distance(value, other)
            where = place(path)
            differences.append(Difference(absolute, relative, tolerance, where, typical))
        elif not are_equal((value,), (other,)) and constant_key(value) is not None:
            if not isinstance(value, (float, complex)):
                raise CompilationError(
                    f"{place(path)} is {value!r} from the eager module, and {other!r} from the compiled one"
                )
            absolute, relative, _ = _distance(torch.tensor(value), torch.tensor(other))
            differences.append(Difference(absolute, relative, tolerance, place(path)))
    largest = max(differences, key=lambda part: (not part.allowed, part.relative))
    return largest._replace(other_dtypes=", ".join(other_dtypes))


def _distance(left: torch.Tensor, right: torch.Tensor) -> tuple[float, float, float]:
    """Return the largest absolute difference, the same relative to the largest value, and `typical`."""
    if left.layout is not torch.strided:
        left, right = left.to_dense(), right.to_dense()
    if left.is_quantized:
        left, right = left.dequantize(), right.dequantize()
    if left.numel() == 0:
        return 0.0, 0.0, 0.0
    if not (left.is_floating_point() or left.is_complex()):
        gap = (left.double() - right.double()).abs().max().item()
        relative = 0.0 if torch.equal(left, right) else math.inf
        return gap, relative, relative
    wide = torch.complex128 if left.is_complex() else torch.float64
    left, right = left.to(wide), right.to(wide)
    # NaN and infinity are right where they are in both.
    usual = left.isfinite() & right.isfinite()
    same = usual | (left == right) | (left.isnan() & right.isnan())
    gaps, values = torch.where(usual, left - right, 0), torch.where(usual, left, 0)
    gap, largest = gaps.abs().max().item(), values.abs().max().item()
    if not same.all() or (gap and not largest):
        return gap, math.inf, math.inf
    if not gap:
        return 0.0, 0.0, 0.0
    return gap, gap / largest, (gaps.norm() / values.norm()).item()


class Trial:
    """Times two forms by calls that alternate between them, each of which one form computes.

    **Ex.:** ``Trial("modules", "code")``

    Two calls one after the other are a pair, and its ratio says how many times as fast the second form was. The
    median of the ratios has an interval between two of them, whatever the distribution of times is: on a machine
    with other work single calls may take many times as long.
    """

    def __init__(self, first: str, second: str) -> None:
        self.names = (first, second)
        self._times_s: list[float] = []
        self._busy = threading.Lock()

    @property
    def calls(self) -> int:
        """The number of timed calls so far."""
        return len(self._times_s)

    @property
    def next_form(self) -> str:
        """The form that the next timed call uses."""
        return self.names[self.calls % 2]

    def computed(
        self,
        began: float,
        first: Callable[[], Any],
        second: Callable[[], Any],
        after: Callable[[], object],
    ) -> Any:
        """Compute a timed call, and call `after`. While another thread does so, the second form computes it.

        `began`: the time of the second form is from then on, with all that chose and checked it. A pair is of two calls, one after the other; those of other threads meanwhile are not timed.
        """
        if not self._busy.acquire(blocking=False):
            return second()
        try:
            if self.next_form == self.names[0]:
                began = time.perf_counter()
                outputs = first()
            else:
                outputs = second()
            self.note(time.perf_counter() - began)
            after()
        finally:
            self._busy.release()
        return outputs

    def note(self, seconds: float) -> None:
        """Record the time of a call."""
        self._times_s.append(seconds)

    @property
    def _ratios(self) -> list[float]:
        pairs = zip(self._times_s[::2], self._times_s[1::2], strict=False)
        return [first_s / max(second_s, 1e-9) for first_s, second_s in pairs]

    @property
    def ratio(self) -> float:
        """How many times as fast the second form is: the median of the pairs."""
        return statistics.median(self._ratios or [1.0])

    @property
    def medians_s(self) -> dict[str, float]:
        """The median time of a call of each form, in seconds."""
        times = zip(self.names, (self._times_s[::2], self._times_s[1::2]), strict=True)
        return {name: statistics.median(times_s or [0.0]) for name, times_s in times}

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that includes the ratio with a probability of at least 90 %; unlimited before five pairs."""
        ratios, count = sorted(self._ratios), self.calls // 2
        if count < MIN_PAIRS:
            return 0.0, math.inf
        # Of so many values, the probability that fewer than `outside` + 1 are on one side of the median.
        outside, tail = 0, 0.5**count
        while True:
            tail += math.comb(count, outside + 1) * 0.5**count
            if 2 * tail > 1 - CONFIDENCE:
                return ratios[outside], ratios[count - 1 - outside]
            outside += 1

    @property
    def is_faster(self) -> bool | None:
        """Whether the second form takes over; None while that is open."""
        low, high = self.interval
        if low >= MIN_GAIN:
            return True
        if high < MIN_GAIN:
            return False
        return False if self.is_over() else None

    def is_over(self, max_pair_s: float = math.inf) -> bool:
        """Whether no more calls are timed: after enough calls, or one pair that took longer than `max_pair_s`."""
        pairs, spent_s = self.calls // 2, sum(self._times_s)
        over = spent_s >= (MIN_TRIAL_S if self.calls >= MAX_CALLS else MAX_TRIAL_S)
        over = over or self.calls >= MAX_SHORT_CALLS
        return (over and pairs >= MIN_PAIRS) or (pairs > 0 and spent_s / pairs > max_pair_s)

    @property
    def is_slower(self) -> bool:
        """Whether the second form is shown to be slower, by as much as it would have to be faster."""
        return self.interval[1] < 1 / MIN_GAIN


def compared_speed(
    first: tuple[str, Callable[[], object]],
    second: tuple[str, Callable[[], object]],
    max_pair_s: float = math.inf,
) -> Trial:
    """Call two forms in turns until one is shown to be faster, or the trial is over.

    `max_pair_s`: a pair that takes longer is the only one.

    Each is called once before, since the first calls of compiled code and of oneDNN prepare things.
    """
    trial, calls = Trial(first[0], second[0]), dict((first, second))
    for call in calls.values():
        call()
    while trial.calls % 2 or not (trial.is_faster or trial.is_slower or trial.is_over(max_pair_s)):
        call, began = calls[trial.next_form], time.perf_counter()
        call()
        trial.note(time.perf_counter() - began)
    return trial
