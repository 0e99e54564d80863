# SPDX-License-Identifier: Apache-2.0
"""What `from xruntime import ...` offers, and what asking for it costs."""

from __future__ import annotations

import pytest
from tests.runtime_ext.interpreters import python, start_python

import xruntime

LIGHT = ("CPUPool", "allocator", "device_option", "openmp_team", "pin", "report")


def test_every_name_is_there() -> None:
    for name in xruntime.__all__:
        assert getattr(xruntime, name) is not None
        assert name in dir(xruntime)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'CpuPool'"):
        _ = xruntime.CpuPool


def test_what_needs_no_torch_does_not_import_it() -> None:
    script = f"import sys; from xruntime import {', '.join(LIGHT)}; print('torch' in sys.modules)"
    assert python("-c", script) == "False\n"


def test_what_compiles_is_imported_where_it_is_used() -> None:
    script = """if True:
        import sys, torch
        before = {*sys.modules}
        from xruntime import optimize
        optimize(torch.nn.Linear(2, 2).eval())
        print(*{*sys.modules} - before)

        # Nor does the first call wait for them.
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        images = torch.randn(1, 3, 8, 8)
        optimize(torch.nn.Sequential(*layers).eval(), sample_input=images)(images)
        print(*{"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules))
    """
    first, second = python("-c", script).split("\n")[:2]
    imported = first.split()
    assert second == ""
    dear = (
        "torch._",
        "torch.export",
        "sympy",
        "subprocess",
        "xruntime.aoti.c",
        "xruntime.kept.m",
        "xlaunch.machine.gpus",
    )
    assert "xruntime.optimization.inference" in imported
    assert [name for name in imported if name.startswith(dear)] == []


def test_without_torch_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['torch'] = None; from xruntime import optimize"
    last = start_python("-c", script).stderr.splitlines()[-1]
    assert last.endswith("needs torch, which is not installed: pip install torch")
