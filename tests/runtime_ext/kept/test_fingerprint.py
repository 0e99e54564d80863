# SPDX-License-Identifier: Apache-2.0
"""Equal models have one fingerprint in any process; whatever changes what a model computes changes it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.runtime_ext.interpreters import python
from torch import nn
from torch.nn import functional

from xruntime.kept.fingerprint import changed_variable, fingerprint, variables_of
from xruntime.kept.weights_digest import weights_digest

SOURCE = """
import functools
import torch
from torch import nn

FACTOR = 2.0

def helper(values):
    return values * FACTOR

class Model(nn.Module):
    def __init__(self, activation=torch.relu):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.activation = activation
        self.rate = 0.5
        self.place = PLACE
        self.settings = {"sizes": [1, 2]}
        self.eval()

    def forward(self, values):
        return self.activation(helper(self.norm(self.linear(values)))) * self.rate

def model():
    torch.manual_seed(0)
    return Model()
"""


def module_of(source: str, place: str = "/a") -> dict[str, Any]:
    space: dict[str, Any] = {"PLACE": place, "__name__": "__main__"}
    exec(compile(source, f"{place}.py", "exec"), space)
    return space


def name_of(model: nn.Module, *others: str) -> str:
    return fingerprint(model, type(model).forward, *others).digits


def usual() -> Any:
    return module_of(SOURCE)["model"]()


def test_equal_models_have_one_fingerprint() -> None:
    expected = name_of(usual())
    assert len(expected) == 32
    assert name_of(copy.deepcopy(usual())) == expected
    # Where the source stands, and where the model was loaded from, do not matter.
    assert name_of(module_of("\n\n" + SOURCE, "/b")["model"]()) == expected


def test_the_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    end = (
        "from xruntime.kept.fingerprint import fingerprint\n"
        "print(fingerprint(model(), Model.forward).digits, end='')\n"
    )
    path.write_text(f"PLACE = {str(path)!r}\n{SOURCE}{end}")
    assert python(path) == name_of(usual())


def _flip_one_bit(model: Any) -> None:
    with torch.no_grad():
        model.linear.weight.view(torch.int32)[3, 3] ^= 1


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one bit of a weight": _flip_one_bit,
    "a buffer": lambda model: model.norm.running_mean.add_(1),
    "an attribute": _set("rate", 0.25),
    "an attribute of a part": lambda model: setattr(model.norm, "eps", 1e-4),
    "a value in a dict": lambda model: model.settings["sizes"].append(3),
    "a function of torch": _set("activation", torch.sigmoid),
    "another one of torch": _set("activation", functional.silu),
    "a layout": lambda model: setattr(
        model.linear.weight, "data", model.linear.weight.data.t().contiguous().t()
    ),
    "a dtype": lambda model: model.linear.bfloat16(),
    "a part": _set("linear", nn.Identity()),
    "training": lambda model: model.norm.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_models_have_another(change: str) -> None:
    model = usual()
    CHANGES[change](model)
    assert name_of(model) != name_of(usual())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 2.0", "FACTOR = 2.5"),
        ("values * FACTOR", "values + FACTOR"),
        ("* self.rate", "- self.rate"),
        ("return values * FACTOR", "inner = lambda x: x * FACTOR\n    return inner(values)"),
    ],
)
def test_changed_code_has_another(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    changed = module_of(SOURCE.replace(old, new))["model"]()
    assert name_of(changed) != name_of(usual())


def test_functions_that_an_attribute_or_a_closure_holds_count() -> None:
    def made(factor: float) -> Callable[[Any], Any]:
        return lambda values: values * factor

    names = set()
    for activation in (made(2.0), made(3.0), lambda values: values, None):
        model = usual()
        model.activation = activation
        names.add(name_of(model))
    assert len(names) == 4


class Temperature:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return values / self.value

    def divided(self, values: torch.Tensor) -> torch.Tensor:
        return values / self.value


def enclosed(held: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: held(values) + 1


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


@pytest.mark.parametrize(
    "holding",
    [
        Temperature,
        Slotted,
        lambda value: Temperature(value).divided,
        lambda value: functools.partial(Temperature.divided, Temperature(value)),
        lambda value: enclosed(Temperature(value)),
        lambda value: [(Slotted(value),)],
    ],
)
def test_values_inside_objects_count(holding: Callable[[float], Any]) -> None:
    names = []
    for value in (2.0, 2.2, 2.0):
        model = usual()
        model.held = holding(value)
        names.append(name_of(model))
    assert names[0] == names[2] != names[1]


def test_values_inside_global_objects_count_and_are_watched() -> None:
    names = []
    for value in (2.0, 2.2):
        space = module_of(SOURCE.replace("values * FACTOR", "values * FACTOR.value"))
        space["FACTOR"] = Slotted(value)
        model = space["model"]()
        found = fingerprint(model, type(model).forward)
        names.append(found.digits)
        space["FACTOR"].value = 3.0
        assert changed_variable(found.read) == "FACTOR"
    assert names[0] != names[1]


def test_global_variables_are_watched() -> None:
    space = module_of(SOURCE)
    model = space["model"]()
    found = fingerprint(model, type(model).forward)
    assert changed_variable(found.read) is None
    space["FACTOR"] = float("2.0")  # an equal value
    assert changed_variable(found.read) is None
    space["FACTOR"] = 3.0
    assert changed_variable(found.read) == "FACTOR"
    space["FACTOR"] = 2.0
    space["helper"] = lambda values: values
    assert changed_variable(found.read) == "helper"


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ("{'scale': 2.0}", "FACTOR['scale'] = 3.0"),
        ("[2.0]", "FACTOR.append(3.0)"),
        ("type('Settings', (), {})()", "FACTOR.scale = 3.0"),
    ],
)
def test_what_global_containers_and_objects_hold_is_watched(value: str, change: str) -> None:
    source = SOURCE.replace("FACTOR = 2.0", f"FACTOR = {value}")
    space = module_of(source)
    model = space["model"]()
    found = fingerprint(model, type(model).forward)
    assert changed_variable(found.read) is None
    exec(change, space)
    assert changed_variable(found.read) == "FACTOR"
    if "(" not in value:  # and it is part of the name
        assert fingerprint(model, type(model).forward).digits != found.digits


class Pair(NamedTuple):
    factor: float = 2.0


@dataclasses.dataclass
class Settings:
    factor: float = 2.0


@pytest.mark.parametrize("kind", [Pair, Settings])
def test_named_tuples_and_dataclasses_are_followed(kind: Any) -> None:
    model = usual()
    model.settings = kind()
    assert fingerprint(model, type(model).forward).unfollowed is None


def test_factories_of_dicts_count() -> None:
    models = [usual(), usual()]
    models[0].table = collections.defaultdict(lambda: 2.0)
    models[1].table = collections.defaultdict(lambda: 3.0)
    assert name_of(models[0]) != name_of(models[1])


def by_text(net: nn.Module, values: Any) -> Any:
    return getattr(net, "outputs_of")(values)  # noqa: B009


def by_space(net: nn.Module, values: Any) -> Any:
    return values * globals()["outputs_of"]


def by_module(net: nn.Module, values: Any) -> Any:
    from tests.runtime_ext.kept import test_fingerprint

    return values * getattr(test_fingerprint, "outputs_of")  # noqa: B009


@pytest.mark.parametrize(
    ("forward", "changed"),
    [
        (lambda net, values: net.outputs_of(values), None),
        (by_text, None),
        (by_space, "outputs_of"),
        (by_module, "outputs_of"),
    ],
)
def test_a_global_variable_with_the_name_of_an_attribute_is_read_where_code_looks_it_up(
    forward: Any, changed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "outputs_of", 1)
    net = nn.Module()
    read = variables_of(net, forward)
    globals()["outputs_of"] = 2
    assert changed_variable(read) == changed


def test_other_facts_and_tied_weights_count() -> None:
    assert name_of(usual(), "4 threads") != name_of(usual(), "8 threads")
    tied, untied = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    untied.load_state_dict({name: torch.ones_like(it) for name, it in tied.state_dict().items()})
    tied.load_state_dict(untied.state_dict())
    assert name_of(tied) == name_of(untied)
    tied[1].weight = tied[0].weight
    assert name_of(tied) != name_of(untied)


def test_large_weights_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(1000)
    monkeypatch.setattr("xruntime.kept.weights_digest.CHUNK_BYTES", 128)
    before = weights_digest([weight])
    for at in (0, 31, 32, 999):
        changed = weight.clone()
        changed[at] += 1
        assert weights_digest([changed]) != before
    assert weights_digest([weight.clone()]) == before
    # Elements between gaps are no part of a view.
    wide = torch.randn(10, 2)
    view = weights_digest([wide[:, 0]])
    wide[:, 1] += 1
    assert weights_digest([wide[:, 0]]) == view
