# SPDX-License-Identifier: Apache-2.0
"""Telling what streams are given. Nothing is compiled here: torch.compile only wraps."""

from __future__ import annotations

import torch
from torch import nn

from xruntime.compilation.gil import Kind, kind_of


def test_eager_modules_and_functions() -> None:
    assert kind_of(nn.Linear(2, 2)) is Kind.EAGER
    assert kind_of(lambda x: x) is Kind.FUNCTION
    assert Kind.EAGER.holds_gil
    assert Kind.FUNCTION.holds_gil


def test_torchscript() -> None:
    module = torch.jit.trace(nn.Linear(2, 2).eval(), torch.ones(1, 2))
    assert kind_of(module) is Kind.SCRIPT
    assert not Kind.SCRIPT.holds_gil


def test_wrapped_by_torch_compile() -> None:
    module = nn.Linear(2, 2)
    assert kind_of(torch.compile(module)) is Kind.COMPILED
    assert kind_of(torch.compile(lambda x: x)) is Kind.COMPILED
    assert kind_of(nn.Sequential(torch.compile(module))) is Kind.COMPILED
    module.compile()
    assert kind_of(module) is Kind.COMPILED
    assert Kind.COMPILED.holds_gil


def test_wrapped_in_cpp() -> None:
    options = {"cpp_wrapper": True}
    module = nn.Linear(2, 2)
    assert kind_of(torch.compile(module, options=options)) is Kind.COMPILED_CPP
    # Its other parts are eager.
    assert kind_of(nn.Sequential(torch.compile(module, options=options))) is Kind.COMPILED
    assert kind_of(torch.compile(module, backend="eager")) is Kind.COMPILED
    module.compile(options=options)
    assert kind_of(module) is Kind.COMPILED_CPP
    assert not Kind.COMPILED_CPP.holds_gil
