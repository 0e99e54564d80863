# SPDX-License-Identifier: Apache-2.0
"""The recipe's file and its errors."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from tests.golden import Golden
from tests.runtime_ext.interpreters import python

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


def test_a_wrong_file_is_one_clear_error(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"

    def load(plain: Any) -> None:
        path.write_text(json.dumps(plain))
        QuantConf.load(path)

    scales = ((0, 0), ("x", 0), (1e999, 0), (True, 0), (1, 256), (1, 0.5))
    wrong = [
        [], {}, changed(schema_version=2), changed(schema_version="1"), changed(mod="static"), changed(mode="fast"),
        changed(model=3), changed(operators=[]), changed(activations={"scheme": "odd"}),
        changed(activations={"range": [0, 100]}), changed(activations={"range": "all"}),
        changed(activations={"bits": 8}), with_operator(precision="int4"), with_operator(weight=["a"]),
        *[with_operator(inputs=[{"scale": scale, "zero_point": point}]) for scale, point in scales],
        with_operator(inputs=[3]),
    ]  # fmt: skip
    golden.errors(*[partial(load, plain) for plain in wrong])


def test_a_file_that_is_no_recipe_is_refused(golden: Golden, tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe.json", tmp_path / "text.json"
    os.mkfifo(pipe)
    text.write_bytes(b"\xff{")
    golden.errors(
        lambda: QuantConf.load(tmp_path / "absent.json"),
        lambda: QuantConf.load(pipe),
        lambda: QuantConf.load(text),
        lambda: filled().save(tmp_path / "missing" / "recipe.json"),
    )


def test_wrong_options_are_refused(golden: Golden) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"mode": "both"}, {"scheme": None}, {"observer": "max"}, {"activation_range": (0, 15)},
    )  # fmt: skip
    golden.errors(*[partial(QuantConf, **options) for options in wrong])


def test_operators_that_do_not_fit_are_named(golden: Golden) -> None:
    actual = {"pool": POOL, "head": LINEAR}
    others = (LINEAR._replace(weight=(10, 30)), POOL)
    golden.errors(
        lambda: filled().keep_float("haed"),
        lambda: filled().check_operators(actual, "Other"),
        lambda: QuantConf(keep_float=["poool"]).check_operators(actual, "Other"),
        *[partial(filled().check_operators, {**actual, "fc": other}, "Other") for other in others],
        lambda: filled().check_operators({**actual, "fc": LINEAR, "new": LINEAR}, "Other"),
    )
    assert filled().names("float") == ["fc"]


def test_one_tensor_has_one_scale(golden: Golden) -> None:
    conf = filled()
    assert conf.scales() == {"relu": Scale(0.1, 3, "relu")}
    conf.operators["head"] = LINEAR._replace(inputs=(Scale(0.2, 3, "relu"),))
    golden.errors(conf.scales)


def test_the_import_is_cheap() -> None:
    program = (
        "import sys, xruntime.quantization as q; q.QuantConf(keep_float=['fc']).plain()\n"
        "print(sorted({'torch', 'torchao', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", program) == "[]\n"
