# SPDX-License-Identifier: Apache-2.0
"""What calls compiled code serves: their form, and the sizes of their tensors.

A call's *form* is all but sizes: its nest, the dtypes, numbers of dimensions and memory formats of tensors,
and the values of everything else. *Sizes* are the sizes of all its tensors, one after the other.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils import _pytree as pytree

from xruntime.aoti.inputs import CONTIGUOUS, memory_format
from xruntime.kept.held_values import TORCH_MARKS
from xruntime.pytrees import CONSTANT_TYPES, constant_key
from xruntime.threads.torch_modes import readable_settings

Sizes = tuple[tuple[int, ...], ...]

_ONLY_TENSORS: Final = frozenset((torch.Tensor,))

_SCOPE: Final = {
    "abs": abs,
    "max": max,
    "min": min,
    "round": round,
    "math": math,
    "torch": torch,
}
"""What torch's printer of conditions refers to."""


class Structure:
    """Torch's description of a nest, whose hash is computed once: each call looks its form up."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self.spec = spec
        self._hash = hash(spec)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self.spec == other.spec)

    def __str__(self) -> str:
        return str(self.spec)


@functools.cache
def _of_arguments(count: int) -> Structure:
    """The nest of a call with positional arguments alone, none of which is a container."""
    return Structure(pytree.tree_structure(((None,) * count, {})))


class Form(NamedTuple):
    """All of a call but the sizes of its tensors. Equal forms have equal hashes."""

    nest: Structure
    """Of (args, kwargs)."""

    leaves: tuple[Any, ...]
    """For each leaf: (dtype, dimensions, memory format) of a tensor, with what else distinguishes it from a usual one;
    such as the place of a tensor that is the same; or the `constant_key` of a value."""

    def described(self) -> str:
        """Describe it in one line that is equal in each process."""
        return f"{self.nest} {self.leaves}"


class FlatCall(NamedTuple):
    """A call by its form and its tensors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    form: Form
    tensors: list[torch.Tensor]
    leaves: list[Any]
    sizes: Sizes
    context: tuple[Any, ...]
    """What the form does not tell, and a forward may read: whether a tensor has gaps or another order, an offset, a
    conjugate or negative bit, or was made in inference mode; and torch's modes and settings."""


def flat_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatCall | None:
    """Return the parts of a call, with tensors without gaps; None for a call that kept code cannot
    serve.

    That is a call with tensors of another class, nested ones, with attributes of their own or on another device, or
    with values other than numbers, texts and torch's own types.
    """
    if not kwargs and _ONLY_TENSORS.issuperset(map(type, args)):
        leaves, nest = list(args), _of_arguments(len(args))  # what flattening gives, but faster
    else:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        nest = Structure(spec)
    tensors: list[torch.Tensor] = []
    facts: list[Any] = []
    sizes: list[tuple[int, ...]] = []
    places: dict[int, int] = {}
    has_gaps = has_offset = has_bits = is_inference = False
    for leaf in leaves:
        leaf_type = type(leaf)
        if leaf_type is torch.Tensor or leaf_type is torch.nn.Parameter:
            if not leaf.is_cpu or leaf.layout is not torch.strided or leaf.is_nested:
                return None
            tensor = leaf
            if tensor.is_conj() or tensor.is_neg():
                tensor, has_bits = tensor.resolve_conj().resolve_neg(), True
            place = places.setdefault(id(leaf), len(tensors))
            is_met = place != len(tensors)
            layout = CONTIGUOUS if tensor.is_contiguous() else memory_format(tensor)
            tensors.append(tensor if layout is not None else tensor.contiguous())
            has_gaps = has_gaps or layout is None
            has_offset = has_offset or leaf.storage_offset() != 0
            is_inference = is_inference or leaf.is_inference()
            fact: tuple[Any, ...] = (leaf.dtype, leaf.dim(), layout or CONTIGUOUS)
            # A forward may read what the code's tensors do not have.
            if leaf.requires_grad or leaf_type is not torch.Tensor:
                fact = (*fact, leaf_type.__name__, leaf.requires_grad)
            if is_met:
                fact = (*fact, place)
            if leaf.__dict__ and any(not name.startswith(TORCH_MARKS) for name in leaf.__dict__):
                return None
            facts.append(fact)
            sizes.append(tuple(leaf.shape))
        elif (key := constant_key(leaf)) is not None:
            facts.append(key)
        else:
            return None
    form = Form(nest, tuple(facts))
    context = (has_gaps, has_offset, has_bits, is_inference, *readable_settings())
    return FlatCall(args, kwargs, form, tensors, leaves, tuple(sizes), context)


class Pattern(NamedTuple):
    """For which sizes code is to be compiled: a number where it is fixed, None where it may vary."""

    dims: tuple[tuple[int | None, ...], ...]

    @staticmethod
    def of(seen: Sequence[Sizes]) -> Pattern:
        """Return the pattern of calls whose sizes were seen: what differs between them may vary.

        If sizes differ at all, the first size of each tensor may vary, too: the last batch is
        usually smaller.
        """
        first, alike = seen[0], len(set(seen)) == 1

        def varies(tensor: int, dim: int, size: int) -> bool:
            differs = any(other[tensor][dim] != size for other in seen)
            return differs or (dim == 0 and size > 1 and not alike)

        dims = [
            tuple([None if varies(i, d, size) else size for d, size in enumerate(sizes)])
            for i, sizes in enumerate(first)
        ]
        return Pattern(tuple(dims))

    def suits(self, sizes: Sizes) -> bool:
        """Whether a call of these sizes may be the sample: torch treats sizes below 2 separately."""
        pairs = zip(self.dims, sizes, strict=True)
        return all(
            size >= 2 if wanted is None else size == wanted
            for dims, own in pairs
            for wanted, size in zip(dims, own, strict=True)
        )

    def described(self) -> str:
        """**Ex.:** ``32x?, 8``: those of all tensors, without repetition."""
        texts = [
            "x".join(["?" if size is None else str(size) for size in dims]) for dims in self.dims
        ]
        return ", ".join(dict.fromkeys(texts))


class ServedSizes:
    """Which sizes compiled code serves.

    dims
        For each tensor the sizes: numbers, or names of sizes that vary. The same name is the same size.
    ranges
        The smallest and the largest value of each name; None: no limit.
    conditions
        Further ones, as Python expressions of the names, under which the compiler chose the code.

    Raises ValueError for a condition that cannot be parsed or names something else.
    """

    def __init__(
        self,
        dims: Sequence[Sequence[int | str]],
        ranges: Mapping[str, tuple[int, int | None]],
        conditions: Sequence[str],
    ) -> None:
        self.dims = tuple([tuple(sizes) for sizes in dims])
        self.ranges = dict(ranges)
        self.conditions = tuple(conditions)
        try:
            self._conditions = [compile(text, "<condition>", "eval") for text in conditions]
        except SyntaxError as error:
            raise ValueError(f"{error.text!r} is no expression") from error
        names_in_scope = {*_SCOPE, *self.ranges}
        for text in conditions:
            names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            if not names <= names_in_scope:
                raise ValueError(
                    f"{text!r} names {min(names - names_in_scope)!r}, which is unknown"
                )

    def fits(self, sizes: Sizes) -> bool:
        """Whether the code computes calls of these sizes."""
        if len(sizes) != len(self.dims):
            return False
        values: dict[str, int] = {}
        for dims, own in zip(self.dims, sizes, strict=True):
            if len(dims) != len(own):
                return False
            for wanted, size in zip(dims, own, strict=True):
                if isinstance(wanted, int):
                    if size != wanted:
                        return False
                elif values.setdefault(wanted, size) != size:
                    return False
        for name, size in values.items():
            low, high = self.ranges[name]
            if size < low or (high is not None and size > high):
                return False
        # They were written beside the code that they are about, which is trusted as much.
        scope = {"__builtins__": {}, **_SCOPE, **values}
        return all(eval(condition, scope) for condition in self._conditions)  # noqa: S307

    @property
    def fixed(self) -> Sizes | None:
        """The sizes, if none may vary."""
        if self.ranges:
            return None
        return tuple([tuple([int(size) for size in own]) for own in self.dims])

    @property
    def pattern(self) -> Pattern:
        """The sizes without names."""
        dims = [
            tuple([size if isinstance(size, int) else None for size in own]) for own in self.dims
        ]
        return Pattern(tuple(dims))


class Nest:
    """Rebuilds a nest with other tensors: the arguments of a call, or outputs like an eager call's."""

    def __init__(self, leaves: Sequence[Any], spec: Any) -> None:
        self._spec = spec
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = len(self._places)
        self._is_tensor = spec.is_leaf() and self.tensors == 1
        self.has_numbers = any(isinstance(leaf, (int, float, complex)) for leaf in self._leaves)
        self.has_texts = any(isinstance(leaf, (str, bytes, torch.Size)) for leaf in self._leaves)
        kinds = [type(leaf) for leaf in self._leaves if type(leaf) not in CONSTANT_TYPES]
        self.refusal = f"it returns a {kinds[0].__qualname__}" if kinds else None
        """Why compiled code cannot return it; None if it can."""

    @staticmethod
    def like(example: Any) -> Nest:
        """Return the nest of an eager call's outputs."""
        return Nest(*pytree.tree_flatten(example))

    def rebuilt(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a nest of the same form with these tensors."""
        if self._is_tensor:
            return tensors[0]
        leaves = list(self._leaves)
        for at, tensor in zip(self._places, tensors, strict=True):
            leaves[at] = tensor
        return pytree.tree_unflatten(leaves, self._spec)
