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


class UndescribedError(Exception):
    """A model fits no description. The text is the reason."""


class LayerParts(NamedTuple):
    """The parameters of one layer; None where it has none."""

    input_norm: nn.Parameter
    attention_norm: nn.Parameter
    query_norm: nn.Parameter | None
    key_norm: nn.Parameter | None
    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    output: nn.Parameter
    gate: nn.Parameter
    up: nn.Parameter
    down: nn.Parameter
    query_bias: nn.Parameter | None
    key_bias: nn.Parameter | None
    value_bias: nn.Parameter | None
    output_bias: nn.Parameter | None
    gate_bias: nn.Parameter | None
    up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None


class Description(NamedTuple):
    """All that the decode step has to know of a model."""

    layers: list[LayerParts]
    windows: list[int]
    """Of each layer: how many positions attend to each other; 0: all."""

    embedding: nn.Parameter
    norm: nn.Parameter
    head: nn.Parameter
    rotary: nn.Module
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    epsilon: float
    scale: float
    modules: list[nn.Module]
    """Those whose calls the step replaces."""

    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters, in an order that does not change."""
        found = [self.embedding, self.norm, self.head]
        found += [one for layer in self.layers for one in layer if one is not None]
        return found

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
        self.family = next(
            (
                (name, prefix)
                for name, prefix in FAMILIES.items()
                if kind.__module__ == f"transformers.models.{name}.modeling_{name}"
                and kind.__name__ == f"{prefix}ForCausalLM"
            ),
            ("", ""),
        )
        if not self.family[0]:
            raise UndescribedError("it is of no family with a decode step")
        problem = transformers_problem()
        if problem is not None:
            raise UndescribedError(problem)
        self.modules: list[nn.Module] = []

    def part(self, module: Any, suffix: str) -> Any:
        """A part whose class is this family's."""
        name, prefix = self.family
        kind = type(module)
        if (kind.__module__, kind.__name__) != (
            f"transformers.models.{name}.modeling_{name}",
            prefix + suffix,
        ):
            raise UndescribedError(f"it has a {kind.__name__} in the place of a {prefix}{suffix}")
        self.modules.append(module)
        return module

    def weight(self, parameter: Any, *shape: int) -> nn.Parameter:
        if type(parameter) is not nn.Parameter:
            raise UndescribedError(f"it holds a {type(parameter).__name__}, not plain weights")
        if tuple(parameter.shape) != shape or not parameter.is_contiguous():
            raise UndescribedError(
                f"a weight has shape {tuple(parameter.shape)}, and {shape} is expected"
            )
        if not parameter.is_cpu or parameter.dtype not in _DTYPES:
            raise UndescribedError(f"a weight is {parameter.dtype} on {parameter.device}")
        return parameter

    def linear(self, module: Any, inputs: int, outputs: int) -> tuple[nn.Parameter, Any]:
        kind = type(module)
        if kind is not nn.Linear and not issubclass(kind, RowLinear):
            raise UndescribedError(f"it has a {kind.__name__} in the place of a Linear")
        self.modules.append(module)
        bias = module.bias
        return (
            self.weight(module.weight, outputs, inputs),
            None if bias is None else self.weight(bias, outputs),
        )

    def norm(self, module: Any, size: int) -> nn.Parameter:
        module = self.part(module, "RMSNorm")
        if module.variance_epsilon != self.epsilon:
            raise UndescribedError("its norms have several epsilons")
        return self.weight(module.weight, size)

    def description(self) -> Description:
        model, config = self.model, self.model.config
        inner = self.part(model.model, "Model")
        self.modules.append(model)
        self.epsilon = float(inner.norm.variance_epsilon)
        layers = list(inner.layers)
        self.modules.append(inner.layers)
        if not layers or len(layers) != config.num_hidden_layers:
            raise UndescribedError(f"it has {len(layers)} of {config.num_hidden_layers} layers")
        embedding = inner.embed_tokens
        plain = getattr(type(embedding), "_layer", type(embedding))  # of one with weights in bf16
        if plain is not nn.Embedding or embedding.max_norm is not None:
            raise UndescribedError(
                f"it has a {type(embedding).__name__} in the place of an Embedding"
            )
        self.modules.append(embedding)
        vocabulary, hidden = embedding.weight.shape
        first = layers[0].self_attn
        head_dim = int(first.head_dim)
        heads = first.q_proj.weight.shape[0] // head_dim
        kv_heads = first.k_proj.weight.shape[0] // head_dim
        intermediate = layers[0].mlp.gate_proj.weight.shape[0]
        if head_dim % 2 or kv_heads < 1 or heads % kv_heads:
            raise UndescribedError(
                f"it has {heads} heads of {head_dim} features and {kv_heads} of keys"
            )
        sizes = (hidden, heads * head_dim, kv_heads * head_dim, intermediate, head_dim)
        found = [self.layer(layer, at, sizes) for at, layer in enumerate(layers)]
        head, bias = self.linear(model.lm_head, hidden, vocabulary)
        if bias is not None:
            raise UndescribedError("its head has a bias")
        made = Description(
            layers=found,
            windows=[self.window(layer.self_attn, at) for at, layer in enumerate(layers)],
            embedding=self.weight(embedding.weight, vocabulary, hidden),
            norm=self.norm(inner.norm, hidden),
            head=head,
            rotary=self.part(inner.rotary_emb, "RotaryEmbedding"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=intermediate,
            vocabulary=vocabulary,
            epsilon=self.epsilon,
            scale=float(first.scaling),
            modules=self.modules,
        )
        norms = {made.norm.dtype}
        for layer in found:
            norms |= {one.dtype for one in layer[:4] if one is not None}
        rest = {made.embedding.dtype, made.head.dtype}
        for layer in found:
            rest |= {one.dtype for one in layer[4:] if one is not None}
        if len(norms) != 1 or len(rest) != 1:
            raise UndescribedError("its weights have several dtypes")
        return made

    def layer(self, layer: Any, at: int, sizes: tuple[int, int, int, int, int]) -> LayerParts:
        hidden, queries, keys, intermediate, head_dim = sizes
        layer = self.part(layer, "DecoderLayer")
        attention, mlp = self.part(layer.self_attn, "Attention"), self.part(layer.mlp, "MLP")
        if attention.layer_idx != at or attention.head_dim != head_dim:
            raise UndescribedError(f"layer {at} is number {attention.layer_idx}")
        if attention.scaling != self.model.model.layers[0].self_attn.scaling:
            raise UndescribedError("its layers have several scales")
        if type(mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
            raise UndescribedError(f"its activation is {type(mlp.act_fn).__name__}, not SiLU")
        self.modules.append(mlp.act_fn)
        with_norms = self.family[0] == "qwen3"
        linears = [
            self.linear(attention.q_proj, hidden, queries),
            self.linear(attention.k_proj, hidden, keys),
            self.linear(attention.v_proj, hidden, keys),
            self.linear(attention.o_proj, queries, hidden),
            self.linear(mlp.gate_proj, hidden, intermediate),
            self.linear(mlp.up_proj, hidden, intermediate),
            self.linear(mlp.down_proj, intermediate, hidden),
        ]
        return LayerParts(
            self.norm(layer.input_layernorm, hidden),
            self.norm(layer.post_attention_layernorm, hidden),
            self.norm(attention.q_norm, head_dim) if with_norms else None,
            self.norm(attention.k_norm, head_dim) if with_norms else None,
            *[weight for weight, _ in linears],
            *[bias for _, bias in linears],
        )

    def window(self, attention: Any, at: int) -> int:
        """How many positions attend to each other in a layer, as the model's masks say."""
        family, config = self.family[0], self.model.config
        if family == "mistral":
            return config.sliding_window or 0
        if family == "llama" or config.layer_types[at] == "full_attention":
            return 0
        if config.layer_types[at] != "sliding_attention":
            raise UndescribedError(f"layer {at} has {config.layer_types[at]}")
        return config.sliding_window or 0
