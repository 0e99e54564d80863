# SPDX-License-Identifier: Apache-2.0
"""The recipe's file and its errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runtime_ext.interpreters import python

from xruntime.errors import RecipeError
from xruntime.quantization import Operator, QuantConf, Scale

LINEAR = Operator("linear", "int8", (10, 20), (Scale(0.1, 3, "relu"),))
POOL = Operator("max_pool2d", "int8", (), (Scale(0.1, 3, "relu"),))


def filled() -> QuantConf:
    conf = QuantConf(observer="minmax", activation_range=(0, 127))
    conf.model = "Net"
    conf.operators = {"pool": POOL, "head": LINEAR, "fc": LINEAR._replace(precision="float")}
    return conf


def test_a_recipe_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    filled().save(path)
    read = QuantConf.load(path)
    assert read.plain() == filled().plain()
    assert read.operators["fc"] == Operator("linear", "float", (10, 20), (Scale(0.1, 3, "relu"),))
    assert (read.mode, read.observer, read.activation_range) == ("static", "minmax", (0, 127))
    lines = path.read_text().splitlines()
    assert sum('"head"' in line and '"linear"' in line for line in lines) == 1


def test_a_copy_is_independent() -> None:
    conf = filled()
    conf.copy().keep_float("head")
    assert conf.names("int8") == ["pool", "head"]
    assert conf.names("float") == ["fc"]


def test_a_part_written_by_hand_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text('{"schema_version": 1, "operators": {"fc": {"precision": "float"}}}')
    conf = QuantConf.load(path)
    assert conf.names("float") == ["fc"]
    assert conf.plain() == QuantConf(keep_float="fc").plain()


def changed(**changes: Any) -> Any:
    return filled().plain() | changes


def with_operator(**entry: Any) -> Any:
    return changed(operators={"fc": entry})


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ([], "recipe.json is []; expected is an object"),
        ({}, "schema_version is None, and this xruntime reads 1"),
        (changed(schema_version=2), "schema_version is 2, and this xruntime reads 1"),
        (changed(schema_version="1"), "schema_version is '1'"),
        (changed(mod="static"), "there is no key 'mod'"),
        (changed(mode="fast"), "mode is 'fast': allowed are 'static', 'dynamic'"),
        (changed(model=3), "model is 3; expected is text"),
        (changed(operators=[]), "operators is []; expected is an object"),
        (changed(activations={"scheme": "odd"}), "scheme is 'odd': allowed are 'affine', 'symm"),
        (changed(activations={"range": [0, 100]}), "range is (0, 100); allowed are [0, 255]"),
        (changed(activations={"range": "all"}), "range is 'all'; allowed are [0, 255]"),
        (changed(activations={"bits": 8}), "activations: there is no key 'bits'"),
        (with_operator(precision="int4"), "operator 'fc': precision is 'int4'"),
        (with_operator(weight=["a"]), "operator 'fc': weight is ['a']"),
        (with_operator(inputs=[{"scale": 0, "zero_point": 0}]), "scale is 0; expected is a numb"),
        (with_operator(inputs=[{"scale": "x", "zero_point": 0}]), "scale is 'x'"),
        (with_operator(inputs=[{"scale": 1e999, "zero_point": 0}]), "scale is inf"),
        (with_operator(inputs=[{"scale": True, "zero_point": 0}]), "scale is True"),
        (with_operator(inputs=[{"scale": 1, "zero_point": 256}]), "zero_point is 256"),
        (with_operator(inputs=[{"scale": 1, "zero_point": 0.5}]), "zero_point is 0.5"),
        (with_operator(inputs=[3]), "operator 'fc', inputs is 3; expected is an object"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, plain: Any, text: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(RecipeError) as caught:
        QuantConf.load(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    with pytest.raises(RecipeError, match=r"cannot be read: No such file"):
        QuantConf.load(path)
    os.mkfifo(path)
    with pytest.raises(RecipeError, match=r"cannot be read: it is a named pipe"):
        QuantConf.load(path)
    path.unlink()
    path.write_bytes(b"\xff{")
    with pytest.raises(RecipeError, match=r"is not JSON"):
        QuantConf.load(path)
    with pytest.raises(RecipeError, match=r"cannot be written: "):
        filled().save(tmp_path / "missing" / "recipe.json")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "both"}, "mode is 'both'"),
        ({"scheme": None}, "scheme is None"),
        ({"observer": "max"}, "observer is 'max'"),
        ({"activation_range": (0, 15)}, "activation_range is (0, 15)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        QuantConf(**options)
    assert text in str(caught.value)


def test_unknown_operators_are_named_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"Net has no operator 'haed'; did you mean 'head'\?"):
        filled().keep_float("haed")
    assert filled().names("float") == ["fc"]
    actual = {"pool": POOL, "head": LINEAR}
    with pytest.raises(
        RecipeError, match=r"was made for Net and lists an operator 'fc', which Oth"
    ):
        filled().check_operators(actual, "Other")
    with pytest.raises(RecipeError, match=r"lists an operator 'poool', .*did you mean 'pool'\?"):
        QuantConf(keep_float=["poool"]).check_operators(actual, "Other")


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (
            LINEAR._replace(weight=(10, 30)),
            "'fc' of Other is linear with a weight of 10 x 30, and",
        ),
        (POOL, "'fc' of Other is max_pool2d, and in the recipe it is linear with a weight"),
    ],
)
def test_a_recipe_of_another_model_is_refused(operator: Operator, text: str) -> None:
    actual = {"pool": POOL, "head": LINEAR, "fc": operator}
    with pytest.raises(RecipeError) as caught:
        filled().check_operators(actual, "Other")
    assert text in str(caught.value)
    more = {"pool": POOL, "head": LINEAR, "fc": LINEAR, "new": LINEAR}
    with pytest.raises(RecipeError, match=r"'new' of Other is linear.*the recipe does not list it"):
        filled().check_operators(more, "Other")


def test_one_tensor_has_one_scale() -> None:
    conf = filled()
    assert conf.scales() == {"relu": Scale(0.1, 3, "relu")}
    conf.operators["head"] = LINEAR._replace(inputs=(Scale(0.2, 3, "relu"),))
    with pytest.raises(RecipeError, match=r"'pool' and 'head' read the same tensor 'relu'"):
        conf.scales()


def test_the_import_is_cheap() -> None:
    program = (
        "import sys, xruntime.quantization as q; q.QuantConf(keep_float=['fc']).plain()\n"
        "print(sorted({'torch', 'torchao', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", program) == "[]\n"
