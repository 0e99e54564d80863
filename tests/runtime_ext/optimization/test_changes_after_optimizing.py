# SPDX-License-Identifier: Apache-2.0
"""What changes after `optimize`, in a model or in what its code reads, changes what calls return, or is an error."""

from __future__ import annotations

import array
import builtins
import contextlib
import contextvars
import ctypes
import enum
import functools
import gc
import io
import itertools
import math
import os
import random
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from tests.runtime_ext.optimization.exported_code import ExportedLibrary, exported_code
from tests.runtime_ext.optimization.test_random_models import close
from torch import Tensor, nn

from xruntime.errors import OptimizationError
from xruntime.optimization import SlowCallWarning, explain, optimize
from xruntime.optimization.optimized_code import optimized_code
from xruntime.program_hook.interception import Interception

__all__ = ["exported_code"]

WIDTH = 8
NAMES = types.ModuleType("tests_settings")
"""Another module of the program."""

LAZY: Any = types.ModuleType("tests_lazy")
exec("values = {'gain': 1.0}\ndef __getattr__(name): return values[name]", vars(LAZY))

GAIN = 1.0
TABLE: dict[str, Any] = {"deep": [{"gain": 1.0}]}


def scaled(values: Tensor, gain: float = 1.0) -> Tensor:
    return values * gain


def scaled_by(values: Tensor, gains: list[float] = [1.0]) -> Tensor:  # noqa: B006 - is changed
    return values * gains[0]


def imports_the_module() -> float:
    import tests_settings

    return float(tests_settings.gain)


def imports_the_name() -> float:
    from tests_settings import gain

    return float(gain)


class Helper:
    def gain(self) -> float:
        return GAIN


class Described:
    def __get__(self, _model: Any, _kind: Any = None) -> float:
        return GAIN


class Mode(enum.Enum):
    FAST = 1

    @property
    def gain(self) -> float:
        return float(getattr(self, "own", 1.0))


class Settings:
    gain = 1.0


@functools.lru_cache
def cached() -> float:
    return GAIN


class Doubling(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * super().forward(values)


class Number(float):
    """Has attributes."""


class Text(bytearray):
    """Has attributes, too."""


class Other(Helper):
    def gain(self) -> float:
        return 2.0


HELPER = Helper()
VIEWED = {"gain": 1.0}
VIEW = types.MappingProxyType(VIEWED)
CONTEXT = contextvars.ContextVar("CONTEXT", default=1.0)
OF_THREAD = threading.local()
BEGAN = math.inf
NAME = f"{tempfile.gettempdir()}/tests_gain_{os.getpid()}"
Path(NAME).write_text("1")
FILE = io.StringIO("1")
OF_C = ctypes.c_double(1.0)
LARGE = array.array("d", [1.0]) * 10_000


class Model(nn.Module):
    """Multiplies by what `read` returns, which has the model."""

    described = Described()
    gain = 1.0
    names = NAMES

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.parts = nn.Sequential(nn.Linear(WIDTH, WIDTH))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(WIDTH))])
        self.register_buffer("few", torch.ones(3))
        self.register_buffer("none", torch.ones(0))
        self.register_buffer("sparse", torch.ones(3).to_sparse())
        self.two.gain = 1.0
        self.mode = Mode.FAST
        self.number, self.text, self.helper = Number(1.0), Text(b"\x01"), Helper()
        self.number.gain = 1.0  # type: ignore[attr-defined]
        self.array = numpy.ma.array([1.0, 1.0])
        self.table = {HELPER: 1.0}
        self.read = read
        self.eval()

    @property
    def of_property(self) -> float:
        return GAIN

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.parts(self.two(self.one(values)))
        return scaled(hidden) * self.weights[0] * self.read(self)


class Case(NamedTuple):
    read: Callable[[Any], Any]
    change: Callable[[Any], object]
    """Is given the model that is called."""


def plain(change: Callable[[Any], object]) -> Case:
    return Case(lambda _: 1.0, change)


def set_global(name: str, value: Any) -> Callable[[Any], object]:
    return lambda _: globals().__setitem__(name, value)


def replaced_weight(model: Any) -> None:
    model.two.weight = nn.Parameter(torch.eye(WIDTH))


def parametrized(model: Any) -> None:
    torch.nn.utils.parametrize.register_parametrization(model.two, "weight", nn.Softplus())


CASES: dict[str, Case] = {
    "a global number": Case(lambda _: GAIN, set_global("GAIN", 2.0)),
    "a number in a global table": Case(
        lambda _: TABLE["deep"][0]["gain"], lambda _: TABLE["deep"][0].update(gain=2.0)
    ),
    "a global number by its text": Case(lambda _: globals()["GAIN"], set_global("GAIN", 2.0)),
    "a variable of another module": Case(
        lambda _: NAMES.gain, lambda _: setattr(NAMES, "gain", 2.0)
    ),
    "a module imported in a call": Case(
        lambda _: imports_the_module(), lambda _: setattr(NAMES, "gain", 2.0)
    ),
    "a name imported in a call": Case(
        lambda _: imports_the_name(), lambda _: setattr(NAMES, "gain", 2.0)
    ),
    "a variable of the environment": Case(
        lambda _: float(os.environ.get("TESTS_GAIN", "1")),
        lambda _: os.environ.update(TESTS_GAIN="2"),
    ),
    "an argument of the program": Case(
        lambda _: 1.0 + ("twice" in sys.argv),
        lambda _: sys.argv.__setitem__(slice(1, None), ["twice"]),
    ),
    "a setting of torch's": Case(
        lambda _: 1.0 + torch.backends.cudnn.benchmark,
        lambda _: setattr(torch.backends.cudnn, "benchmark", True),
    ),
    "a weight without gradients": Case(
        lambda model: 1.0 + model.two.weight.requires_grad,
        lambda model: model.two.weight.requires_grad_(False),
    ),
    "a weight's gradient": Case(
        lambda model: 1.0 + (model.two.weight.grad is not None),
        lambda model: setattr(model.two.weight, "grad", torch.eye(WIDTH)),
    ),
    "a transposed weight": plain(
        lambda model: setattr(model.two.weight, "data", model.two.weight.data.t())
    ),
    "a global object's method": Case(lambda _: HELPER.gain(), set_global("GAIN", 2.0)),
    "a method that is replaced": Case(
        lambda _: HELPER.gain(), lambda _: setattr(Helper, "gain", lambda _: 2.0)
    ),
    "a descriptor": Case(lambda model: model.described, set_global("GAIN", 2.0)),
    "a property": Case(lambda model: model.of_property, set_global("GAIN", 2.0)),
    "a variable of the class": Case(
        lambda model: model.gain, lambda _: setattr(Model, "gain", 2.0)
    ),
    "a variable of another class": Case(
        lambda _: Settings.gain, lambda _: setattr(Settings, "gain", 2.0)
    ),
    "a cache that is cleared": Case(
        lambda _: cached(), lambda _: (set_global("GAIN", 2.0)(None), cached.cache_clear())
    ),
    "an attribute of an enum": Case(
        lambda model: model.mode.gain, lambda _: setattr(Mode.FAST, "own", 2.0)
    ),
    "a default argument": plain(lambda _: setattr(scaled, "__defaults__", (2.0,))),
    "a default list": Case(
        lambda _: scaled_by(torch.ones(())), lambda _: scaled_by.__defaults__[0].insert(0, 2.0)
    ),
    "a part's attribute": Case(
        lambda model: model.two.gain, lambda model: setattr(model.two, "gain", 2.0)
    ),
    "a part's weight": plain(replaced_weight),
    "a part's weight through .data": plain(lambda model: model.two.weight.data.mul_(2)),
    "a part's weight in place": plain(lambda model: model.two.weight.mul_(2)),
    "a part's loaded weights": plain(
        lambda model: model.two.load_state_dict(
            {"weight": torch.eye(WIDTH), "bias": torch.zeros(WIDTH)}, assign=True
        )
    ),
    "a part's parametrization": plain(parametrized),
    "a part's forward": plain(lambda model: setattr(model.two, "forward", lambda values: values)),
    "a buffer's first values": Case(
        lambda model: len(model.few), lambda model: setattr(model.few, "data", model.few.data[:2])
    ),
    "an empty buffer": Case(
        lambda model: 1 + len(model.none), lambda model: model.none.resize_(1).fill_(1)
    ),
    "a sparse buffer": Case(
        lambda model: model.sparse.to_dense()[0], lambda model: model.sparse.mul_(2)
    ),
    "an attribute of a weight": Case(
        lambda model: getattr(model.two.weight, "gain", 1.0),
        lambda model: setattr(model.two.weight, "gain", 2.0),
    ),
    "a module that has a function for its names": Case(
        lambda _: LAZY.gain, lambda _: LAZY.values.update(gain=2.0)
    ),
    "a module by its name": Case(
        lambda _: sys.modules["tests_settings"].gain, lambda _: setattr(NAMES, "gain", 2.0)
    ),
    "a module that a class has": Case(
        lambda model: model.names.gain, lambda _: setattr(NAMES, "gain", 2.0)
    ),
    "a name of Python's own": Case(
        lambda _: TESTS_GAIN,  # type: ignore[name-defined] # noqa: F821
        lambda _: setattr(builtins, "TESTS_GAIN", 2.0),
    ),
    "a name that comes later": Case(
        lambda _: LATER if "LATER" in globals() else 1.0,  # type: ignore[name-defined] # noqa: F821
        set_global("LATER", 2.0),
    ),
    "an attribute of a number": Case(
        lambda model: model.number.gain, lambda model: setattr(model.number, "gain", 2.0)
    ),
    "an array of another class": Case(
        lambda model: float(model.array[0]), lambda model: model.array.__setitem__(0, 2.0)
    ),
    "bytes of another class": Case(
        lambda model: model.text[0], lambda model: model.text.__setitem__(0, 2)
    ),
    "an attribute of a key": Case(
        lambda model: getattr(next(iter(model.table)), "own", 1.0),
        lambda model: setattr(next(iter(model.table)), "own", 2.0),
    ),
    "an object's class": Case(
        lambda model: model.helper.gain(), lambda model: setattr(model.helper, "__class__", Other)
    ),
    "a part's class": plain(lambda model: setattr(model.two, "__class__", Doubling)),
    "a view of a table": Case(lambda _: VIEW["gain"], lambda _: VIEWED.update(gain=2.0)),
    "a part": plain(lambda model: setattr(model, "two", nn.Identity())),
    "a part more": plain(lambda model: model.parts.append(nn.ReLU())),
    "a weight in a list": plain(
        lambda model: model.weights.__setitem__(0, nn.Parameter(torch.full((WIDTH,), 2.0)))
    ),
}


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Undo what the cases change."""
    gain, defaults, argv = Helper.gain, scaled.__defaults__, list(sys.argv)
    NAMES.gain = builtins.TESTS_GAIN = 1.0  # type: ignore[attr-defined]
    LAZY.values["gain"] = 1.0
    globals().pop("LATER", None)
    sys.modules["tests_settings"] = NAMES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowCallWarning)
        yield
    globals()["GAIN"], TABLE["deep"] = 1.0, [{"gain": 1.0}]
    Helper.gain, scaled.__defaults__ = gain, defaults  # type: ignore[method-assign]
    scaled_by.__defaults__ = ([1.0],)
    VIEWED["gain"], sys.argv[:], torch.backends.cudnn.benchmark = 1.0, argv, False
    Model.gain = Settings.gain = 1.0
    vars(Mode.FAST).pop("own", None)
    vars(HELPER).pop("own", None)
    os.environ.pop("TESTS_GAIN", None)
    sys.modules.pop("tests_settings")
    cached.cache_clear()


def values_of(number: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(number))


def made(kind: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args).eval()


@torch.no_grad()
def test_change_is_seen_by_code(case: str, exported_code: list[ExportedLibrary]) -> None:
    read, change = CASES[case]
    model = made(Model, read)
    fast = optimize(model, sample_input=values_of(0), wait=True)
    fast(values_of(1))
    assert exported_code[0].calls > 2
    before = model(values_of(1))
    change(fast)
    seen = fast(values_of(1))
    calls = exported_code[0].calls
    assert not torch.allclose(seen, before)
    change(model)
    torch.testing.assert_close(seen, model(values_of(1)))
    fast(values_of(2))
    assert exported_code[0].calls == calls


@pytest.mark.long
@torch.no_grad()
def test_change_is_seen_under_the_hook(case: str, exported_code: list[ExportedLibrary]) -> None:
    read, change = CASES[case]
    model = made(Model, read)
    interception = Interception("fp32", wait=True)
    for number in range(3):
        seen = interception.outermost(model, (values_of(number),), {})
        torch.testing.assert_close(seen, model(values_of(number)))
    assert exported_code[0].calls
    change(model)
    seen = interception.outermost(model, (values_of(3),), {})
    torch.testing.assert_close(seen, model(values_of(3)))


class Twice(Model):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * super().forward(values)


@torch.no_grad()
def test_another_dtype_and_class_under_the_hook() -> None:
    model = made(Model, lambda _: torch.ones((1,), dtype=(torch.float32, torch.float64)[GAIN > 1]))
    interception = Interception("fp32", wait=False)
    for gain in (1.0, 1.0, 2.0, 2.0):
        globals()["GAIN"] = gain
        seen = interception.outermost(model, (values_of(1),), {})
        torch.testing.assert_close(seen, model(values_of(1)))
    assert seen.dtype == torch.float64
    model.__class__ = Twice
    for number in range(2):
        seen = interception.outermost(model, (values_of(number),), {})
        torch.testing.assert_close(seen, model(values_of(number)))


SCALES: dict[Any, float] = {}
OUTPUTS: dict[str, Tensor] = {}


class Scaled(nn.Linear):
    """A program may tell it from its copy."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * SCALES.get(self, 1.0)


class Called(nn.Sequential):
    def __call__(self, values: Tensor) -> Any:
        return super().__call__(values.clamp(max=1.0) - 1.0)


class Alike(nn.Sequential):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 1


@torch.no_grad()
def test_a_model_that_is_told_from_its_copy() -> None:
    model = made(nn.Sequential, Scaled(WIDTH, WIDTH))
    interception = Interception("fp32", wait=False)
    for number in range(5):
        SCALES.update({model[0]: 2.0} if number > 2 else {})
        seen = interception.outermost(model, (values_of(number),), {})
        torch.testing.assert_close(seen, model(values_of(number)))


TICKS = itertools.count()


class Ticking(nn.Linear):
    def forward(self, values: Tensor) -> Any:
        return super().forward(values), next(TICKS)


@torch.no_grad()
def test_iterators_that_a_model_reads_are_left_to_it() -> None:
    model = made(nn.Sequential, made(Ticking, WIDTH, WIDTH))
    interception = Interception("fp32", wait=False)
    assert [
        interception.outermost(model, (values_of(number),), {})[1] for number in range(5)
    ] == list(range(5))


CALLED: list[Any] = []


@pytest.mark.parametrize("own", [False, True])
@torch.no_grad()
def test_hooks_that_note_their_calls(own: bool) -> None:
    model = made(nn.Sequential, nn.Linear(WIDTH, WIDTH))
    hooked = model if own else model[0]
    hooked.register_forward_hook(lambda module, _, outputs: CALLED.append((module, outputs)))
    interception = Interception("bf16", wait=False)
    CALLED.clear()
    seen = [interception.outermost(model, (values_of(number),), {}) for number in range(5)]
    assert [module for module, _ in CALLED] == [hooked] * 5
    torch.testing.assert_close([outputs for _, outputs in CALLED], seen, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [Called, Alike])
@torch.no_grad()
def test_models_with_functions_of_their_own_for_calls_and_equality(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [made(kind, nn.Linear(WIDTH, WIDTH)) for _ in range(2)]
    models[1][0].weight.mul_(2)
    expected = [model(values_of(number)) for number in range(4) for model in models]
    interception = Interception("fp32", wait=False)

    def call(self: nn.Module, *args: Any) -> Any:
        if interception.thread.inside:
            return interception.run(self, *args)
        return interception.outermost(self, args, {})

    monkeypatch.setattr(nn.Module, "__call__", call)
    seen = [model(values_of(number)) for number in range(4) for model in models]
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)


class Forgetting(nn.Linear):
    def __init__(self, limit: float = 9.0) -> None:
        super().__init__(WIDTH, WIDTH)
        self.limit = limit

    def __deepcopy__(self, memo: Any) -> Any:
        return Forgetting().eval()

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values).clamp(max=self.limit)


def test_a_copy_that_is_another_model_is_refused() -> None:
    model = made(nn.Sequential, Forgetting(7.0))
    with pytest.raises(OptimizationError, match=r"is another model, without 0.limit=7.0"):
        optimize(model, graph="none")


class _Looking(nn.Module):
    """Looks up its part by a text, and the part has the name of a global variable, see `looking`."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = getattr(self, "looking")(value)  # noqa: B009
        return outputs


looking = _Looking().eval()


def test_a_model_in_a_global_variable_is_no_other_than_its_copy() -> None:
    sample = torch.randn(2, 4)
    fast = optimize(looking, sample_input=sample, graph="none")
    assert torch.equal(fast(sample), looking(sample))


class Twofold(nn.Linear):
    def forward(self, values: Tensor, other: Tensor | None = None) -> Any:
        OUTPUTS["last"] = output = super().forward(values)
        return output, output * (2.0 if other is values else 1.0), output


@torch.no_grad()
def test_one_tensor_twice(exported_code: list[ExportedLibrary]) -> None:
    model = made(Twofold, WIDTH, WIDTH)
    fast = optimize(model, sample_input=(values_of(0), values_of(1)), dtype=torch.bfloat16)
    fast(values_of(0), values_of(1))
    assert OUTPUTS["last"].dtype == torch.float32
    model = made(SameArgument, WIDTH, WIDTH)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "wait": True}
    fast = optimize(model, sample_input=(values_of(0), values_of(1)), **options)
    values = values_of(2)
    for other in (values_of(3), values_of(4), values, values, values_of(5)):
        first, _, last = seen = fast(values, other)
        torch.testing.assert_close(seen, model(values, other), atol=0.02, rtol=0.02)
        assert first is last
    assert exported_code[0].calls


class SameArgument(nn.Linear):
    def forward(self, values: Tensor, other: Tensor) -> Any:
        output = super().forward(values)
        return output, output * (2.0 if other is values else 1.0), output


UNFOLLOWED = {
    "a context variable": Case(lambda _: CONTEXT.get(), lambda _: CONTEXT.set(2.0)),
    "a thread's variable": Case(
        lambda _: getattr(OF_THREAD, "gain", 1.0), lambda _: setattr(OF_THREAD, "gain", 2.0)
    ),
    "a value of C": Case(lambda _: OF_C.value, lambda _: setattr(OF_C, "value", 2.0)),
    "a clock": Case(lambda _: 1.0 + (time.monotonic() > BEGAN), set_global("BEGAN", 0.0)),
    "a file": Case(lambda _: float(Path(NAME).read_text()), lambda _: Path(NAME).write_text("2")),
    "a text stream": Case(
        lambda _: float(FILE.getvalue()), lambda _: (FILE.seek(0), FILE.write("2"))
    ),
    "a large array": Case(lambda _: LARGE[9], lambda _: LARGE.__setitem__(9, 2.0)),
}


@pytest.mark.parametrize("kind", UNFOLLOWED)
@torch.no_grad()
def test_what_is_not_followed_is_not_compiled(
    kind: str, exported_code: list[ExportedLibrary]
) -> None:
    read, change = UNFOLLOWED[kind]
    model = made(Model, read)
    fast = optimize(model, sample_input=values_of(0), wait=True)
    torch.testing.assert_close(fast(values_of(1)), model(values_of(1)))
    assert not exported_code
    assert "whose changes are not followed" in f"{explain(fast)}"
    contextvars.copy_context().run(
        lambda: (
            change(None),
            torch.testing.assert_close(fast(values_of(1)), model(values_of(1))),
        )
    )


@pytest.mark.parametrize("hooked", [False, True])
@torch.no_grad()
def test_a_model_that_nobody_holds_is_freed(
    hooked: bool, exported_code: list[ExportedLibrary]
) -> None:
    model = made(Model, lambda _: 1.0)
    interception = Interception("fp32", wait=True)
    if hooked:
        for number in range(3):
            interception.outermost(model, (values_of(number),), {})
    else:
        model = optimize(model, sample_input=values_of(0), wait=True)
    assert exported_code
    exported_code.clear()
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None


@torch.no_grad()
def test_code_that_runs_at_a_fork_is_not_called_in_the_child(
    exported_code: list[ExportedLibrary],
) -> None:
    model = made(Model, lambda _: 1.0)
    fast = optimize(model, sample_input=values_of(0), wait=True)
    code = optimized_code(fast)
    assert code is not None
    for is_running in (False, True):
        calls, exported_code[0].is_running = exported_code[0].calls, is_running
        code.after_fork()
        torch.testing.assert_close(fast(values_of(0)), model(values_of(0)))
        assert (exported_code[0].calls == calls) is is_running


class Folding(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model[0].weight.mul_(2), "0.weight was changed"),
        (
            lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 3, 3, 3))),
            "0.weight",
        ),
        (lambda model: model[1].running_mean.add_(1), "1's buffers.running_mean was changed"),
        (lambda model: model[1].train(), "a BatchNorm2d was put into training mode"),
        (
            lambda model: [it.train() for it in model.modules() if isinstance(it, nn.Dropout)],
            "a Dropout was put into training mode",
        ),
    ],
)
@pytest.mark.parametrize("wait", [False, True])
@torch.no_grad()
def test_layers_that_a_pass_changed_cannot_be_changed(
    change: Callable[[Any], object],
    message: str,
    wait: bool,
    exported_code: list[ExportedLibrary],
) -> None:
    images = torch.randn(2, 3, 8, 8)
    options = {"wait": True} if wait else {"graph": "none"}
    model = made(Folding)
    fast = optimize(model, sample_input=images, **options)
    torch.testing.assert_close(fast(images), model(images))
    assert bool(exported_code) is wait
    change(fast)
    with pytest.raises(OptimizationError, match=message):
        fast(images)


@torch.no_grad()
def test_other_weights_for_one_call(exported_code: list[ExportedLibrary]) -> None:
    model = made(Model, lambda _: 1.0)
    fast, values = optimize(model, sample_input=values_of(0), wait=True), values_of(1)
    weights = {"two.weight": torch.eye(WIDTH)}
    torch.testing.assert_close(fast(values), model(values))
    assert exported_code[0].calls > 2
    seen = torch.func.functional_call(fast, weights, values)
    torch.testing.assert_close(seen, torch.func.functional_call(model, weights, values))
    torch.testing.assert_close(fast(values), model(values))


class Writing(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))


@torch.no_grad()
def test_arguments_are_written_whatever_the_samples_values_were(
    exported_code: list[ExportedLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positive values stay, and torch does not count writes to tensors made in inference mode."""
    monkeypatch.setattr("xruntime.kept.call_libraries.START_AFTER_S", 0.0)
    model = made(Writing)
    fast = optimize(model, sample_input=values_of(0).abs())
    for number in range(3):
        fast(values_of(number).abs())
    code = optimized_code(fast)
    assert code is not None
    while any(kind.compiling for kind in code.kinds):
        time.sleep(0.05)
    assert not exported_code
    assert "a call changes its arguments" in f"{explain(fast)}"
    with torch.inference_mode():
        for number in range(4):
            values = values_of(number, 8)[::2]
            fast(values.abs())
            expected = values.clone()
            assert torch.equal(fast(values), model(expected))
            assert torch.equal(values, expected)


class Odd(nn.Module):
    """Reads what is no part of a call's form, or draws random numbers for some sizes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one, self.kind = nn.Linear(WIDTH, WIDTH), kind

    def forward(self, values: Tensor) -> Any:
        hidden = self.one(values)
        if self.kind == "layout" and not values.is_contiguous():
            return hidden * 2
        if self.kind == "stride":
            return hidden * values.stride(0)
        if self.kind == "offset":
            return hidden * (1 + values.storage_offset())
        if self.kind == "bits" and values.is_neg():
            return hidden * 2
        if self.kind == "attribute":
            return hidden * getattr(values, "gain", 1.0)
        if self.kind == "requires_grad" and values.requires_grad:
            return hidden * 2
        if self.kind == "text":
            return {"hidden": hidden, "name": f"{values.shape[0]} rows"}
        if self.kind == "sizes":
            return hidden, values.shape
        if self.kind == "device":
            return hidden, torch.zeros(1).device.type
        if self.kind == "default dtype":
            return hidden, torch.zeros(1)
        if values.shape[0] > 4 and self.kind == "torch's random numbers":
            return hidden + 1e-6 * torch.rand(())
        if values.shape[0] > 4 and self.kind == "Python's random numbers":
            return hidden + 1e-6 * random.random()
        return hidden


ODD = (
    *(
        "layout",
        "stride",
        "offset",
        "bits",
        "attribute",
        "requires_grad",
        "text",
        "sizes",
        "device",
        "default dtype",
    ),
    *("torch's random numbers", "Python's random numbers"),
)


def odd_calls() -> Iterator[Tensor]:
    for rows in (4, 4, 5, 6, 7, 8, 9, 5):
        yield values_of(rows, rows)
    yield values_of(0, 8)[::2]
    yield values_of(1, WIDTH)[:, :4].t()
    yield values_of(0, 8)[4:]
    yield torch.complex(values_of(0), values_of(1)).conj().imag
    tagged = values_of(2)
    tagged.gain = 3.0  # type: ignore[attr-defined]
    yield tagged
    yield nn.Parameter(values_of(3))


def observed(call: Callable[..., Any], values: Tensor) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    outputs = call(values)
    return outputs, torch.rand(()).item(), random.random()


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("hooked", [False, True])
@torch.no_grad()
def test_what_no_form_of_calls_tells(
    kind: str, hooked: bool, exported_code: list[ExportedLibrary]
) -> None:
    model, eager = made(Odd, kind), made(Odd, kind)
    if hooked:
        interception = Interception("fp32", wait=True)

        def call(values: Tensor) -> Any:
            return interception.outermost(model, (values,), {})
    else:
        call = optimize(model, sample_input=values_of(4), wait=True)
    for values in odd_calls():
        assert close(observed(call, values), observed(eager, values), 1e-5)
    assert exported_code
    values = values_of(4)
    with torch.device("meta" if kind == "device" else "cpu"):
        assert kind != "device" or call(values)[1] == eager(values)[1] == "meta"
    torch.set_default_dtype(torch.float64)
    try:
        assert close(call(values), eager(values), 1e-5)
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def precision_of_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def hooked_modules() -> Iterator[None]:
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, outputs: outputs * 2 if type(module) is nn.Linear else None
    )
    yield
    hook.remove()


AROUND: dict[str, tuple[Callable[[], object], Callable[[], Any]]] = {
    "inference mode": (torch.is_inference_mode_enabled, torch.inference_mode),
    "precision": (torch.get_float32_matmul_precision, precision_of_products),
    "attention": (
        torch.backends.cuda.math_sdp_enabled,
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
    ),
    "hooks of all modules": (lambda: 0, hooked_modules),
}


@pytest.mark.parametrize("kind", AROUND)
@pytest.mark.parametrize("hooked", [False, True])
@torch.no_grad()
def test_what_surrounds_a_call(
    kind: str, hooked: bool, exported_code: list[ExportedLibrary]
) -> None:
    read, around = AROUND[kind]
    usual = read()
    model = made(Model, lambda _: 1.0 if read() == usual else 2.0)
    interception = Interception("fp32", wait=True)
    if hooked:
        call = functools.partial(interception.outermost, model)
    else:
        fast = optimize(model, sample_input=values_of(0), wait=True)
        call = lambda args, _: fast(*args)  # noqa: E731 - called as the other
    for number in range(4):
        torch.testing.assert_close(call((values_of(number),), {}), model(values_of(number)))
    assert exported_code[0].calls > 2
    for number in (4, 5):
        with around():
            seen, expected = call((values_of(number),), {}), model(values_of(number))
        torch.testing.assert_close(seen, expected)
        torch.testing.assert_close(call((values_of(number),), {}), model(values_of(number)))


CALLS: dict[str, int] = {}


class Counting(nn.Module):
    """Counts its calls outside of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        CALLS["count"] = CALLS.get("count", 0) + 1
        return self.one(values) * CALLS["count"]


@torch.no_grad()
def test_a_model_that_counts_outside_of_itself_is_called_as_often_as_the_program_calls_it() -> None:
    model, eager = made(Counting), made(nn.Linear, WIDTH, WIDTH)
    eager.load_state_dict(model.one.state_dict())
    interception = Interception("fp32", wait=True)
    CALLS.clear()
    for number in range(1, 6):
        seen = interception.outermost(model, (values_of(number),), {})
        torch.testing.assert_close(seen, eager(values_of(number)) * number)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES)
