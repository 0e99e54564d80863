# SPDX-License-Identifier: Apache-2.0
"""Which models have a decode step: the description of a model's parts by the table of families.

A module belongs to a description by its class, not by the names of its parts: other families have parts of the
same names that compute something else.
"""

from __future__ import annotations

import itertools
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from xruntime.generation.families import FAMILIES, NORMS, Family
from xruntime.generation.linear_layers import input_count, linear_kinds, matrix
from xruntime.generation.linear_rows import RowLinear
from xruntime.generation.packed_linear import PackedLinear
from xruntime.generation.packed_weights import PackedWeight

Weight = torch.Tensor | PackedWeight

OLDEST: Final = (5, 17)
NEWEST: Final = (5, 23)
"""The versions of transformers whose modules these descriptions were compared with."""

_DTYPES: Final = (torch.float32, torch.bfloat16)

_ACTIVATIONS: Final = {
    "SiLU": 0,
    "SiLUActivation": 0,
    "GELUActivation": 1,
    "GELUTanh": 2,
    "NewGELUActivation": 2,
    "FastGELUActivation": 2,
    "ReLU": 3,
}
"""Numbers in xkernels.h of the functions that these classes compute."""


class UndescribedError(Exception):
    """A model fits no description. The text is the reason."""


def _need(fits: object, problem: str) -> None:
    if not fits:
        raise UndescribedError(problem)


class Sizes(NamedTuple):
    """Numbers of features, heads and tokens."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


class Description(NamedTuple):
    """All that the decode step has to know of a model."""

    family: Family
    layers: list[dict[str, Weight]]
    """Of each layer the weights and biases that it has, by names of `NORMS` and `LINEARS`."""

    windows: list[int]
    """Of each layer: how many positions attend to each other; 0: all."""

    rotaries: list[int]
    """Of each layer: which of `rotary_types` its rotary embedding is for."""

    rotary_types: list[tuple[str, ...]]
    """Further arguments of `rotary`, for each embedding that it computes."""

    rotary: nn.Module | None
    embedding: nn.Parameter
    places: nn.Parameter | None
    place_offset: int
    """The row of `places` for position 0."""

    ends: dict[str, Weight]
    """norm, norm_bias, head and head_bias, as far as the model has them."""

    sizes: Sizes
    numbers: dict[str, float]
    """Other fields of xk_decode that the model decides."""

    parameters: list[Weight]
    modules: list[nn.Module]
    """Those whose calls the step replaces."""

    described: list[nn.Module]
    """Those of them whose numbers were read: all but linears, and but `rotary`, which is called."""

    def bytes_a_token(self) -> int:
        """Return the bytes of all weights that a token reads."""
        head = self.ends["head"]
        is_tied = isinstance(head, torch.Tensor) and head.data_ptr() == self.embedding.data_ptr()
        by_row = [self.places] if is_tied else [self.places, self.embedding]
        return sum(
            weight.nbytes
            for weight in dict.fromkeys(self.parameters)
            if not any(weight is other for other in by_row)
        )


def _is_replaced(function: Any) -> bool:
    """Whether a function, or one that it wraps, is neither of transformers nor of torch."""
    import transformers

    own = tuple(str(Path(str(package.__file__)).parent) for package in (transformers, torch))
    while function is not None:
        if not function.__code__.co_filename.startswith(own):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def transformers_problem() -> str | None:
    """Why the installed transformers has no descriptions; None if it has."""
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if OLDEST <= version <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    return f"transformers {transformers.__version__} is not one of {oldest} to {newest}"


def described(model: nn.Module, kind: type[nn.Module]) -> Description:
    """Return the description that a model of class `kind` fits. Raises UndescribedError."""
    try:
        return _Reader(model, kind).description()
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise UndescribedError(f"its parts are not those of its class ({error})") from error


class _Reader:
    def __init__(self, model: Any, kind: type[nn.Module]) -> None:
        self.model: Any = model
        self.config: Any = getattr(model, "config", None)
        self.known: set[nn.Module] = {model}
        self.read: list[nn.Module] = []
        self.parameters: list[Weight] = []
        self.epsilons: set[float] = set()
        for name, family in FAMILIES.items():
            self.family, self.place = family, f"transformers.models.{name}.modeling_{name}"
            if (kind.__module__, kind.__name__) == (self.place, family.prefix + family.model):
                break
        else:
            raise UndescribedError("it is of no family with a decode step")
        problem = transformers_problem()
        _need(problem is None, str(problem))

    def part(self, module: Any, suffix: str, default_class: type[nn.Module] = nn.Module) -> Any:
        """A part whose class is this family's, or `default_class` without a suffix."""
        kind = type(module)
        kind = getattr(kind, "_layer", kind)  # of one with weights in bf16
        name = self.family.prefix + suffix if suffix else default_class.__name__
        fits = (
            (kind.__module__, kind.__name__) == (self.place, name)
            if suffix
            else kind is default_class
        )
        _need(fits, f"it has a {kind.__name__} in the place of a {name}")
        _need(not _is_replaced(kind.forward), f"the program has replaced {kind.__name__}.forward")
        self.known.add(module)
        self.read.append(module)
        return module

    def weight(self, parameter: Any, *shape: int) -> nn.Parameter:
        kind = type(parameter)
        _need(kind is nn.Parameter, f"it holds a {kind.__name__}, not plain weights")
        _need(
            tuple(parameter.shape) == shape and parameter.is_contiguous(),
            f"a weight has shape {tuple(parameter.shape)}, and {shape} is expected",
        )
        _need(
            parameter.is_cpu and parameter.dtype in _DTYPES,
            f"a weight is {parameter.dtype} on {parameter.device}",
        )
        self.parameters.append(parameter)
        return parameter  # type: ignore[no-any-return]

    def linear(self, names: str, module: Any, inputs: int, *rows: int) -> dict[str, Weight]:
        """The weights and biases of parts that are rows of one linear."""
        kind = type(module)
        _need(
            kind in linear_kinds() or issubclass(kind, RowLinear | PackedLinear),
            f"it has a {kind.__name__} in the place of a Linear",
        )
        self.known.add(module)
        weights: dict[str, Weight] = {}
        packed = module.packed if issubclass(kind, PackedLinear) else None
        if packed is not None:
            _need(packed.shape == (sum(rows), inputs), f"packed weights have shape {packed.shape}")
            self.parameters.append(packed)
            weights = dict(zip(names.split(), packed.split([*rows]), strict=True))
        matrices = {}
        if packed is None:
            shape = [sum(rows), inputs]
            self.weight(module.weight, *(shape if isinstance(module, nn.Linear) else shape[::-1]))
            matrices[""] = matrix(module)
        if module.bias is not None:
            matrices["_bias"] = self.weight(module.bias, sum(rows))
        for suffix, whole in matrices.items():
            parts = torch.split(whole.detach(), [*rows])
            weights |= zip([name + suffix for name in names.split()], parts, strict=True)
        return weights

    def norm(self, name: str, module: Any, size: int) -> dict[str, Weight]:
        module = self.part(module, self.family.norms, nn.LayerNorm)
        epsilon = getattr(module, "variance_epsilon", None)
        self.epsilons.add(module.eps if epsilon is None else epsilon)
        weights: dict[str, Weight] = {name: self.weight(module.weight, size)}
        if getattr(module, "bias", None) is not None:
            weights[f"{name}_bias"] = self.weight(module.bias, size)
        return weights

    def embeddings(self, body: Any, place: tuple[str, str]) -> Any:
        module = self.part(attrgetter(place[0])(body), place[1], nn.Embedding)
        _need(module.max_norm is None, "its embedding changes its weights")
        return module

    def description(self) -> Description:
        model, config, family = self.model, self.config, self.family
        *around, _ = family.body[0].split(".")
        for name in around:
            self.part(getattr(model, name), "Model")
        body = self.part(attrgetter(family.body[0])(model), family.body[1])
        layers = list(attrgetter(family.layers[0])(body))
        count, expected = len(layers), config.num_hidden_layers
        _need(count == expected, f"it has {count} of {expected} layers")
        embedding = self.embeddings(body, family.embedding)
        sizes = self.sizes(layers[0], *embedding.weight.shape)
        embedding_weight = self.weight(embedding.weight, sizes.vocabulary, sizes.hidden)
        places = self.embeddings(body, family.places) if family.places[0] else None
        parts = [self.layer(layer, at, sizes) for at, layer in enumerate(layers)]
        ends: dict[str, Weight] = self.norm("norm", attrgetter(family.norm)(body), sizes.hidden)
        ends |= self.linear("head", model.lm_head, sizes.hidden, sizes.vocabulary)
        types = sorted(set(config.layer_types)) if family.rotary_by_type else []
        rotary = attrgetter(family.rotary)(body) if family.rotary else None
        description = Description(
            family=family,
            layers=parts,
            windows=[self.window(at) for at in range(count)],
            rotaries=[types.index(config.layer_types[at]) if types else 0 for at in range(count)],
            rotary_types=[(kind,) for kind in types] or [()],
            rotary=None if rotary is None else self.part(rotary, "RotaryEmbedding"),
            embedding=embedding_weight,
            places=None if places is None else self.weight(places.weight, *places.weight.shape),
            place_offset=int(getattr(places, "offset", 0)),
            ends=ends,
            sizes=sizes,
            numbers=self.numbers(layers, embedding),
            parameters=self.parameters,
            modules=list(model.modules()),
            described=[module for module in self.read if module is not rotary],
        )
        self.check(description)
        return description

    def check(self, description: Description) -> None:
        norms: set[torch.dtype] = set()
        others = {description.embedding.dtype}
        weights = [parts.items() for parts in (*description.layers, description.ends)]
        for name, tensor in itertools.chain.from_iterable(weights):
            if isinstance(tensor, torch.Tensor):
                (norms if name.removesuffix("_bias").endswith("norm") else others).add(tensor.dtype)
        _need(len(norms) == len(others) == 1, "its weights have several dtypes")
        for module in description.modules:
            silent = isinstance(module, (nn.Dropout, nn.Identity, nn.ModuleList))
            name = type(module).__name__
            _need(silent or module in self.known, f"it has a {name}, which is not described")

    def sizes(self, layer: Any, vocabulary: int, hidden: int) -> Sizes:
        config = self.config
        attention = attrgetter(self.family.attention)(layer)
        width = int(attention.head_dim if hasattr(attention, "head_dim") else attention.head_size)
        heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads if self.family.grouped else heads
        _need(
            kv_heads > 0 and heads % kv_heads == 0,
            f"it has {heads} heads of {width} features and {kv_heads} of keys",
        )
        down = attrgetter(self.family.parts["down"])(layer)
        return Sizes(hidden, heads, kv_heads, width, input_count(down), vocabulary)

    def layer(self, layer: Any, at: int, sizes: Sizes) -> dict[str, Weight]:
        family = self.family
        layer = self.part(layer, family.layers[1])
        attention = self.part(attrgetter(family.attention)(layer), "Attention")
        if family.mlp:
            self.part(attrgetter(family.mlp)(layer), "MLP")
        _need(attention.layer_idx == at, f"layer {at} is number {attention.layer_idx}")
        for name, value in family.needs.items():
            _need(attrgetter(name)(layer) == value, f"{name} is not {value} in layer {at}")
        hidden, width = sizes.hidden, sizes.head_dim
        queries, keys = sizes.heads * width, sizes.kv_heads * width
        rows = {"query": queries, "key": keys, "value": keys, "output": hidden, "down": hidden}
        inputs = {"output": queries, "down": sizes.intermediate}
        if "query" in family.parts and "key" not in family.parts:
            rows["query"] += 2 * keys
        weights: dict[str, Weight] = {}
        for names, path in family.parts.items():
            if names in ("query_norm", "key_norm"):
                if path in dict(layer.named_modules()):
                    weights |= self.norm(names, attrgetter(path)(layer), width)
            elif names in NORMS:
                weights |= self.norm(names, attrgetter(path)(layer), hidden)
            else:
                counts = [rows.get(name, sizes.intermediate) for name in names.split()]
                module = attrgetter(path)(layer)
                weights |= self.linear(names, module, inputs.get(names, hidden), *counts)
        return weights

    def numbers(self, layers: list[Any], embedding: Any) -> dict[str, float]:
        family, config = self.family, self.config
        attentions = [attrgetter(family.attention)(layer) for layer in layers]
        activations = [attrgetter(family.activation)(layer) for layer in layers]
        self.known.update(activations)
        names = {type(activation).__name__ for activation in activations}
        unknown = sorted(names - _ACTIVATIONS.keys())
        _need(not unknown, f"its activation is {', '.join(unknown)}")
        parallel: set[bool | str] = {family.parallel}
        if isinstance(family.parallel, str):
            parallel = {bool(getattr(layer, family.parallel)) for layer in layers}
        values: dict[str, set[Any]] = {
            "epsilon": self.epsilons,
            "scale": {float(attention.scaling) for attention in attentions},
            "activation": {_ACTIVATIONS[name] for name in names},
            "parallel": parallel,
        }
        for name, distinct in values.items():
            _need(len(distinct) == 1, f"its layers differ in {name}")
        scale = getattr(embedding, "embed_scale", None)
        return {
            **{name: distinct.pop() for name, distinct in values.items()},
            "norm_kind": 0 if family.norms else 1,
            "norm_offset": family.norm_offset,
            "score_cap": (family.score_cap and config.attn_logit_softcapping) or 0,
            "logit_cap": (family.logit_cap and config.final_logit_softcapping) or 0,
            "embedding_scale": 1 if scale is None else float(scale.to(embedding.weight.dtype)),
        }

    def window(self, at: int) -> int:
        """How many positions attend to each other in a layer, as the model's masks say."""
        if not self.family.windows:
            return 0
        if self.family.windows == "types":
            kind = self.config.layer_types[at]
            if kind == "full_attention":
                return 0
            _need(kind == "sliding_attention", f"layer {at} has {kind}")
        return self.config.sliding_window or 0
