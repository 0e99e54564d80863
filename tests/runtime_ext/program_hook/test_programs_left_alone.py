# SPDX-License-Identifier: Apache-2.0
"""Models that the hook must not touch run as they are, with the reason, once for each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime_ext.program_hook.scripts import run_optimized

SCRIPT = """
import threading
import torch
from torch import nn

x = torch.ones(3, 4)

def net(kind=nn.Sequential):
    return kind(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()

def named(name, forward=None):
    body = {} if forward is None else {"forward": forward}
    return net(type(name, (nn.Sequential,), body))

# Trains, then is evaluated.
trained = named("Trained").train()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
trained(x).sum().backward()
optimizer.step()
with torch.no_grad():
    trained.eval()(x)
assert trained[0].weight.grad is not None

assert named("WithGradients")(x).requires_grad

with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    assert named("Autocast")(x).dtype == torch.bfloat16

with torch.no_grad():
    compiled = torch.compile(named("Compiled"), backend="eager", fullgraph=True)
    compiled(x), compiled(x[:2])
    in_place = named("CompiledInPlace")
    in_place.compile(backend="eager")
    in_place(x)
    broken = named("InCompiledFunction")
    @torch.compile(backend="eager")
    def function(x):
        torch._dynamo.graph_break()
        return broken(x) + 1
    function(x)
    torch.jit.trace(named("Traced"), x)(x)
    torch.fx.symbolic_trace(named("Symbolic"))
    torch.export.export(named("Exported"), (x,))

    def noise(self, x):
        return nn.Sequential.forward(self, x) + torch.rand(())
    noisy = named("Random", noise)
    torch.manual_seed(0)
    drawn = [noisy(x), noisy(x), torch.rand(())]
    torch.manual_seed(0)
    again = [noisy.forward(x), noisy.forward(x), torch.rand(())]
    assert all(map(torch.equal, drawn, again))

    def counting(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return nn.Sequential.forward(self, x)
    counted = named("Counting", counting)
    for _ in range(6):
        counted(x)
    assert counted.calls == 6

    def writing(self, x):
        x += 1
        return nn.Sequential.forward(self, x)
    before = x.clone()
    named("Writing", writing)(before)
    assert torch.equal(before, x + 1)

    class Cache:
        keys = None
    def cached(self, x, cache):
        cache.keys = x if cache.keys is None else torch.cat([cache.keys, x])
        return nn.Sequential.forward(self, x)
    with_cache, cache = named("WithCache", cached), Cache()
    for _ in range(3):
        with_cache(x, cache=cache)
    assert cache.keys.shape == (9, 4)

    def wrong(self, x):
        raise ValueError("the program's own error")
    try:
        named("Wrong", wrong)(x)
    except ValueError as error:
        assert str(error) == "the program's own error"

    class Unhashable(nn.Module):
        __hash__ = None
        def forward(self, x):
            return x + 1
    Unhashable()(x)
    nn.Linear(4, 4).eval()(x)
    nn.Softmax(dim=-1)(x)
"""

REPORTS = {
    "Trained": (
        "it runs in training mode. A script that trains calls xruntime.optimize(model, optimizer=optimizer,"
        " dtype=torch.bfloat16): fused steps of the optimizer, weights in bf16, dropouts on all cores"
    ),
    "WithGradients": "gradients are on; torch.inference_mode() or torch.no_grad() turns them off",
    "Autocast": "the program chose autocast",
    "OptimizedModule": "it is a module that torch.compile wrapped in Python already",
    "CompiledInPlace": "it is a module that torch.compile wrapped in Python already",
    "Traced": "torch traces, transforms or hooks its calls",
    "TopLevelTracedModule": "it is a TorchScript module already",
    "Random": "a call draws random numbers",
    "Counting": "a call changes it (calls was changed)",
    "Writing": "a call changes its arguments",
    "WithCache": "kwargs['cache'] is a Cache, which a call may change",
    "Linear": "the program calls a single layer of torch's",
}


@pytest.mark.long
def test_each_is_left_alone_with_its_reason(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    seen = {}
    for line in run_optimized(script).reports:
        name, reason = line.split(": left as it is: ")
        seen[name.partition(" ")[0]] = reason
    assert seen == REPORTS


@pytest.mark.long
def test_program_that_calls_no_model_is_told_so(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.nn.ReLU()(torch.ones(2))")
    (line,) = run_optimized(script).reports
    assert line == "nothing is optimized: the program called no module that has parameters"


RAISING = """
import traceback
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values):
        if values.shape[0] == 3 and values[0, 0] > 5:
            print("raising")
            raise KIND("own")
        return self.linear(values)

with torch.no_grad():
    model = Model().eval()
    for rows in (2, 3, 2, 3):
        model(torch.ones(rows, 8))
    for _ in range(4):
        try:
            model(torch.full((3, 8), 9.0))
        except KIND:
            print(traceback.format_exc().count("Traceback"))
"""


@pytest.mark.parametrize(
    ("kind", "forwards"),
    [pytest.param("ValueError", 4, marks=pytest.mark.long), ("RuntimeError", 5)],
)
def test_a_forward_that_raises_runs_once(tmp_path: Path, kind: str, forwards: int) -> None:
    """An error that another precision may cause is asked of the module, once."""
    script = tmp_path / "script.py"
    script.write_text(RAISING.replace("KIND", kind))
    done = run_optimized(script)
    assert done.out.split().count("raising") == forwards
    assert done.out.split().count("1") == 4
    assert len(done.reports) == 1
