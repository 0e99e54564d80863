# SPDX-License-Identifier: Apache-2.0
"""What `ipex` offers, what it says of names that are gone, and what importing it costs."""

from __future__ import annotations

import importlib
from functools import partial

import pytest
from tests.golden import Golden
from tests.runtime_ext.interpreters import python

import xruntime.compat.ipex as ipex
from xruntime.compat.ipex.replacements import REPLACEMENTS

MODULES = ("cpu", "cpu.runtime", "nn", "nn.functional", "nn.modules", "optim", "quantization")


def value_of(path: str) -> object:
    found: object = ipex
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_modules_can_be_imported_and_have_what_they_list(name: str) -> None:
    module = importlib.import_module(f"xruntime.compat.ipex.{name}")
    assert module is value_of(name)
    for offered in module.__all__:
        assert getattr(module, offered) is not None


def test_a_name_that_is_gone_says_what_to_use() -> None:
    for path, said in REPLACEMENTS.items():
        with pytest.raises(AttributeError) as raised:
            value_of(path)
        assert str(raised.value) == f"ipex.{path} is gone: {said}"
        assert said
        assert "\n" not in said


def test_names_of_the_extension_s_tests_and_examples(golden: Golden) -> None:
    paths = (
        "optim._lamb.Lamb", "quantization.get_smooth_quant_static_qconfig",
        "nn.modules.merged_embeddingbag.MergedEmbeddingBag", "cpu.auto_ipex", "cpu.runtime.task.Task",
        "frontend.optimize", "has_cpu", "optim._lars.create_optimizer_lars", "_C.isa_has_amx_fp16_support",
    )  # fmt: skip
    golden.errors(*[partial(value_of, path) for path in paths])


@pytest.mark.parametrize(
    ("statement", "path"),
    [
        ("import xruntime.compat.ipex.llm.modules", "llm.modules"),
        ("from xruntime.compat.ipex import xpu", "xpu"),
        ("from xruntime.compat.ipex.llm import generation", "llm.generation"),
        ("from xruntime.compat.ipex.cpu import autocast", "cpu.autocast"),
        ("from xruntime.compat.ipex.quantization import prepare, QuantConf", "quantization.QuantConf"),
        ("from xruntime.compat.ipex.optim._lamb import Lamb", "optim._lamb"),
        ("from xruntime.compat.ipex.nn.modules import WeightOnlyQuantizedLinear",
         "nn.modules.WeightOnlyQuantizedLinear"),
    ],
)  # fmt: skip
def test_importing_what_is_gone_says_what_to_use(statement: str, path: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(statement, {})
    assert str(raised.value) == f"ipex.{path} is gone: {REPLACEMENTS[path]}"


def test_importing_what_never_was() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'xruntime\.compat\.ipex\.nothing'"
    ):
        importlib.import_module("xruntime.compat.ipex.nothing")
    with pytest.raises(ImportError, match="cannot import name 'prepared_'"):
        exec("from xruntime.compat.ipex.quantization import prepared_", {})


@pytest.mark.parametrize("path", ["optimise", "cpu.runtime.CpuPool", "optim.Sgd"])
def test_a_name_that_never_was(path: str) -> None:
    name = path.rpartition(".")[2]
    with pytest.raises(
        AttributeError, match=rf"module 'xruntime\.compat\.ipex.*' has no.*'{name}'"
    ):
        value_of(path)
    assert not hasattr(ipex, "xpu")


@pytest.mark.long
def test_importing_it_is_cheap() -> None:
    script = (
        "import sys, xruntime.compat.ipex, xruntime.compat.ipex.quantization\n"
        "print([name for name in ('torchao', 'transformers', 'torch._dynamo') if name in sys.modules])"
    )
    assert python("-c", script) == "[]\n"
