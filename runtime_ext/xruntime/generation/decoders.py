# SPDX-License-Identifier: Apache-2.0
"""Which models have a decode step: a description of their parts, read from modules and configuration together.

A module belongs to a description by its class, not by the names of its parts: other families have parts of the
same names that compute something else.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import nn

from xruntime.generation.linear_rows import RowLinear

FAMILIES: Final = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
"""transformers' name of each family, and how the names of its classes begin."""

OLDEST: Final = (5, 17)
NEWEST: Final = (5, 23)
"""The versions of transformers whose modules these descriptions were compared with."""

_DTYPES: Final = (torch.float32, torch.bfloat16)


NORMS: Final = ("input_norm", "attention_norm", "query_norm", "key_norm")
LINEARS: Final = ("query", "key", "value", "output", "gate", "up", "down")
PARTS: Final = (*NORMS, *LINEARS, *[f"{name}_bias" for name in LINEARS])
"""Names of a layer's parameters; it may have no norms of queries and keys, and no biases."""


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

    layers: list[dict[str, nn.Parameter]]
    """Of each layer the parameters that it has, by names of `PARTS`."""

    windows: list[int]
    """Of each layer: how many positions attend to each other; 0: all."""

    embedding: nn.Parameter
    norm: nn.Parameter
    head: nn.Parameter
    rotary: nn.Module
    sizes: Sizes
    epsilon: float
    scale: float
    modules: list[nn.Module]
    """Those whose calls the step replaces."""

    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters, in an order that does not change."""
        found = [self.embedding, self.norm, self.head]
        return found + [one for layer in self.layers for one in layer.values()]

    def bytes_a_token(self) -> int:
        """Return the bytes of all weights but the embedding's, of which a token needs one row."""
        return sum(one.nbytes for one in self.parameters()[1:])


def transformers_problem() -> str | None:
    """Why the installed transformers has no descriptions; None if it has."""
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if OLDEST <= version <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, it)) for it in (OLDEST, NEWEST))
    return f"transformers {transformers.__version__} is not one of {oldest} to {newest}"


def described(model: nn.Module, kind: type[nn.Module]) -> Description:
    """Return the description that a model of class `kind` fits. Raises UndescribedError."""
    try:
        return _Reader(model, kind).description()
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise UndescribedError(f"its parts are not those of its class ({error})") from error


class _Reader:
    def __init__(self, model: Any, kind: type[nn.Module]) -> None:
        self.model = model
        self.modules: list[nn.Module] = []
        for name, prefix in FAMILIES.items():
            self.family, self.place, self.prefix = name, _place_of(name), prefix
            if (kind.__module__, kind.__name__) == (self.place, f"{prefix}ForCausalLM"):
                break
        else:
            raise UndescribedError("it is of no family with a decode step")
        problem = transformers_problem()
        _need(problem is None, str(problem))

    def part(self, module: Any, suffix: str) -> Any:
        """A part whose class is this family's."""
        kind, name = type(module), self.prefix + suffix
        _need(
            (kind.__module__, kind.__name__) == (self.place, name),
            f"it has a {kind.__name__} in the place of a {name}",
        )
        self.modules.append(module)
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
        return parameter  # type: ignore[no-any-return]

    def linear(self, name: str, module: Any, inputs: int, outputs: int) -> dict[str, nn.Parameter]:
        kind = type(module)
        _need(
            kind is nn.Linear or issubclass(kind, RowLinear),
            f"it has a {kind.__name__} in the place of a Linear",
        )
        self.modules.append(module)
        found = {name: self.weight(module.weight, outputs, inputs)}
        if module.bias is not None:
            found[f"{name}_bias"] = self.weight(module.bias, outputs)
        return found

    def norm(self, module: Any, size: int) -> nn.Parameter:
        module = self.part(module, "RMSNorm")
        _need(module.variance_epsilon == self.epsilon, "its norms have several epsilons")
        return self.weight(module.weight, size)

    def description(self) -> Description:
        model, config = self.model, self.model.config
        inner = self.part(model.model, "Model")
        self.epsilon = float(inner.norm.variance_epsilon)
        self.scale = float(inner.layers[0].self_attn.scaling)
        count, expected = len(inner.layers), config.num_hidden_layers
        _need(count == expected, f"it has {count} of {expected} layers")
        embedding = inner.embed_tokens
        plain = getattr(type(embedding), "_layer", type(embedding))  # of one with weights in bf16
        _need(
            plain is nn.Embedding and embedding.max_norm is None,
            f"it has a {type(embedding).__name__} in the place of an Embedding",
        )
        self.modules += [model, inner.layers, embedding]
        sizes = self.sizes(inner)
        layers = [self.layer(layer, at, sizes) for at, layer in enumerate(inner.layers)]
        head = self.linear("head", model.lm_head, sizes.hidden, sizes.vocabulary)
        _need(len(head) == 1, "its head has a bias")
        found = Description(
            layers=layers,
            windows=[self.window(at) for at in range(count)],
            embedding=self.weight(embedding.weight, sizes.vocabulary, sizes.hidden),
            norm=self.norm(inner.norm, sizes.hidden),
            head=head["head"],
            rotary=self.part(inner.rotary_emb, "RotaryEmbedding"),
            sizes=sizes,
            epsilon=self.epsilon,
            scale=self.scale,
            modules=self.modules,
        )
        norms, others = {found.norm.dtype}, {found.embedding.dtype, found.head.dtype}
        for name, parameter in [it for layer in layers for it in layer.items()]:
            (norms if name in NORMS else others).add(parameter.dtype)
        _need(len(norms) == len(others) == 1, "its weights have several dtypes")
        return found

    def sizes(self, inner: Any) -> Sizes:
        attention, mlp = inner.layers[0].self_attn, inner.layers[0].mlp
        vocabulary, hidden = inner.embed_tokens.weight.shape
        width = int(attention.head_dim)
        heads, kv_heads = (
            one.weight.shape[0] // width for one in (attention.q_proj, attention.k_proj)
        )
        _need(
            width % 2 == 0 and kv_heads > 0 and heads % kv_heads == 0,
            f"it has {heads} heads of {width} features and {kv_heads} of keys",
        )
        return Sizes(hidden, heads, kv_heads, width, mlp.gate_proj.weight.shape[0], vocabulary)

    def layer(self, layer: Any, at: int, sizes: Sizes) -> dict[str, nn.Parameter]:
        layer = self.part(layer, "DecoderLayer")
        attention, mlp = self.part(layer.self_attn, "Attention"), self.part(layer.mlp, "MLP")
        activation, width = type(mlp.act_fn).__name__, sizes.head_dim
        _need(
            attention.layer_idx == at and attention.head_dim == width,
            f"layer {at} is number {attention.layer_idx}",
        )
        _need(attention.scaling == self.scale, "its layers have several scales")
        _need(activation in ("SiLU", "SiLUActivation"), f"its activation is {activation}, not SiLU")
        self.modules.append(mlp.act_fn)
        parts = {
            "input_norm": self.norm(layer.input_layernorm, sizes.hidden),
            "attention_norm": self.norm(layer.post_attention_layernorm, sizes.hidden),
        }
        if self.family == "qwen3":
            parts["query_norm"] = self.norm(attention.q_norm, width)
            parts["key_norm"] = self.norm(attention.k_norm, width)
        hidden, queries, keys = sizes.hidden, sizes.heads * width, sizes.kv_heads * width
        for name, module, inputs, outputs in (
            ("query", attention.q_proj, hidden, queries),
            ("key", attention.k_proj, hidden, keys),
            ("value", attention.v_proj, hidden, keys),
            ("output", attention.o_proj, queries, hidden),
            ("gate", mlp.gate_proj, hidden, sizes.intermediate),
            ("up", mlp.up_proj, hidden, sizes.intermediate),
            ("down", mlp.down_proj, sizes.intermediate, hidden),
        ):
            parts |= self.linear(name, module, inputs, outputs)
        return parts

    def window(self, at: int) -> int:
        """How many positions attend to each other in a layer, as the model's masks say."""
        config = self.model.config
        if self.family == "llama":
            return 0
        if self.family != "mistral":
            kind = config.layer_types[at]
            if kind == "full_attention":
                return 0
            _need(kind == "sliding_attention", f"layer {at} has {kind}")
        return config.sliding_window or 0


def _place_of(family: str) -> str:
    return f"transformers.models.{family}.modeling_{family}"
