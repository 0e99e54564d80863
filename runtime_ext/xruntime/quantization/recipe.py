# SPDX-License-Identifier: Apache-2.0
"""The recipe: how each operator of a module is quantized, and the file that holds it.

    {
     "schema_version": 1,
     "mode": "static",
     "activations": {"scheme": "affine", "observer": "histogram", "range": [0, 255]},
     "model": "ResNet",
     "operators": {
      "layer1.0.conv1": {"kind": "conv2d", "precision": "int8", "weight": [64, 64, 1, 1],
                         "inputs": [{"value": "max_pool2d", "scale": 0.0187, "zero_point": 0}]},
      "fc": {"kind": "linear", "precision": "float", "weight": [1000, 2048]}
     }
    }

`calibrate` fills in `model` and `operators`. A recipe written by hand may leave both out, or list only the
operators that are to stay float: ``"operators": {"fc": {"precision": "float"}}``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from xlaunch.files import open_input, write_whole
from xlaunch.text import did_you_mean
from xruntime.errors import RecipeError

SCHEMA_VERSION: Final = 1

MODES: Final = ("static", "dynamic")
SCHEMES: Final = ("affine", "symmetric")
OBSERVERS: Final = ("histogram", "minmax")
PRECISIONS: Final = ("int8", "float")
RANGES: Final = ((0, 255), (0, 127), (-128, 127))
"""Values of quantized activations: x86, x86 without VNNI, Arm."""

MAX_FILE_BYTES: Final = 1 << 26


class Scale(NamedTuple):
    """The scale of a quantized tensor: real = (integer - zero_point) * scale."""

    scale: float
    zero_point: int
    value: str = ""
    """The tensor: the name of the node of the exported graph that computes it."""


class Operator(NamedTuple):
    """How one operator is quantized.

    **Ex.:** ``Operator("linear", "int8", weight=(1000, 2048), inputs=(Scale(0.02, 0),))``
    """

    kind: str = ""
    """conv1d, conv2d, linear, add, max_pool2d and so on; empty in a recipe written by hand."""

    precision: str = "int8"
    """int8 or float."""

    weight: tuple[int, ...] = ()
    """The weight's shape; empty without a weight. Weights are int8 in [-128, 127], symmetric, with a
    scale for each output channel (on Arm one for all)."""

    inputs: tuple[Scale, ...] = ()
    """The scales of its quantized inputs, then of those that it read before the recipe was changed; empty
    in mode dynamic and before calibration. Operators that read the same tensor have the same scale."""


class QuantConf:
    """The recipe of one module. `calibrate` fills in the operators; `convert` follows it.

    mode
        ``"static"``: scales of activations come from calibration. ``"dynamic"``: they are computed in
        each call, for linear layers only.
    scheme
        Of activations, in mode static: ``"affine"`` or ``"symmetric"``.
    observer
        How static scales follow from the values seen: ``"histogram"`` minimizes the squared error,
        ``"minmax"`` covers all values.
    activation_range
        The smallest and largest integer of activations, one of `RANGES`. None: what this machine's
        kernels take; on x86 without VNNI they need (0, 127), because sums of two products saturate.
    keep_float
        Names of operators that are not quantized.

    Raises RecipeError for other values.
    """

    def __init__(
        self,
        mode: str = "static",
        *,
        scheme: str = "affine",
        observer: str = "histogram",
        activation_range: tuple[int, int] | None = None,
        keep_float: Iterable[str] = (),
    ) -> None:
        self.mode = _one_of("mode", mode, MODES)
        self.scheme = _one_of("scheme", scheme, SCHEMES)
        self.observer = _one_of("observer", observer, OBSERVERS)
        if activation_range is not None and tuple(activation_range) not in RANGES:
            raise RecipeError(
                f"activation_range is {activation_range!r}: allowed are"
                f" {', '.join(map(str, RANGES))}, or None for this machine's"
            )
        self.activation_range = None if activation_range is None else tuple(activation_range)
        self.model = ""
        """The class of the module that the operators are of; empty before calibration."""

        self.operators: dict[str, Operator] = {}
        """By name, in the order in which they run."""

        if isinstance(keep_float, str):
            keep_float = (keep_float,)
        self.keep_float(*keep_float)

    def __repr__(self) -> str:
        listed = self.operators.values()
        int8 = sum(operator.precision == "int8" for operator in listed)
        return f"<QuantConf {self.mode}: {int8} of {len(listed)} operators int8>"

    def copy(self) -> QuantConf:
        """Return an independent recipe with the same content."""
        return self.from_plain(self.plain(), "the recipe")

    def keep_float(self, *names: str) -> Self:
        """Let operators stay float. Raises RecipeError for a name that the module does not have."""
        return self._set_precision("float", names)

    def use_int8(self, *names: str) -> Self:
        """Quantize operators. Raises RecipeError for a name that the module does not have."""
        return self._set_precision("int8", names)

    def names(self, precision: str) -> list[str]:
        """Return the names of the operators of this precision."""
        return [name for name, own in self.operators.items() if own.precision == precision]

    def scales(self) -> dict[str, Scale]:
        """Return the scale of each tensor that operators in int8 read, by the tensor's name.

        Raises RecipeError if two operators have different scales for one tensor.
        """
        first_readers: dict[str, tuple[str, Scale]] = {}
        for name, operator in self.operators.items():
            for scale in operator.inputs if operator.precision == "int8" else ():
                reader, before = first_readers.setdefault(scale.value, (name, scale))
                if scale != before:
                    raise RecipeError(
                        f"the operators {reader!r} and {name!r} read the same tensor {scale.value!r} with"
                        f" different scales in the recipe, {before[:2]} and {scale[:2]}: change both"
                    )
        return {value: scale for value, (_, scale) in first_readers.items()}

    def check_operators(self, actual: Mapping[str, Operator], model: str) -> None:
        """Raise RecipeError if the recipe is not of a module with these operators."""
        for name in self.operators:
            if name not in actual:
                made_for = f" was made for {self.model} and" if self.model else ""
                raise RecipeError(
                    f"the recipe{made_for} lists an operator {name!r}, which {model} does not"
                    f" have{_nearest(name, list(actual))}"
                )
        if not self.model:
            return
        for name, operator in actual.items():
            mine = self.operators.get(name)
            difference = (
                "the recipe does not list it"
                if mine is None
                else f"in the recipe it is {_described(mine)}"
                if (mine.kind, mine.weight) != (operator.kind, operator.weight)
                else None
            )
            if difference is not None:
                raise RecipeError(
                    f"the recipe is of another model ({self.model}): {name!r} of {model} is"
                    f" {_described(operator)}, and {difference}. Start from a new QuantConf()"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe as JSON, whole or not at all. Raises RecipeError."""
        text = _one_line_each(self.plain())
        try:
            write_whole(os.fspath(path), text.encode())
        except OSError as error:
            raise RecipeError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantConf:
        """Read a recipe. Raises RecipeError, which names the file and the value."""
        try:
            with open_input(path) as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > MAX_FILE_BYTES:
            raise RecipeError(f"{path} is longer than 64 MiB, too long for a recipe")
        try:
            plain = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{path} is not JSON: {error}") from None
        return cls.from_plain(plain, str(path))

    def plain(self) -> dict[str, Any]:
        """Return the content of the file."""
        operators = {}
        for name, operator in self.operators.items():
            entry: dict[str, Any] = {"kind": operator.kind} if operator.kind else {}
            entry["precision"] = operator.precision
            if operator.weight:
                entry["weight"] = list(operator.weight)
            if operator.inputs:
                entry["inputs"] = [
                    {"value": value, "scale": scale, "zero_point": zero_point}
                    for scale, zero_point, value in operator.inputs
                ]
            operators[name] = entry
        chosen = self.activation_range
        return {
            "schema_version": SCHEMA_VERSION,
            "mode": self.mode,
            "activations": {
                "scheme": self.scheme,
                "observer": self.observer,
                "range": None if chosen is None else list(chosen),
            },
            "model": self.model,
            "operators": operators,
        }

    @classmethod
    def from_plain(cls, plain: object, place: str) -> QuantConf:
        """Return the recipe with the content `plain`. Raises RecipeError, which names `place`."""
        content = _table(plain, place, {})
        version = content.get("schema_version")
        if not _is_integer(version) or version != SCHEMA_VERSION:
            raise RecipeError(
                f"{place}: schema_version is {version!r:.80}, and this xruntime reads"
                f" {SCHEMA_VERSION}: calibrate again, or use the xruntime that wrote it"
            )
        keys = {"schema_version": int, "mode": str, "activations": dict, "model": str}
        content = _table(plain, place, keys | {"operators": dict})
        where = f"{place}, activations"
        activations = _table(
            content.get("activations", {}), where, {"scheme": str, "observer": str, "range": None}
        )
        chosen = activations.get("range")
        if isinstance(chosen, list):
            chosen = tuple(chosen)
        if chosen is not None and chosen not in RANGES:
            allowed = ", ".join(str(list(bounds)) for bounds in RANGES)
            raise RecipeError(f"{where}: range is {chosen!r:.80}; allowed are {allowed} and null")
        conf = cls()
        conf.mode = _one_of(f"{place}: mode", content.get("mode", "static"), MODES)
        conf.scheme = _one_of(f"{where}: scheme", activations.get("scheme", "affine"), SCHEMES)
        observer = activations.get("observer", "histogram")
        conf.observer = _one_of(f"{where}: observer", observer, OBSERVERS)
        conf.activation_range = chosen
        conf.model = content.get("model", "")
        for name, entry in content.get("operators", {}).items():
            conf.operators[name] = _operator(entry, f"{place}, operator {name!r}")
        return conf

    def _set_precision(self, precision: str, names: Iterable[str]) -> Self:
        if self.model:
            for name in names:
                if name not in self.operators:
                    raise RecipeError(
                        f"{self.model} has no operator {name!r}{_nearest(name, list(self.operators))}"
                    )
        for name in names:
            before = self.operators.get(name, Operator())
            self.operators[name] = before._replace(precision=precision)
        return self


def _one_line_each(plain: Mapping[str, Any]) -> str:
    """Return `plain` as JSON with a line for each key, and for each operator."""
    operators = [
        f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in plain["operators"].items()
    ]
    entries = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in plain.items()
        if key != "operators"
    ]
    listed = "{\n" + ",\n".join(operators) + "\n }" if operators else "{}"
    return "{\n" + ",\n".join([*entries, f' "operators": {listed}']) + "\n}\n"


def _operator(plain: object, place: str) -> Operator:
    keys = {"kind": str, "precision": str, "weight": list, "inputs": list}
    entry = _table(plain, place, keys)
    weight = entry.get("weight", [])
    if not all(_is_integer(size) for size in weight):
        raise RecipeError(f"{place}: weight is {weight!r:.80}; expected is a list of sizes")
    return Operator(
        entry.get("kind", ""),
        _one_of(f"{place}: precision", entry.get("precision", "int8"), PRECISIONS),
        tuple(weight),
        tuple([_scale(scale, f"{place}, inputs") for scale in entry.get("inputs", [])]),
    )


def _scale(plain: object, place: str) -> Scale:
    entry = _table(plain, place, {"value": str, "scale": None, "zero_point": None})
    scale: Any = entry.get("scale")
    zero_point: Any = entry.get("zero_point")
    numeric = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not numeric or not math.isfinite(scale) or scale <= 0:
        raise RecipeError(f"{place}: scale is {scale!r:.80}; expected is a number above 0")
    if not _is_integer(zero_point) or not -128 <= zero_point <= 255:
        raise RecipeError(
            f"{place}: zero_point is {zero_point!r:.80}; expected is an integer from -128 to 255"
        )
    return Scale(float(scale), zero_point, entry.get("value", ""))


def _table(plain: object, place: str, kinds: Mapping[str, type | None]) -> dict[str, Any]:
    """Return `plain` if it is an object with these keys and types of values; any, without `kinds`."""
    if not isinstance(plain, dict):
        raise RecipeError(f"{place} is {plain!r:.80}; expected is an object: {{...}}")
    for key, value in plain.items() if kinds else ():
        if key not in kinds:
            raise RecipeError(
                f"{place}: there is no key {key!r}; allowed are {', '.join(map(repr, kinds))}"
            )
        kind = kinds[key]
        if kind is not None and not isinstance(value, kind):
            names = {str: "text", dict: "an object: {...}", list: "a list", int: "an integer"}
            raise RecipeError(f"{place}: {key} is {value!r:.80}; expected is {names[kind]}")
    return plain


def _one_of(what: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise RecipeError(f"{what} is {value!r:.80}: allowed are {', '.join(map(repr, allowed))}")
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _described(operator: Operator) -> str:
    """**Ex.:** ``linear with a weight of 10 x 64``."""
    sizes = f" with a weight of {' x '.join(map(str, operator.weight))}" if operator.weight else ""
    return f"{operator.kind or 'of unknown kind'}{sizes}"


def _nearest(name: str, names: list[str]) -> str:
    """The names that may be meant, as the end of a sentence."""
    shown = ", ".join(names[:5]) + (", ..." if names[5:] else "")
    return did_you_mean(name, names, form="'{}'") or (f"; it has {shown}" if names else "")
