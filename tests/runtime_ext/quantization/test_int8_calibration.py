# SPDX-License-Identifier: Apache-2.0
"""Calibration and conversion, without compiling: names, scales, numbers, errors."""

from __future__ import annotations

import copy
import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.golden import Golden
from tests.runtime_ext.aoti.archives import rewritten
from tests.runtime_ext.interpreters import python
from tests.runtime_ext.quantization.int8_models import (
    Branches,
    calibrated,
    images,
    residual,
)
from tests.runtime_ext.tiny_models import Counting
from torch import Tensor, nn

from xruntime.errors import (
    QuantizationError,
    RecipeError,
    UnobservedError,
)
from xruntime.quantization import (
    Observed,
    QuantConf,
    QuantizedModule,
    calibrate,
    convert,
    load,
    prepare,
    save,
)
from xruntime.quantization.serialization import EXTRA_FILE

pytestmark = pytest.mark.usefixtures("torchao")

NAMES = [
    *("first", "second", "add", "pool", "adaptive_avg_pool2d", "flatten"),
    *("again", "again@1", "head"),
]


@pytest.fixture(scope="module")
def observed(torchao: None) -> Observed:
    """A calibrated `residual()`, for tests that do not change it."""
    return calibrated(residual())


@pytest.fixture(scope="module")
def prepared(torchao: None) -> Observed:
    """`residual()` before its first batch, for calls that are refused."""
    return prepare(residual(), QuantConf(), images(2))


@pytest.fixture(scope="module")
def module(observed: Observed) -> QuantizedModule:
    return convert(observed)


def test_operators_have_stable_names_and_each_call_its_own(observed: Observed) -> None:
    conf = observed.conf
    assert list(conf.operators) == NAMES
    assert conf.names("int8") == NAMES
    assert conf.model == "Residual"
    assert conf.operators["first"].kind == "conv2d"
    assert conf.operators["first"].weight == (8, 3, 3, 3)
    assert all(operator.inputs for operator in conf.operators.values())
    again = QuantConf()
    calibrated(residual(), again)
    assert again.plain() == conf.plain()


def test_the_model_is_not_changed() -> None:
    model = residual()
    before = copy.deepcopy(model.state_dict())
    convert(calibrated(model))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(module._forward_hooks for module in model.modules())
    assert not model.training


def test_a_model_with_state_is_refused_and_not_changed() -> None:
    model, values = Counting(), torch.randn(3, 4)
    text = "a call of Counting changes its buffer calls, and an INT8 module has no state"
    observed = prepare(model, QuantConf(), values)
    with pytest.raises(QuantizationError, match=text):
        observed(values)
    assert model.calls == 0


def test_operators_with_computed_weights_stay_float() -> None:
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model, values = nn.Sequential(weighted, nn.ReLU(), nn.Linear(4, 4)).eval(), torch.randn(3, 4)
    with calibrate(model, QuantConf(), values) as observed:
        torch.testing.assert_close(observed(values), model(values))
    assert list(observed.conf.operators) == ["2"]
    torch.testing.assert_close(convert(observed).eager(values), model(values), rtol=0, atol=0.2)


class Positions(nn.Module):
    """Computes with integers before its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.eval()

    def forward(self, words: Tensor) -> Tensor:
        given = words.ne(0).int()
        return self.layer(self.table((given.cumsum(1).int() * given + given).long()))


def test_operators_on_integers_are_not_observed() -> None:
    model, words = Positions(), torch.arange(8).view(2, 4)
    with calibrate(model, QuantConf(), words) as observed:
        torch.testing.assert_close(observed(words), model(words))
    assert list(observed.conf.operators) == ["layer"]
    torch.testing.assert_close(convert(observed).eager(words), model(words), rtol=0, atol=0.1)


def test_the_observed_module_computes_what_the_model_does() -> None:
    model = residual()
    observed = prepare(model, QuantConf(), images(2))
    with torch.no_grad():
        torch.testing.assert_close(observed(images(5)), model(images(5)), rtol=1e-4, atol=1e-5)
    assert observed.batches == 1


@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_numbers_equal_a_reference_in_fp64(scheme: str) -> None:
    """One linear layer, by the formulas: integers are rounded and clamped, and everything else is exact."""
    torch.manual_seed(1)
    linear = nn.Linear(7, 5).eval()
    conf = QuantConf(scheme=scheme, observer="minmax", activation_range=(0, 255))
    values = torch.randn(11, 7)
    with calibrate(linear, conf, values) as observed:
        observed(values)
    (found,) = conf.operators["linear"].inputs
    low, high = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
    if scheme == "symmetric":
        assert found.scale == pytest.approx(2 * max(-low, high) / 255, rel=1e-6)
        assert found.zero_point == 127
    else:
        assert found.scale == pytest.approx((high - low) / 255, rel=1e-6)
        assert found.zero_point == round(-low / found.scale)
    integers = (values / found.scale).round().add(found.zero_point).clamp(0, 255)
    activations = (integers.double() - found.zero_point) * found.scale
    weight = linear.weight.detach()
    step = weight.abs().amax(1, keepdim=True) / 127.5
    weights = (weight / step).round().clamp(-128, 127).double() * step.double()
    expected = activations @ weights.T + linear.bias.detach().double()
    seen = convert(observed).eager(values)
    torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=1e-5)


def test_int8_is_close_to_float_and_holds_int8_weights_only(
    module: QuantizedModule,
) -> None:
    model = residual()
    with torch.no_grad():
        expected = model(images(32))
    seen = module.eager(images(32))
    assert not torch.equal(seen, expected)
    error = ((seen - expected).norm() / expected.norm()).item()
    assert error < 0.05
    weights = [one for one in module.buffers() if one.dtype == torch.int8]
    # A layer that is called twice has its weight twice.
    assert [tuple(one.shape) for one in weights][:2] == [(8, 3, 3, 3), (8, 8, 3, 3)]
    assert all(one.dim() == 1 for one in module.parameters())


def test_operators_that_are_kept_float_compute_in_float() -> None:
    model = residual()
    conf = QuantConf(keep_float=NAMES)
    module = convert(calibrated(model, conf))
    with torch.no_grad():
        torch.testing.assert_close(module.eager(images(9)), model(images(9)), rtol=1e-4, atol=1e-5)
    assert conf.names("float") == NAMES
    assert not any(operator.inputs for operator in conf.operators.values())


def test_a_recipe_with_scales_needs_no_batch(
    tmp_path: Path, observed: Observed, module: QuantizedModule
) -> None:
    model = residual()
    observed.conf.save(tmp_path / "recipe.json")
    conf = QuantConf.load(tmp_path / "recipe.json")
    with calibrate(model, conf, images(2)) as again:
        pass
    assert again.batches == 0
    assert torch.equal(convert(again).eager(images(7)), module.eager(images(7)))
    assert conf.plain() == observed.conf.plain()


def test_a_changed_recipe_is_converted_as_it_is(module: QuantizedModule) -> None:
    observed, everything = calibrated(residual()), module
    observed.conf.keep_float("head", "again", "again@1")
    fewer = convert(observed)
    count = [sum(one.dtype == torch.int8 for one in each.buffers()) for each in (everything, fewer)]
    assert count[0] - count[1] >= 2
    observed.conf.use_int8("head", "again", "again@1")
    assert torch.equal(convert(observed).eager(images(3)), everything.eager(images(3)))
    scale = observed.conf.operators["first"].inputs[0]
    observed.conf.operators["first"] = observed.conf.operators["first"]._replace(
        inputs=(scale._replace(scale=scale.scale * 8),)
    )
    assert not torch.equal(convert(observed).eager(images(3)), everything.eager(images(3)))


def test_changes_of_a_recipe_are_undone_without_a_calibration() -> None:
    """The addition is quantized only after a convolution, so with both in float it reads nothing."""
    model = Branches()
    observed = calibrated(model)
    before = observed.conf.plain()
    observed.conf.keep_float("left", "right")
    conf = convert(observed).conf
    conf.use_int8("left", "right")
    with calibrate(model, conf, images(2)) as again:
        pass
    assert convert(again).conf.plain() == before


def test_scales_of_operators_in_float_are_those_of_the_last_calibration() -> None:
    model = Branches()
    conf = calibrated(model).conf.keep_float("left")
    before = conf.scales()["values"]
    with calibrate(model, conf, images(2)) as observed:
        observed(images(16) * 3)
    assert conf.scales()["values"] != before
    conf.use_int8("left")
    with calibrate(model, conf, images(2)) as observed:
        pass
    assert convert(observed).conf.names("int8") == ["left", "right", "add"]


def test_a_conversion_does_not_end_the_calibration() -> None:
    observed = prepare(residual(), QuantConf(observer="minmax"), images(2))
    observed(images(16))
    first = convert(observed)
    assert observed.conf.plain() == QuantConf(observer="minmax").plain()
    observed(images(16) * 3)
    assert observed.batches == 2
    second = convert(observed)
    scales = [module.conf.scales()["images"].scale for module in (first, second)]
    assert scales[1] > scales[0]
    observed.finish()
    assert observed.conf.plain() == second.conf.plain()


def test_a_recipe_that_quantizes_nothing_is_reported(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(Branches(), QuantConf("dynamic"), images(2))
    prepare(nn.ReLU().eval(), QuantConf(), images(2))
    # The addition alone is not quantized.
    prepare(Branches(), QuantConf(keep_float=["left", "right"]), images(2))
    records = [record for record in caplog.records if record.name == "xruntime"]
    golden([f"{record.levelname}: {record.getMessage()}" for record in records])


def test_a_fusion_that_was_not_observed_needs_another_calibration() -> None:
    """The sum is fused with `right` and reads `left`; with `right` in float it would be the reverse."""
    model = Branches()
    observed = calibrated(model)
    (read,) = observed.conf.operators["add"].inputs
    observed.conf.keep_float("left")
    with pytest.raises(UnobservedError, match=r"no scale is known for the input 'conv2d' of add"):
        convert(observed)
    assert read.value == "conv2d_1"
    again = convert(calibrated(model, observed.conf))
    assert again.conf.names("float") == ["left"]
    assert again.conf.operators["add"].inputs[0].value == "conv2d"


def test_mode_dynamic_needs_no_batch_and_quantizes_linear_layers() -> None:
    model = residual()
    conf = QuantConf("dynamic")
    with calibrate(model, conf, images(2)) as observed:
        pass
    assert conf.names("int8") == ["again", "again@1", "head"]
    module = convert(observed)
    with torch.no_grad():
        expected = model(images(8))
    assert not torch.equal(module.eager(images(8)), expected)
    torch.testing.assert_close(module.eager(images(8)), expected, rtol=0.1, atol=0.02)


class Shifted(nn.Linear):
    def forward(self, values: Tensor, shift: Tensor) -> Tensor:
        return super().forward(values) + shift


def test_one_example_is_enough_for_any_batch_also_beside_a_number() -> None:
    module = convert(calibrated(residual(), example=images(1)))
    assert [module.eager(images(count)).shape for count in (7, 1)] == [(7, 5), (1, 5)]
    shift = torch.tensor(2.0)
    with calibrate(Shifted(4, 3).eval(), QuantConf(), (torch.ones(1, 4), shift)) as observed:
        observed(torch.randn(5, 4), shift)
    assert convert(observed).eager(torch.ones(7, 4), shift).shape == (7, 3)


def test_wrong_calls_are_refused(golden: Golden, prepared: Observed) -> None:
    golden.errors(
        lambda: prepared(images(2).double()),
        lambda: prepared(images(2)[..., 1:]),
        lambda: prepared(images(2), 3),
        lambda: prepared(pictures=images(2)),
        lambda: prepared("two"),
    )
    assert prepared.batches == 0


def test_calibration_without_a_batch_is_an_error_and_changes_nothing(golden: Golden) -> None:
    conf = QuantConf()
    observed = prepare(residual(), conf, images(2))

    def calibrate_without_a_batch() -> None:
        nonlocal observed
        with calibrate(residual(), conf, images(2)) as observed:
            pass

    golden.errors(lambda: convert(observed), calibrate_without_a_batch, lambda: convert(observed))
    assert conf.plain() == QuantConf().plain()


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_batches_with_nan_or_infinity_are_refused(golden: Golden, value: str) -> None:
    conf = QuantConf(observer="minmax")
    observed = prepare(residual(), conf, images(2))
    observed(images(2).fill_(float(value)))
    golden.errors(lambda: convert(observed), hide=r"(?<=the tensor ')\w+")
    assert conf.plain() == QuantConf(observer="minmax").plain()


def test_a_batch_that_fails_is_named() -> None:
    observed = prepare(residual(), QuantConf(), images(2))
    with pytest.raises(QuantizationError, match=r"Residual cannot be calibrated with this batch"):
        observed(images(2).fill_(float("nan")))
    assert observed.batches == 0


def test_an_error_in_the_block_leaves_the_recipe_alone() -> None:
    conf = QuantConf()

    def fails_after_a_batch() -> None:
        with calibrate(residual(), conf, images(2)) as observed:
            observed(images(4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_after_a_batch()
    assert conf.plain() == QuantConf().plain()


def test_the_calibration_ends_with_the_block(golden: Golden, observed: Observed) -> None:
    golden.errors(lambda: observed(images(2)))


def test_models_that_cannot_be_quantized_are_refused(golden: Golden) -> None:
    conf = QuantConf()
    golden.errors(
        lambda: prepare(residual().train(), conf, images(2)),
        lambda: prepare(residual().bfloat16(), conf, images(2).bfloat16()),
        lambda: prepare(residual(), conf, "images"),
        lambda: prepare(residual(), conf, images(2)[:, :2]),
        lambda: prepare(residual(), {}, images(2)),
        hide=r"(?<=by torch.export)(?s:.*?)(?=\nQuant|$)",
    )
    assert conf.plain() == QuantConf().plain()


def test_recipes_that_do_not_fit_are_refused(golden: Golden, observed: Observed) -> None:
    from xruntime.quantization.quantizer import IS_ARM

    wider = residual()
    wider.head = nn.Linear(8, 6).eval()
    golden.errors(
        lambda: prepare(residual(), QuantConf(keep_float=["heads"]), images(2)),
        lambda: prepare(Branches(), observed.conf.copy(), images(2)),
        lambda: prepare(wider, observed.conf.copy(), images(2)),
    )
    conf = QuantConf(activation_range=(0, 255) if IS_ARM else (-128, 127))
    with pytest.raises(RecipeError, match=r"this machine's kernels take"):
        prepare(residual(), conf, images(2))


@pytest.mark.parametrize("isa", ["AVX2", "avx512_core"])
def test_a_range_that_saturates_without_vnni_is_warned_of(
    isa: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """oneDNN may be kept from VNNI, on a CPU that has it."""
    from xruntime.quantization import quantizer

    monkeypatch.setattr(quantizer, "IS_ARM", False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert quantizer.machine_range() == (0, 127)
    quantizer.check_range(QuantConf(activation_range=(0, 127)))
    assert not caplog.messages
    quantizer.check_range(QuantConf(activation_range=(0, 255)))
    assert "sums may saturate: [0, 127] is exact" in caplog.text


@pytest.mark.long
def test_a_file_needs_torch_and_torchao_alone(tmp_path: Path, module: QuantizedModule) -> None:
    save(module, tmp_path / "model.pt2")
    torch.save((images(3), module.eager(images(3))), tmp_path / "expected.pt")
    program = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xruntime", "xlaunch", "xtune"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import torch
import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer

model = torch.export.load(sys.argv[1]).module()
images, expected = torch.load(sys.argv[2])
with torch.inference_mode():
    assert torch.equal(model(images), expected)
assert not {"xruntime", "xlaunch"} & set(sys.modules)
print("equal")
"""
    assert python("-c", program, tmp_path / "model.pt2", tmp_path / "expected.pt") == "equal\n"


def test_a_file_is_loaded_with_its_recipe_and_checks(
    tmp_path: Path, module: QuantizedModule
) -> None:
    save(module, tmp_path / "model.pt2")
    loaded = load(tmp_path / "model.pt2")
    assert torch.equal(loaded.eager(images(3)), module.eager(images(3)))
    assert loaded.conf.plain() == module.conf.plain()
    with pytest.raises(QuantizationError, match=r"images is torch.float64"):
        loaded(images(2).double())
    # It can be saved again.
    save(loaded, tmp_path / "again.pt2")
    assert torch.equal(load(tmp_path / "again.pt2").eager(images(3)), module.eager(images(3)))


def test_files_that_are_no_int8_modules_are_refused(
    golden: Golden, tmp_path: Path, module: QuantizedModule
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_bytes(b"nothing")
    # torch seeks to a place before its beginning
    (tmp_path / "program").write_bytes(b"import torch\n" * 1000)
    torch.export.save(torch.export.export(residual(), (images(2),)), tmp_path / "exported.pt2")
    save(module, tmp_path / "model.pt2")

    def newer(name: str, content: bytes) -> bytes:
        if not name.endswith(EXTRA_FILE):
            return content
        return json.dumps(json.loads(content) | {"schema_version": 2}).encode()

    rewritten(tmp_path / "model.pt2", tmp_path / "newer.pt2", newer)
    names = ("absent", "pipe", "text", "program", "exported.pt2", "newer.pt2")
    golden.errors(
        *[partial(load, tmp_path / name) for name in names],
        lambda: save(residual(), tmp_path / "model.pt2"),
        lambda: save(module, tmp_path / "missing" / "model.pt2"),
        hide=r"(?<=that torch ).*",
    )


def test_an_int8_module_cannot_be_changed(golden: Golden, module: QuantizedModule) -> None:
    assert module.eval() is module
    golden.errors(
        module.train,
        module.double,
        lambda: module.load_state_dict({}),
        lambda: copy.deepcopy(module),
    )


@pytest.mark.long
def test_without_torchao_or_a_part_of_it_the_error_says_what_to_install() -> None:
    program = """
import sys

class Blocked:
    name = "torchao"
    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=self.name)

sys.meta_path.insert(0, Blocked())
import torch
from xruntime.quantization import QuantConf, calibrate, load

for Blocked.name, call in (
    ("torchao", lambda: calibrate(torch.nn.Linear(2, 2).eval(), QuantConf(), torch.ones(2, 2)).__enter__()),
    ("torchao", lambda: load("model.pt2")),
    ("torchao.quantization.pt2e.quantizer", lambda: load("model.pt2")),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
    out = python("-c", program)
    line = "QuantizationError INT8 needs torchao, which is not installed: pip install 'torchao>=0.18'\n"
    absent = out.removeprefix(line * 2)
    assert absent != out
    assert absent.startswith("QuantizationError torchao ")
    assert "cannot be imported with torch" in absent
    assert "ModuleNotFoundError: No module named 'torchao.quantization.pt2e.quantizer" in absent


@pytest.mark.long
def test_other_sizes_than_calibrated_are_refused_with_the_remedy_which_works():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    small, large = torch.rand(2, 3, 32, 32), torch.rand(2, 3, 40, 40)
    for shapes in (None, "auto"):
        observed = prepare(model, QuantConf(), small, dynamic_shapes=shapes)
        observed(small)
        converted = convert(observed)
        if shapes is None:
            with pytest.raises(QuantizationError, match="give dynamic_shapes='auto' to"):
                converted(large)
        else:
            assert converted(large).shape == (2, 4)
