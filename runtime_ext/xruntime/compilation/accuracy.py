# SPDX-License-Identifier: Apache-2.0
"""The difference between outputs of a compiled and of the eager module, and the tolerance for it.

Compiled code adds in another order, folds batch norms into weights, and keeps in fp32 what the eager
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
scaling of 2.2 instead of 2 makes both 0.1. So the comparison may allow outliers, as long as the root mean
square keeps the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import torch

from xruntime.errors import CompilationError
from xruntime.pytrees import described, leaves, place
from xruntime.threads.torch_modes import Autocast

TOLERANCES: Final[Mapping[torch.dtype, float]] = {
    torch.int8: 0.25,
    torch.bfloat16: 5e-2,
    torch.float16: 6e-3,
    torch.float32: 1e-3,
    torch.float64: 1e-9,
}
"""Tolerance by precision in use, the coarsest first."""


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

    outliers: float = 1.0
    """Factor on the tolerance for single values, if `typical` keeps the tolerance."""

    other_dtypes: str = ""
    """The outputs that have another floating-point precision in the compiled module; empty if none."""

    @property
    def allowed(self) -> bool:
        if self.relative <= self.tolerance:
            return True
        return self.relative <= self.outliers * self.tolerance and self.typical <= self.tolerance

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


def difference(expected: Any, seen: Any, tolerance: float, *, outliers: float = 1.0) -> Difference:
    """Return the largest difference between the tensors of two outputs, of those that are not allowed if any.

    `outliers`: see `Difference`.
    Raises CompilationError if their forms, shapes or dtypes differ, except floating-point precisions,
    which autocast chooses and `other_dtypes` names.
    """
    found = [Difference(0.0, 0.0, tolerance, "output")]
    other_dtypes = []
    expected_leaves = list(leaves(expected, ("output",)))
    seen_leaves = dict(leaves(seen, ("output",)))
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
            found.append(Difference(absolute, relative, tolerance, where, typical, outliers))
    largest = max(found, key=lambda one: (not one.allowed, one.relative))
    return largest._replace(other_dtypes=", ".join(other_dtypes))


def _distance(left: torch.Tensor, right: torch.Tensor) -> tuple[float, float, float]:
    """Return the largest absolute difference, the same relative to the largest value, and `typical`."""
    if left.numel() == 0 or left.layout is not torch.strided:
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
