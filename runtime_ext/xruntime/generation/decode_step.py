# SPDX-License-Identifier: Apache-2.0
"""The decode step: one native call for a token of each sequence, in place of a model's modules.

`DecodeStep` computes the calls that it is for, and leaves all others to the modules. Its first result, and the first
one of each batch size and size of the cache, is compared with the modules', which the caller gets then.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter, is_, methodcaller
from typing import Any, Final, NamedTuple, cast

import torch
from torch import nn

from xruntime import native
from xruntime.errors import OperatorError
from xruntime.generation.cached_layers import CacheView, StepState, growing, in_use, other_kind
from xruntime.generation.decoders import Description, Sizes, UndescribedError, Weight, described
from xruntime.generation.families import LINEARS, NORMS
from xruntime.generation.linear_rows import c_weights, linears_of_torch
from xruntime.generation.speed import Speed
from xruntime.generation.team_size import TeamSizes
from xruntime.threads.torch_modes import transformed

TOLERANCES: Final = {torch.bfloat16: 3e-2, torch.float32: 1e-3}
"""Largest difference of logits, keys and values from the modules', relative to the largest value, up to `SHALLOW` layers."""

SHALLOW: Final = 6
"""In deeper models the tolerance grows with the root of the layers, as the errors of independent roundings do. Two
computations in bf16 that are both right differed by up to 0.032 after 24 layers and 2,048 positions."""

MAX_BATCH: Final = 8
"""With more sequences torch's linears, which pack the weights, are as fast."""

_TYPES: Final = {torch.float32: native.FLOAT32, torch.bfloat16: native.BFLOAT16}

_ADDRESS, _INT32, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_SIZES: Final = " ".join(Sizes._fields)


class _Layer(ctypes.Structure):
    """xk_decode_layer of xkernels.h."""

    _fields_ = native.fields(
        (_ADDRESS, " ".join(f"{name} {name}_bias" for name in NORMS)),
        (native.CWeights, " ".join(LINEARS)),
        (_ADDRESS, f"{' '.join(f'{name}_bias' for name in LINEARS)} keys values"),
        (_INT64, "batch_stride head_stride position window rotary"),
    )


class _Step(ctypes.Structure):
    """xk_decode of xkernels.h."""

    _fields_ = native.fields(
        (_ADDRESS, "layers"),
        (_INT64, f"layer_count batch {_SIZES} rotary_size"),
        (_INT32, "weight_type norm_type cache_type norm_kind activation parallel"),
        (_FLOAT, "epsilon norm_offset scale score_cap logit_cap embedding_scale"),
        (_ADDRESS, "embedding addends norm norm_bias"),
        (native.CWeights, "head"),
        (_ADDRESS, "head_bias tokens cosines sines starts"),
        (_INT64, "positions"),
        (_ADDRESS, "logits"),
        (_INT32, "logits_type threads"),
    )


native.declare("xk_decode_step", arguments=(ctypes.POINTER(_Step),))

_NUMBERS: Final = (int, float, str, list, tuple, type(None))
"""Types of attributes that a description may be read from."""

_ADDRESS_OF: Final = methodcaller("data_ptr")
_DTYPE_OF: Final = attrgetter("dtype")

_OF_MODULES: Final = {"training", *vars(nn.Module())}

_TAKEN: Final = frozenset((
    "input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep",
    "return_dict", "cache_position",
))  # fmt: skip
"""The arguments that a call may have. Others must be None."""


def _described(name: str, tensor: Weight) -> Any:
    """The value of the field of that name."""
    return c_weights(tensor) if name in (*LINEARS, "head") else tensor.data_ptr()


class _Plan:
    """A model as it is described, and what shows that it still is. Raises UndescribedError."""

    def __init__(self, model: Any, kind: type[nn.Module]) -> None:
        self.key = object()
        self.description = description = described(model, kind)
        self.bytes_a_token = description.bytes_a_token()
        self._parameters = description.parameters
        self._addresses = list(map(_ADDRESS_OF, self._parameters))
        self._dtypes = list(map(_DTYPE_OF, self._parameters))
        inner = [vars(module) for module in description.modules if module is not model]
        watched = [
            (table, name, value)
            for own in (*inner, vars(model))
            for table in (own["_modules"], own["_parameters"])
            for name, value in table.items()
        ] + [
            (own, name, value)
            for own in (*map(vars, description.described), vars(model.config))
            for name, value in own.items()
            if name not in _OF_MODULES and isinstance(value, _NUMBERS)
        ]
        # Dictionaries, names, and what must be there: parts and weights, and numbers of modules and config.
        self._tables, self._names, self._values = map(list, zip(*watched, strict=True))
        kinds = {type(module) for module in description.modules}
        self._forwards = {kind: kind.forward for kind in kinds}
        self._inner = inner
        hooks = ("_forward_hooks", "_forward_pre_hooks")
        self._hooks = [own[name] for own in inner for name in hooks]
        self.layers = (_Layer * len(description.layers))()
        """Of each layer all but its cache."""

        for layer, parts, window, rotary in zip(
            self.layers, description.layers, description.windows, description.rotaries, strict=True
        ):
            for name, tensor in parts.items():
                setattr(layer, name, _described(name, tensor))
            layer.window, layer.rotary = window, rotary
        self.step = _Step(
            layer_count=len(description.layers),
            **description.sizes._asdict(),
            **description.numbers,
            weight_type=_TYPES[description.embedding.dtype],
            norm_type=_TYPES[description.ends["norm"].dtype],
            embedding=description.embedding.data_ptr(),
            **{name: _described(name, tensor) for name, tensor in description.ends.items()},
        )
        """All that does not change from call to call."""

    def is_current(self) -> bool:
        """Whether the model has the parts and weights of the description."""
        return (
            all(map(is_, map(dict.get, self._tables, self._names), self._values))
            and all(kind.forward is forward for kind, forward in self._forwards.items())
            and list(map(_ADDRESS_OF, self._parameters)) == self._addresses
            and list(map(_DTYPE_OF, self._parameters)) == self._dtypes
        )

    def is_hooked(self) -> bool:
        """Whether something sees or replaces calls of parts, or a part is in training mode."""
        return (
            any(self._hooks)
            or any("forward" in own or own["training"] for own in self._inner)
            or cast("Any", nn.modules.module)._has_any_global_hook()  # noqa: SLF001 - no public one
        )


class _Call(NamedTuple):
    """A call that the step can compute."""

    plan: _Plan
    tokens: torch.Tensor
    positions: torch.Tensor
    """Of each sequence, or one for all."""

    addends: torch.Tensor | None
    """Embeddings of the positions, in float32."""

    starts: torch.Tensor
    cache: Any
    view: CacheView


class DecodeStep:
    """Computes calls of one model.

    kind
        The class of the model in transformers.
    say
        Is called with a line when the step is dropped.
    tell
        Is called with a line when the speed of tokens is known.

    Raises UndescribedError for a model that fits no description.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: type[nn.Module],
        say: Callable[[str], None],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model: Any = model
        self._kind = kind
        self._say = say
        self._tell = tell
        self._lock = threading.Lock()
        self._proved: set[tuple[int, int]] = set()
        self._other_kinds: set[str] = set()
        """The names of other caches, each of which is reported once."""

        self.dropped: str | None = None
        """Why the modules compute everything from now on."""

        self._plan = _Plan(model, kind)
        self.speed = Speed()
        self._team_sizes = TeamSizes()

    def __call__(
        self, call_modules: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what `call_modules(*args, **kwargs)`, the call of the modules, would return."""
        call, began = None, time.perf_counter()
        if self.dropped is None and (not args or (len(args) == 1 and "input_ids" not in kwargs)):
            try:
                call = self._call({"input_ids": args[0], **kwargs} if args else kwargs)
            except OperatorError:
                raise  # its cache is used by another call
            except Exception as error:  # noqa: BLE001 - the modules know what is wrong, if anything is
                self.drop(f"{type(error).__name__}: {error}")
        if call is None:
            outputs = call_modules(*args, **kwargs)
            tokens = args[0] if args else kwargs.get("input_ids")
            if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and tokens.shape[1] > 1:
                self.speed.add_prompt(tokens.shape[1], time.perf_counter() - began)
            return outputs
        batch = call.view.batch
        with in_use(call.view.layers[0], call.view.positions):
            capacity = max(layer.room().keys.shape[2] for layer in call.view.layers)
            key = (batch, capacity)
            try:
                with self._team_sizes.chosen(batch, capacity) as (threads, search):
                    logits = self._computed(call, threads)
            except Exception as error:  # noqa: BLE001 - nothing has been changed
                self.drop(f"{type(error).__name__}: {error}")
                return call_modules(*args, **kwargs)
            if key not in self._proved or self.speed.needs_modules(batch):
                return self._compared(call, logits, key, partial(call_modules, *args, **kwargs))
            for layer in call.view.layers:
                layer.extend()
        description, elapsed_s = call.plan.description, time.perf_counter() - began
        search.add(threads, elapsed_s)
        if search.is_over() and self.speed.add_step(
            batch, threads, elapsed_s, description.ends["head"], call.plan.bytes_a_token
        ):
            self._tell(self.speed.line or "")
        return self._outputs(logits, call)

    def __reduce__(self) -> Any:
        """In a copy or pickle of a model, there is None in its place."""
        return _no_step, ()

    def _outputs(self, logits: torch.Tensor, call: _Call) -> Any:
        from transformers import modeling_outputs

        kind = getattr(modeling_outputs, call.plan.description.family.outputs)
        return kind(logits=logits, past_key_values=call.cache)

    def _compared(
        self,
        call: _Call,
        logits: torch.Tensor,
        key: tuple[int, int],
        call_modules: Callable[[], Any],
    ) -> Any:
        """Return the modules' outputs; remember whether ours agree."""
        rooms = [layer.room() for layer in call.view.layers]
        ours = [logits[:, 0]]
        ours += [t[:, :, room.end].clone() for room in rooms for t in (room.keys, room.values)]
        began = time.perf_counter()
        with linears_of_torch():
            outputs = call_modules()
        self.speed.add_modules(call.view.batch, time.perf_counter() - began)
        theirs = [outputs.logits[:, -1]]
        for layer in call.view.layers:
            theirs += [layer.keys[:, :, -1], layer.values[:, :, -1]]
        depth = max(1.0, len(rooms) / SHALLOW)
        problem = _problem(ours, theirs, TOLERANCES[logits.dtype] * depth**0.5)
        if problem is None:
            self._proved.add(key)
        else:
            self.drop(f"its result differs from the modules': {problem}")
        return outputs

    def drop(self, reason: str) -> None:
        """Let the modules compute everything from now on."""
        with self._lock:
            first, self.dropped = self.dropped is None, reason
        if first:
            self._say(f"the decode step is not used from now on: {reason}")

    def _current_plan(self) -> _Plan | None:
        """Return the plan of the model as it is, a new one if it was changed; None if it fits no description."""
        plan = self._plan
        if plan.is_current():
            return plan
        with self._lock:
            try:
                plan = self._plan = _Plan(self._model, self._kind)
            except UndescribedError as error:
                reason = str(error)
            else:
                self._proved.clear()
                return plan
        self.drop(f"the model was changed: {reason}")
        return None

    def _is_for_one_token(self, kwargs: dict[str, Any]) -> bool:
        """Whether the arguments and torch's modes ask for the logits of one token of each sequence, and no more."""
        tokens, config = kwargs.get("input_ids"), self._model.config
        return (
            kwargs.get("past_key_values") is not None
            and type(tokens) is torch.Tensor
            and tokens.dim() == 2
            and tokens.shape[1] == 1
            and 0 < tokens.shape[0] <= MAX_BATCH
            and tokens.dtype is torch.int64
            and tokens.is_cpu
            and all(
                value is None or value is False or name in _TAKEN for name, value in kwargs.items()
            )
            and kwargs.get("use_cache") is not False
            and kwargs.get("return_dict") is not False
            and isinstance(kwargs.get("logits_to_keep", 0), int)
            and not (torch.is_grad_enabled() or transformed() or torch.compiler.is_compiling())
            and config._attn_implementation in ("sdpa", "eager")  # noqa: SLF001 - no public one
            and not (config.output_attentions or config.output_hidden_states)
            and config.return_dict
        )

    def _call(self, kwargs: dict[str, Any]) -> _Call | None:
        """Return the call that these arguments describe, or None if the modules are to compute it."""
        if not self._is_for_one_token(kwargs):
            return None
        tokens, cache = kwargs["input_ids"], kwargs["past_key_values"]
        batch = len(tokens)
        plan = self._current_plan()
        if plan is None or plan.is_hooked():
            return None
        description = plan.description
        if torch.is_autocast_enabled("cpu"):
            weights = description.embedding.dtype
            if weights is not torch.bfloat16 or torch.get_autocast_dtype("cpu") is not weights:
                return None
        if (kind := other_kind(cache)) is not None:
            if kind not in self._other_kinds:
                self._other_kinds.add(kind)
                self._say(
                    f"calls with a {kind} are not native: the decode step is for a DynamicCache"
                )
            return None
        sizes = description.sizes
        view = growing(cache, (len(description.layers), sizes.kv_heads, sizes.head_dim))
        if view is None or view.batch != batch or view.dtype is not description.embedding.dtype:
            return None
        if int(tokens.min()) < 0 or int(tokens.max()) >= sizes.vocabulary:
            return None
        starts = _starts(kwargs.get("attention_mask"), batch, view.positions)
        if starts is None:
            return None
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.full((1, 1), view.positions)
            if description.family.padded_places:
                positions = positions - starts[:, None]
        if type(positions) is not torch.Tensor or positions.dim() != 2:
            return None
        if positions.shape[1] != 1 or positions.shape[0] not in (1, batch):
            return None
        addends = None
        if description.places is not None:
            rows = positions[:, 0] + description.place_offset
            if int(rows.min()) < 0 or int(rows.max()) >= len(description.places):
                return None
            added = description.places.detach()[rows].float()
            addends = added.expand(batch, sizes.hidden).contiguous()
        return _Call(plan, tokens.contiguous(), positions, addends, starts, cache, view)

    def _computed(self, call: _Call, threads: int) -> torch.Tensor:
        """Write the next position into the cache's room, and return logits, by so many threads of the team."""
        description, view = call.plan.description, call.view
        cosines, sines = _turns(description, call.positions, view.batch)
        layers = _c_layers(call)
        shape = (view.batch, 1, description.sizes.vocabulary)
        logits = torch.empty(shape, dtype=description.embedding.dtype)
        step = _Step.from_buffer_copy(call.plan.step)
        step.layers = ctypes.addressof(layers)
        step.batch, step.positions, step.threads = view.batch, view.positions, threads
        step.rotary_size = cosines.shape[-1]
        step.cache_type, step.logits_type = _TYPES[view.dtype], _TYPES[logits.dtype]
        step.cosines, step.sines = cosines.data_ptr(), sines.data_ptr()
        step.addends = None if call.addends is None else call.addends.data_ptr()
        step.tokens, step.starts = call.tokens.data_ptr(), call.starts.data_ptr()
        step.logits = logits.data_ptr()
        native.check(
            native.library().xk_decode_step(ctypes.byref(step)),
            lambda problem: OperatorError(f"the decode step is refused ({problem.name})"),
        )
        return logits


def _turns(
    description: Description, positions: torch.Tensor, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary embeddings, (embeddings, batch, features), dense; without any, empty."""
    rotary: Any = description.rotary
    if rotary is None:
        return torch.empty(0, 0), torch.empty(0, 0)
    with torch.autocast("cpu", enabled=False):
        pairs = [rotary(torch.empty(0), positions, *kind) for kind in description.rotary_types]
    cosines, sines = (
        torch.stack([tensor[:, 0].float().expand(batch, -1) for tensor in tensors])
        for tensors in zip(*pairs, strict=True)
    )
    return cosines, sines


def _c_layers(call: _Call) -> Any:
    """The layers of xk_decode for a call: those of the last step if their rooms are the same."""
    plan, view = call.plan, call.view
    step_state = view.step_state
    if step_state is not None and step_state.plan_key is plan.key:
        for c_layer in step_state.c_layers:
            c_layer.position = view.positions
        return step_state.c_layers
    layers = type(plan.layers).from_buffer_copy(plan.layers)
    sizes = plan.description.sizes
    for c_layer, layer in zip(layers, view.layers, strict=True):
        room = layer.room()
        first = room.begin * sizes.head_dim * room.keys.element_size()
        c_layer.keys = room.keys.data_ptr() + first
        c_layer.values = room.values.data_ptr() + first
        c_layer.batch_stride, c_layer.head_stride = room.keys.stride()[:2]
        c_layer.position = room.end - room.begin
    if not any(layer.is_sliding for layer in view.layers):  # those of sliding layers move
        rooms = [layer.room() for layer in view.layers]
        capacity = min(room.keys.shape[2] for room in rooms)
        shape = (len(rooms), sizes.kv_heads, sizes.head_dim)
        step_state = StepState(shape, view.batch, view.dtype, capacity, plan.key, layers)
        for number, room in enumerate(rooms):
            room.step_state, room.number = step_state, number
    return layers


def _no_step() -> None:
    return None


def _starts(mask: Any, batch: int, positions: int) -> torch.Tensor | None:
    """How many positions of each sequence are padding; None for a mask with holes, or of another kind."""
    if mask is None:
        return torch.zeros(batch, dtype=torch.int64)
    if type(mask) is not torch.Tensor or mask.dtype not in (torch.int64, torch.int32, torch.bool):
        return None
    if mask.shape != (batch, positions + 1) or not mask.is_cpu:
        return None
    seen = mask != 0
    starts = seen.to(torch.uint8).argmax(1)  # the first position that is seen
    if not bool(seen[:, -1].all()) or not torch.equal(seen.sum(1), positions + 1 - starts):
        return None
    return starts


def _problem(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float) -> str | None:
    """How logits (the first), keys and values differ by more than `tolerance`; None if they agree."""
    for at, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if own.shape != other.shape:
            return f"shape {tuple(own.shape)}, not {tuple(other.shape)}"
        largest = float(other.abs().max())
        difference = float((own.float() - other.float()).abs().max())
        if not difference <= tolerance * largest:
            name = "logits" if at == 0 else ("keys", "values")[(at - 1) % 2]
            return f"{name} by {difference:.3g}, where the largest is {largest:.3g}"
    own, other = ours[0].float(), theirs[0].float()
    largest = float(other.abs().max())
    chosen, best = own.argmax(-1, keepdim=True), other.max(-1, keepdim=True).values
    behind = float((best - other.gather(-1, chosen)).max())
    return (
        None if behind <= tolerance * largest else f"it chose a logit {behind:.3g} below the best"
    )
