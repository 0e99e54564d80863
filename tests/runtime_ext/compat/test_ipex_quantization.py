# SPDX-License-Identifier: Apache-2.0
"""`ipex.quantization`: settings, recipes, the search, and bad input."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    QConfig,
    QConfigMapping,
)

import xruntime.compat.ipex as ipex
from xruntime.compat.ipex import replacements
from xruntime.compat.ipex.quantization import autotuning
from xruntime.compat.ipex.quantization.settings import new_recipe
from xruntime.errors import CompatibilityWarning, QuantizationError, RecipeError
from xruntime.quantization import QuantConf

STATIC = ipex.quantization.default_static_qconfig_mapping
DYNAMIC = ipex.quantization.default_dynamic_qconfig_mapping
PER_CHANNEL = PerChannelMinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_channel_symmetric
)


@pytest.fixture
def nothing_reported() -> None:
    replacements.reported.clear()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


def described(conf: QuantConf) -> tuple[Any, ...]:
    return conf.mode, conf.scheme, conf.observer, conf.activation_range


# Settings


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (HistogramObserver.with_args(reduce_range=False), ("static", "affine", "histogram", None)),
        (
            MinMaxObserver.with_args(qscheme=torch.per_tensor_symmetric, dtype=torch.qint8),
            ("static", "symmetric", "minmax", None),
        ),
        (
            MinMaxObserver.with_args(reduce_range=True, dtype=torch.quint8),
            ("static", "affine", "minmax", (0, 127)),
        ),
        (
            PlaceholderObserver.with_args(dtype=torch.float, compute_dtype=torch.quint8),
            ("dynamic", "affine", "histogram", None),
        ),
    ],
)
# torch warns that torch.ao.quantization will be removed.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Please use")
def test_a_qconfig_of_torch_becomes_a_recipe(activation: Any, expected: tuple[Any, ...]) -> None:
    qconfig = QConfig(activation=activation, weight=PER_CHANNEL)
    assert described(new_recipe(qconfig)) == expected
    assert described(new_recipe(QConfigMapping().set_global(qconfig))) == expected


def test_the_defaults() -> None:
    assert described(new_recipe(STATIC)) == ("static", "affine", "histogram", None)
    dynamic = new_recipe(ipex.quantization.default_dynamic_qconfig_mapping)
    assert described(dynamic) == ("dynamic", "affine", "histogram", None)
    assert new_recipe(STATIC) is not new_recipe(STATIC)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_settings_that_are_not_possible(nothing_reported: None) -> None:
    with pytest.raises(QuantizationError, match="configure is a str; expected is"):
        new_recipe("static")
    with pytest.raises(QuantizationError, match=r"expected is .* with a global QConfig"):
        new_recipe(QConfigMapping())
    moving = QConfig(activation=MovingAverageMinMaxObserver, weight=PER_CHANNEL)
    with pytest.raises(QuantizationError, match="by MovingAverageMinMaxObserver; possible are"):
        new_recipe(moving)
    per_tensor = QConfig(activation=MinMaxObserver, weight=MinMaxObserver)
    with pytest.warns(CompatibilityWarning, match="observes weights by MinMaxObserver"):
        new_recipe(per_tensor)


def test_example_inputs_are_given_once() -> None:
    with pytest.raises(QuantizationError, match="neither of example_inputs"):
        ipex.quantization.prepare(small_model(), STATIC)
    with pytest.raises(QuantizationError, match="both of example_inputs"):
        ipex.quantization.prepare(
            small_model(),
            STATIC,
            torch.rand(2, 8),
            example_kwarg_inputs={"input": torch.rand(2, 8)},
        )


def test_a_prepared_model_has_no_layers_and_names_the_original() -> None:
    model = small_model()
    prepared = ipex.quantization.prepare(model, STATIC, example_inputs=torch.rand(4, 8))
    with pytest.raises(TypeError, match=r"use prepared\.model\[0\]"):
        prepared[0]
    assert prepared.model is model


def test_what_was_not_prepared_is_not_converted() -> None:
    with pytest.raises(QuantizationError, match=r"convert takes what ipex\.quantization\.prepare"):
        ipex.quantization.convert(small_model())  # type: ignore[arg-type]
    with pytest.raises(QuantizationError, match=r"autotune takes a float model or what"):
        ipex.quantization.autotune(float, eval_func=float)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "inputs", "items"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 2), 3),
        ([torch.zeros(3, 2), torch.ones(3)], torch.zeros(3, 2), 3),
        (([torch.zeros(3, 2), torch.ones(3)], 1), (torch.zeros(3, 2), torch.ones(3)), 3),
        (({"ids": torch.zeros(2, 5)}, torch.ones(2)), {"ids": torch.zeros(2, 5)}, 2),
    ],
)
def test_a_batch_of_a_loader_may_have_a_label(batch: object, inputs: object, items: int) -> None:
    found = autotuning.inputs_of(batch)
    assert type(found) is type(inputs)
    torch.testing.assert_close(found, inputs)
    assert autotuning.item_count(found) == items


# With torchao


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(ids))) * mask


@pytest.mark.long
@pytest.mark.usefixtures("torchao")
class TestWithTorchao:
    @pytest.fixture
    def prepared(self) -> Any:
        return ipex.quantization.prepare(small_model(), STATIC, example_inputs=torch.rand(4, 8))

    @pytest.fixture
    def recipe(self, prepared: Any, tmp_path: Path) -> Path:
        """The recipe of a calibrated model."""
        prepared(torch.rand(4, 8))
        path = tmp_path / "conf.json"
        prepared.save_qconf_summary(str(path))
        return path

    def fresh(self) -> Any:
        return ipex.quantization.prepare(small_model(), STATIC, example_inputs=torch.rand(4, 8))

    def test_inplace_and_folding_are_reported_once(self, nothing_reported: None) -> None:
        model = small_model()
        before = copy.deepcopy(model.state_dict())
        given: dict[str, Any] = {"inplace": True, "bn_folding": False}
        with pytest.warns(CompatibilityWarning) as warned:
            ipex.quantization.prepare(model, STATIC, torch.rand(4, 8), **given)
        prepared = ipex.quantization.prepare(model, STATIC, torch.rand(4, 8), **given)
        assert [str(one.message).partition(":")[0] for one in warned] == [
            "prepare(inplace=True)",
            "prepare(bn_folding=False)",
        ]
        assert {one.filename for one in warned} == {__file__}
        assert prepared is not model
        assert model.state_dict().keys() == before.keys()

    def test_no_batch(self, prepared: Any, tmp_path: Path) -> None:
        with pytest.raises(QuantizationError, match="without a single batch"):
            ipex.quantization.convert(prepared)
        with pytest.raises(QuantizationError, match="without a single batch"):
            prepared.save_qconf_summary(tmp_path / "conf.json")
        assert not list(tmp_path.iterdir())
        # It is as before.
        prepared(torch.rand(4, 8))
        assert ipex.quantization.convert(prepared).conf.names("int8")

    def test_convert_leaves_the_prepared_model_as_it_is(self, prepared: Any) -> None:
        prepared(torch.rand(4, 8))
        narrow = ipex.quantization.convert(prepared)
        prepared(torch.rand(4, 8) * 9)
        wide = ipex.quantization.convert(prepared)
        scales = [module.conf.scales()["input_1"].scale for module in (narrow, wide)]
        assert scales[1] > scales[0]

    @pytest.mark.parametrize("calibrated", [False, True])
    def test_recipes_that_do_not_fit(self, recipe: Path, calibrated: bool) -> None:
        content = json.loads(recipe.read_text())
        content["operators"]["2"]["weight"] = [5, 6]
        wrong = recipe.with_name("wrong.json")
        wrong.write_text(json.dumps(content))
        prepared = self.fresh()
        if calibrated:
            prepared(torch.rand(4, 8))
        before = prepared.observed
        said = "another model .*'2' of Sequential is linear with a weight of 3 x 6"
        with pytest.raises(RecipeError, match=said):
            prepared.load_qconf_summary(qconf_summary=wrong)
        assert prepared.observed is before
        assert not before.finished
        prepared.load_qconf_summary(qconf_summary=recipe)
        assert ipex.quantization.convert(prepared).conf.names("int8") == ["0", "2"]

    def test_an_edited_recipe_after_the_calibration(self, prepared: Any, recipe: Path) -> None:
        content = json.loads(recipe.read_text())
        content["operators"]["0"]["precision"] = "float"
        recipe.write_text(json.dumps(content))
        prepared.load_qconf_summary(recipe)
        assert ipex.quantization.convert(prepared).conf.names("int8") == ["2"]

    @pytest.mark.parametrize("example", ["keywords", "positions"])
    def test_dynamic_quantization_of_any_length_called_either_way(self, example: str) -> None:
        model = Masked().eval()
        ids, mask = torch.rand(4, 5, 8), torch.ones(4, 5, 1)
        given: dict[str, Any] = (
            {"example_inputs": (ids, mask)}
            if example == "positions"
            else {"example_kwarg_inputs": {"mask": mask, "ids": ids}}
        )
        prepared = ipex.quantization.prepare(model, DYNAMIC, **given)
        converted: Any = ipex.quantization.convert(prepared)
        for length in (5, 9, 2):
            ids, mask = torch.rand(3, length, 8), torch.ones(3, length, 1)
            for outputs in (
                converted.eager(mask=mask, ids=ids),
                *([converted.eager(ids, mask=mask)] if example == "positions" else []),
            ):
                assert 0 < (outputs - model(ids, mask)).abs().max() < 0.05
        with pytest.raises(QuantizationError, match="is called with 1 argument"):
            converted.eager(ids)
        with pytest.raises(QuantizationError, match="and the keyword nask"):
            converted.eager(ids, nask=mask)

    def test_sizes_of_static_quantization_vary_where_they_are_named(self) -> None:
        batch = torch.randint(0, 9, (2, 5)).float()
        for shapes, fits in ((None, False), ("auto", True)):
            prepared = ipex.quantization.prepare(
                nn.Sequential(nn.Unflatten(1, (-1, 1)), nn.Linear(1, 3)).eval(),
                STATIC,
                batch,
                dynamic_shapes=shapes,
            )
            if fits:
                assert prepared(torch.zeros(2, 7)).shape == (2, 7, 3)
                continue
            with pytest.raises(QuantizationError, match=r"\(any, 5\) is expected"):
                prepared(torch.zeros(2, 7))

    def test_a_model_in_training_mode_is_quantized_in_eval_mode(
        self, nothing_reported: None
    ) -> None:
        model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout()).train()
        batch = torch.rand(4, 8)
        with pytest.warns(CompatibilityWarning, match="is in training mode: a copy in eval mode"):
            prepared = ipex.quantization.prepare(model, STATIC, example_inputs=batch)
        assert all(module.training for module in model.modules())
        assert model[1].num_batches_tracked == 0
        torch.testing.assert_close(prepared(batch), copy.deepcopy(model).eval()(batch))

    @pytest.mark.usefixtures("compiler")
    def test_dynamic_quantization_without_an_example(self, tmp_path: Path) -> None:
        model = small_model()
        prepared = ipex.quantization.prepare(model, DYNAMIC)
        with pytest.raises(
            QuantizationError, match=r"no example inputs.*call the prepared model once"
        ):
            prepared.save_qconf_summary(tmp_path / "conf.json")
        converted = ipex.quantization.convert(prepared)
        with torch.no_grad():
            for batch in (torch.rand(4, 8), torch.rand(2, 5, 8)[0]):
                assert 0 < (converted(batch) - model(batch)).abs().max() < 0.05
            fresh = ipex.quantization.convert(prepared)
            traced = torch.jit.freeze(torch.jit.trace(fresh, batch))
            assert torch.equal(traced(batch), converted(batch))
        # Called once, the prepared model has its example.
        torch.testing.assert_close(prepared(batch), model(batch))
        prepared.save_qconf_summary(tmp_path / "conf.json")
        assert QuantConf.load(tmp_path / "conf.json").names("int8") == ["0", "2"]

    def test_a_converted_module_can_be_copied_and_pickled(self, prepared: Any) -> None:
        batch = torch.rand(4, 8)
        prepared(batch)
        converted = ipex.quantization.convert(prepared)
        expected = converted.eager(batch)
        for made in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
            assert type(made) is type(converted)
            assert made is not converted
            assert made.conf.plain() == converted.conf.plain()
            assert torch.equal(made.eager(batch), expected)

    def test_autotune_s_bad_input(self, prepared: Any, nothing_reported: None) -> None:
        tune = ipex.quantization.autotune
        with pytest.raises(QuantizationError, match="eval_func is None"):
            tune(prepared, [torch.rand(4, 8)])
        with pytest.raises(
            QuantizationError, match=r"accuracy_criterion is {'f1': 1}: expected is"
        ):
            tune(prepared, [torch.rand(4, 8)], eval_func=float, accuracy_criterion={"f1": 1})
        with pytest.raises(QuantizationError, match="calib_dataloader or calib_func"):
            tune(prepared, eval_func=float)
        with (
            pytest.warns(CompatibilityWarning, match="op_type_dict"),
            pytest.raises(QuantizationError, match="not a single batch"),
        ):
            tune(prepared, [], eval_func=float, op_type_dict={"linear": {}})

    @pytest.mark.usefixtures("compiler")
    def test_both_orders_of_autotune_s_arguments(self, prepared: Any) -> None:
        data = [(torch.rand(4, 8), torch.ones(4)) for _ in range(3)]
        seen: list[nn.Module] = []

        def evaluate(model: nn.Module) -> float:
            seen.append(model)
            return 1.0

        tune = ipex.quantization.autotune
        criterion = {"absolute": 0.5}
        for tuned in (
            # Up to release 2.0, of a prepared model.
            tune(prepared, data, evaluate, [8], criterion, 0),
            tune(prepared_model=prepared, calib_dataloader=data, eval_func=evaluate),
            # From 2.1 on, of a float model.
            tune(small_model(), data, None, evaluate, None, None, [8], criterion),
        ):
            assert ipex.quantization.convert(tuned).conf.names("int8") == ["0", "2"]
        assert len(seen) >= 9


@pytest.mark.full
@pytest.mark.usefixtures("compiler", "torchao")
def test_autotune_turns_the_harmful_operator_back() -> None:
    model = small_model()
    with torch.no_grad():
        # One large weight in each row: 8 bits of its scale leave nothing of the others.
        model[0].weight[:, 0] += 1000.0
    data = [torch.rand(5, 8) for _ in range(3)]
    for batch in data:
        batch[:, 0] = 0
    expected = [model(batch) for batch in data]

    def accuracy(tuned: nn.Module) -> float:
        with torch.no_grad():
            errors = [tuned(b).sub(e).abs().max() for b, e in zip(data, expected, strict=True)]
        return 1.0 - float(max(errors))

    def calibrate(tuned: nn.Module) -> None:
        for batch in data:
            tuned(batch)

    prepared = ipex.quantization.prepare(model, STATIC, example_inputs=data[0])
    tuned = ipex.quantization.autotune(
        prepared,
        calib_func=calibrate,
        eval_func=accuracy,
        sampling_sizes=[15],
        accuracy_criterion={"absolute": 0.02},
    )
    converted = ipex.quantization.convert(tuned)
    assert converted.conf.names("float") == ["0"]
    assert accuracy(converted) >= 0.98
