# SPDX-License-Identifier: Apache-2.0
"""What the optimizers share: options, which step a parameter takes, state and its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, overload

import torch
from torch import distributed
from torch.optim import Optimizer

from xruntime.errors import OptimizerError
from xruntime.optim.memory_layout import can_be_walked_together, empty_like
from xruntime.optim.split_bf16 import join, split
from xruntime.optim.step_call import (
    FORMATS,
    RANGES,
    TYPES,
    WEIGHTS_FLOAT32,
    Formats,
    Group,
    OptimizerRule,
    State,
    StateNames,
    StepKind,
)
from xruntime.optim.steps import DenseStep, SparseStep, as_count

Rounding = Literal["split", "stochastic"]

_NEVER = ("amsgrad", "capturable", "differentiable")
"""Options of torch's optimizers that are not supported: False is accepted."""
_OURS = ("rounding", "state_dtype")
"""Options that torch's optimizers do not have."""
_GENERATOR = "generator"
"""The entry of a state_dict with the state of the generator for stochastic rounding."""


def load_with_hooks(
    optimizer: Optimizer,
    state_dict: dict[str, Any],
    check: Callable[[dict[str, Any]], None],
    take: Callable[[dict[str, Any]], None],
) -> None:
    """Load a state_dict as torch does, its hooks included, and change what torch makes of the states.

    check
        Called with what the hooks before loading have made of `state_dict`; it may raise.
    take
        Called with the same when torch has loaded it, before the hooks after loading.
    """
    checked: list[dict[str, Any]] = []

    def before(_: Optimizer, saved: dict[str, Any]) -> None:
        check(saved)
        checked.append(saved)

    handles = [
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(lambda _: take(checked[0]), prepend=True),
    ]
    try:
        Optimizer.load_state_dict(optimizer, state_dict)
    finally:
        for handle in handles:
            handle.remove()


def _version(tensor: torch.Tensor) -> int:
    """A number that grows whenever code writes to a tensor."""
    return tensor._version  # noqa: SLF001 - autograd's, which torch's documentation names


class NativeOptimizer(Optimizer):
    """The base of the optimizers of this package; it is not an optimizer itself."""

    RULE: ClassVar[OptimizerRule]

    _dense: dict[tuple[int, StepKind], DenseStep]
    _delegate: Optimizer | None
    _given: dict[torch.Tensor, int]
    """Parameters whose fp32 weights were given since the last step, with their versions then."""

    def _begin(self, arguments: dict[str, Any]) -> None:
        """Initialize, with a subclass's arguments: all but `params` and `generator` are options."""
        options = {name: value for name, value in arguments.items() if name != "self"}
        params, generator = options.pop("params"), options.pop("generator")
        if generator is not None and generator.device.type != "cpu":
            raise OptimizerError(
                f"{self._name}: the generator is on {generator.device}, not the CPU"
            )
        self._generator = generator
        self._given = {}
        self._forget()
        Optimizer.__init__(self, params, options)

    # The step.

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    # Dynamo cannot trace native calls. In what it traced around them, torch's fused optimizers took
    # their default options and kept no state.
    @torch.compiler.disable(reason="steps of xruntime.optim are native code")  # type: ignore[no-untyped-call, untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient.

        closure
            Computes the loss again and returns it; its result is returned.

        Raises OptimizerError, before any parameter is changed, if one cannot be updated.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._drop_outdated()
        self._given = {}
        with torch.no_grad():
            delegated: list[list[torch.Tensor]] = [[] for _ in self.param_groups]
            steps = [
                self._prepare(at, group, delegated[at])
                for at, group in enumerate(self.param_groups)
            ]
            self._run_delegate(delegated)
            for group, prepared in zip(self.param_groups, steps, strict=True):
                update = self.RULE.update(group)
                for step in prepared:
                    seed = self._seed() if group["rounding"] == "stochastic" else 0
                    step.run(update, maximize=bool(group["maximize"]), seed=seed)
        return loss

    def _prepare(
        self, number: int, group: Group, delegated: list[torch.Tensor]
    ) -> list[DenseStep | SparseStep]:
        """Check a group's parameters and prepare their calls; list those that torch updates."""
        alike: dict[tuple[torch.dtype, torch.dtype], list[torch.Tensor]] = {}
        steps: list[DenseStep | SparseStep] = []
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout == torch.sparse_coo:
                obstacle = self.RULE.sparse_obstacle(group)
                if obstacle is not None:
                    raise OptimizerError(f"{self._name}: {obstacle}")
                kind = self._kind(group, parameter)
                steps.append(SparseStep(parameter, self.state[parameter], kind))
            elif parameter.dtype != torch.bfloat16 and self.RULE.delegate is not None:
                delegated.append(parameter)
            else:
                alike.setdefault((parameter.dtype, gradient.dtype), []).append(parameter)
        for parameters in alike.values():
            kind = self._kind(group, parameters[0])
            step = self._dense.setdefault((number, kind), DenseStep(kind))
            step.prepare(parameters, [self.state[parameter] for parameter in parameters])
            steps.append(step)
        return steps

    def _kind(self, group: Group, parameter: torch.Tensor) -> StepKind:
        assert parameter.grad is not None
        in_bf16 = parameter.dtype == torch.bfloat16
        weights = FORMATS[group["rounding"]] if in_bf16 else WEIGHTS_FLOAT32
        formats = Formats(weights, parameter.grad.dtype, self._state_dtype(group, parameter))
        return StepKind(self._name, self.RULE.names(group), formats)

    def _state_dtype(self, group: Group, parameter: torch.Tensor) -> torch.dtype:
        """Return the dtype of a parameter's moments; torch's are in the parameter's dtype."""
        if self.RULE.delegate is not None and parameter.dtype != torch.bfloat16:
            return parameter.dtype
        dtype: torch.dtype = group["state_dtype"]
        return dtype

    def _seed(self) -> int:
        if self._generator is None:
            # Its own generator can be saved, and still torch.manual_seed decides; but processes that train
            # a model together must draw alike, whatever their seeds are.
            together = distributed.is_available() and distributed.is_initialized()
            self._generator = torch.Generator()
            self._generator.manual_seed(0 if together else int(torch.randint(2**63 - 1, ())))
        return int(torch.randint(2**63 - 1, (), generator=self._generator))

    def _run_delegate(self, parameters: list[list[torch.Tensor]]) -> None:
        """Let torch's optimizer update these parameters of each group, by its fused loops if they can."""
        groups = []
        for group, ours in zip(self.param_groups, parameters, strict=True):
            names = self.RULE.names(group)
            alike: dict[tuple[bool, bool], list[torch.Tensor]] = {}
            for parameter in ours:
                alike.setdefault(self._delegation(parameter, names), []).append(parameter)
            groups += [
                {**group, "params": members, "fused": fused, "foreach": False}
                for (fused, _), members in alike.items()
            ]
        if not groups or self.RULE.delegate is None:
            return
        if self._delegate is None:
            kind: Any = self.RULE.delegate
            self._delegate = kind(groups[0]["params"])
        self._delegate.param_groups = groups
        self._delegate.state = self.state
        self._delegate.step()

    def _delegation(self, parameter: torch.Tensor, names: StateNames) -> tuple[bool, bool]:
        """Return whether torch's fused loop can update a parameter, and whether its momentum is to be set.

        The loop walks raw memory, so all tensors must lie alike; torch's default path takes any. It sets
        the momentum of all tensors of a call or of none.
        """
        assert parameter.grad is not None
        state = self.state.get(parameter, {})
        moments = [state[name] for name in names.moments if state.get(name) is not None]
        fused = can_be_walked_together([parameter, parameter.grad, *moments])
        return fused, names.fresh and not moments

    # Options.

    @property
    def _name(self) -> str:
        return type(self).__name__

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; options that it does not set are the optimizer's."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except OptimizerError:
            del self.param_groups[-1]
            raise
        self._forget()

    def _check_group(self, group: Group) -> None:
        name = self._name
        for option in _NEVER:
            if group.get(option):
                raise OptimizerError(f"{name}: {option}=True is not supported; leave it out")
        for option, (low, limit) in RANGES.items():
            if option not in group:
                continue
            values = group[option] if isinstance(group[option], tuple | list) else (group[option],)
            if not all(low <= float(value) < limit for value in values):
                allowed = f"at least {low:g}" + (f" and below {limit:g}" if limit < 1e300 else "")
                raise OptimizerError(f"{name}: {option}={group[option]}: allowed is {allowed}")
        if group["rounding"] not in FORMATS:
            raise OptimizerError(
                f"{name}: rounding={group['rounding']!r}: allowed are {', '.join(map(repr, FORMATS))}"
            )
        if group["state_dtype"] not in TYPES:
            raise OptimizerError(
                f"{name}: state_dtype={group['state_dtype']}: allowed are"
                f" {', '.join(map(str, TYPES))}"
            )
        allowed_dtypes = [torch.bfloat16, torch.float32]
        if self.RULE.delegate is not None:
            allowed_dtypes.append(torch.float64)
        for parameter in group["params"]:
            if parameter.dtype not in allowed_dtypes:
                raise OptimizerError(
                    f"{name}: a parameter has dtype {parameter.dtype}; allowed are"
                    f" {', '.join(map(str, allowed_dtypes))}"
                )
            if parameter.device.type != "cpu":
                raise OptimizerError(
                    f"{name}: a parameter is on {parameter.device}; xruntime.optim updates parameters"
                    " on the CPU, torch.optim those elsewhere"
                )

    def _forget(self) -> None:
        """Forget the arrays of addresses, after a change of groups or states."""
        self._dense = {}
        self._delegate = None

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return state and options as torch's optimizers do.

        The state of a bf16 parameter includes the remainder of its weights. With stochastic rounding,
        the entry "generator" is the state of its generator.
        """
        self._drop_outdated()
        saved: dict[str, Any] = super().state_dict()
        if self._generator is not None:
            saved[_GENERATOR] = self._generator.get_state()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this optimizer, or of torch's of the same name.

        Moments are converted to the group's `state_dtype`. A bf16 parameter without a remainder in
        the state begins with its present value: see `load_master_state_dict`.
        Raises OptimizerError for options that are not supported and for states of other shapes.
        """
        load_with_hooks(self, state_dict, self._check_saved, self._take_saved)

    def _check_saved(self, saved: dict[str, Any]) -> None:
        for _, parameter, number in self._numbered(saved):
            for name, value in saved["state"].get(number, {}).items():
                if name == "step" or not isinstance(value, torch.Tensor):
                    continue
                if value.shape != parameter.shape:
                    raise OptimizerError(
                        f"{self._name}: the state {name!r} of a parameter has shape {tuple(value.shape)},"
                        f" the parameter {tuple(parameter.shape)}: they are of different models"
                    )

    def _take_saved(self, saved: dict[str, Any]) -> None:
        """Restore the saved states, because torch has converted them to their parameters' dtype."""
        for group, parameter, number in self._numbered(saved):
            if number in saved["state"]:
                self.state[parameter] = self._converted(group, parameter, saved["state"][number])
        if _GENERATOR in saved:
            self._generator = self._generator or torch.Generator()
            self._generator.set_state(saved[_GENERATOR])
        self._forget()

    def _numbered(self, saved: dict[str, Any]) -> Iterator[tuple[Group, torch.Tensor, int]]:
        """Yield each parameter with its group and with its number in a state_dict."""
        ours = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        for (group, parameter), number in zip(ours, numbers, strict=False):
            yield group, parameter, number

    def _converted(self, group: Group, parameter: torch.Tensor, saved: State) -> State:
        state: State = {}
        for name, value in saved.items():
            if name == "step":
                state[name] = as_count(float(value))
            elif not isinstance(value, torch.Tensor):
                state[name] = value
            elif name == "remainder":
                if parameter.dtype == torch.bfloat16 and group["rounding"] == "split":
                    state[name] = empty_like(parameter.detach(), torch.int16).copy_(value)
            else:
                dtype = self._state_dtype(group, parameter)
                state[name] = empty_like(parameter.detach(), dtype).copy_(value)
        return state

    def torch_state_dict(self) -> dict[str, Any]:
        """Return a state_dict for torch's optimizer of the same name on a model of fp32 weights.

        Moments are in fp32; what torch does not know is left out. The weights are
        `master_state_dict(model)`. Raises OptimizerError if torch has no such optimizer.
        """
        if self.RULE.delegate is None:
            raise OptimizerError(f"{self._name}: torch.optim has no such optimizer")
        saved = super().state_dict()
        groups = [
            {name: value for name, value in group.items() if name not in _OURS}
            for group in saved["param_groups"]
        ]
        states = {
            number: {
                name: value.float() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
                if name != "remainder"
            }
            for number, state in saved["state"].items()
        }
        return {"state": states, "param_groups": groups}

    def master_state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return the model's state_dict with the weights in fp32, for a model without this optimizer.

        A bf16 weight with a remainder gets its exact fp32 value; other bf16 tensors are converted.
        The tensors are copies.
        """
        values: dict[str, Any] = {}
        for name, value in model.state_dict(keep_vars=True).items():
            if not isinstance(value, torch.Tensor):
                values[name] = value
                continue
            master = self.master_weight(value)
            if master is None:
                dtype = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
                master = value.detach().to(dtype, copy=True)
            values[name] = master
        return values

    def load_master_state_dict(
        self, model: torch.nn.Module, state_dict: dict[str, Any], *, strict: bool = True
    ) -> None:
        """Load fp32 weights into a model with bf16 parameters, and the remainders into the state.

        The inverse of `master_state_dict`; it also converts a model that was trained in fp32. `strict`
        is that of `model.load_state_dict`. Parameters with stochastic rounding have no remainder.
        """
        model.load_state_dict(state_dict, strict=strict)
        ours = self.split_parameters()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in state_dict and parameter in ours:
                self.set_master_weight(parameter, state_dict[name])

    def split_parameters(self) -> set[torch.Tensor]:
        """Return the parameters whose state has a remainder from their first step on, or from before."""
        return {
            parameter
            for group in self.param_groups
            for parameter in group["params"]
            if group["rounding"] == "split" and parameter.dtype == torch.bfloat16
        }

    def master_weight(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the fp32 weights of a bf16 parameter with a remainder; None for others."""
        self._drop_outdated()
        remainder = self.state.get(parameter, {}).get("remainder")
        if remainder is None or parameter.dtype != torch.bfloat16:
            return None
        return join(parameter, remainder)

    def set_master_weight(self, parameter: torch.Tensor, weight: torch.Tensor) -> None:
        """Set a bf16 parameter and its remainder to fp32 weights of its shape.

        If other code writes the parameter before the next step, as DistributedDataParallel does when it
        is made, the remainder is dropped, with a warning: it is of other weights.
        """
        half, remainder = split(weight.to(torch.float32))
        with torch.no_grad():
            parameter.copy_(half)
            kept = empty_like(parameter.detach(), torch.int16).copy_(remainder)
        self.state[parameter]["remainder"] = kept
        self._given[parameter] = _version(parameter)

    def _drop_outdated(self) -> None:
        outdated = [p for p, version in self._given.items() if _version(p) != version]
        if not outdated:
            return
        for parameter in outdated:
            del self._given[parameter]
            self.state[parameter].pop("remainder", None)
        warnings.warn(
            f"{self._name}: other code, such as DistributedDataParallel, has written {len(outdated)}"
            " parameters after their fp32 weights were given; they train from the bf16 values. To train"
            " from the exact ones, give the fp32 weights afterwards",
            stacklevel=3,
        )

    def __getstate__(self) -> dict[str, Any]:
        generator = None if self._generator is None else self._generator.get_state()
        return {**super().__getstate__(), _GENERATOR: generator}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Adopt groups from a pickle or a state_dict, also with the options of torch's optimizer."""
        state = dict(state)
        defaults = state.get("defaults", self.__dict__.get("defaults", {}))
        for group in state["param_groups"]:
            for option, value in defaults.items():
                group.setdefault(option, value)
            self._check_group(group)
        if _GENERATOR in state:
            saved = state.pop(_GENERATOR)
            self._generator = None if saved is None else torch.Generator().set_state(saved)
        super().__setstate__(state)
        self._given = {}
        self._forget()
