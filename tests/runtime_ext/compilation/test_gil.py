# SPDX-License-Identifier: Apache-2.0
"""Telling what streams are given. Nothing is compiled here: torch.compile only wraps."""

from __future__ import annotations

import torch
from torch import nn

from xruntime.compilation.gil import CallableKind, kind_of


def test_eager_modules_and_functions() -> None:
    assert kind_of(nn.Linear(2, 2)) is CallableKind.EAGER
    assert kind_of(lambda x: x) is CallableKind.FUNCTION
    assert CallableKind.EAGER.holds_gil
    assert CallableKind.FUNCTION.holds_gil


def test_torchscript() -> None:
    module = torch.jit.trace(nn.Linear(2, 2).eval(), torch.ones(1, 2))
    assert kind_of(module) is CallableKind.SCRIPT
    assert not CallableKind.SCRIPT.holds_gil


def test_wrapped_by_torch_compile() -> None:
    module = nn.Linear(2, 2)
    assert kind_of(torch.compile(module)) is CallableKind.COMPILED
    assert kind_of(torch.compile(lambda x: x)) is CallableKind.COMPILED
    assert kind_of(nn.Sequential(torch.compile(module))) is CallableKind.COMPILED
    module.compile()
    assert kind_of(module) is CallableKind.COMPILED
    assert CallableKind.COMPILED.holds_gil


def test_wrapped_in_cpp() -> None:
    options = {"cpp_wrapper": True}
    module = nn.Linear(2, 2)
    assert kind_of(torch.compile(module, options=options)) is CallableKind.COMPILED_CPP
    # Its other parts are eager.
    assert kind_of(nn.Sequential(torch.compile(module, options=options))) is CallableKind.COMPILED
    assert kind_of(torch.compile(module, backend="eager")) is CallableKind.COMPILED
    module.compile(options=options)
    assert kind_of(module) is CallableKind.COMPILED_CPP
    assert not CallableKind.COMPILED_CPP.holds_gil
