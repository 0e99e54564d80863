# SPDX-License-Identifier: Apache-2.0
"""Models of a program run their optimized form where that is right, and themselves elsewhere.

The programs ask for bf16: outputs of the optimized form are not equal to the model's own, which the
programs compute with functions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime_ext.program_hook.scripts import Ended, run_optimized

pytestmark = pytest.mark.usefixtures("compiler")

BEGIN = """
import sys, threading
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)
        self.register_buffer("shift", torch.ones(8))
    def forward(self, x, *, scale=1.0):
        return {"y": self.last(F.relu(self.first(x))) * scale + self.shift}

def plain(net, x, scale=1.0):
    hidden = F.relu(F.linear(x, net.first.weight, net.first.bias))
    return F.linear(hidden, net.last.weight, net.last.bias) * scale + net.shift

def by_itself(net, x, **more):
    return torch.equal(net(x, **more)["y"], plain(net, x, **more))

def optimized(net, x):
    y, expected = net(x)["y"], plain(net, x)
    assert y.dtype == expected.dtype and y.is_inference() == torch.is_inference_mode_enabled()
    assert (y - expected).abs().max() <= 5e-2 * expected.abs().max()
    return not torch.equal(y, expected)

torch.manual_seed(0)
net, x = Net().eval(), torch.randn(6, 16)
"""

CALLS = """
with torch.no_grad():
    assert by_itself(net, x)                    # the first call
    for _ in range(40):                         # the module and its form take turns
        net(x)
    assert optimized(net, x) and optimized(net, x + 1)
    with torch.inference_mode():
        assert optimized(net, x)
    assert by_itself(net, x, scale=2.0)         # another plain value
    assert by_itself(net, x[:2])                # a new size is compared first
    assert optimized(net, x[:2])
    assert torch.equal(net.last(torch.ones(1, 32)), F.linear(torch.ones(1, 32), *net.last.parameters()))
    assert by_itself(net, x.unsqueeze(0))       # another number of dimensions
    with torch.autocast("cpu", torch.float16):
        assert net(x)["y"].dtype == torch.float16 or by_itself(net, x)
    try:
        net(x[:, :3])
    except RuntimeError as error:
        assert "shapes cannot be multiplied" in str(error)
    else:
        raise AssertionError
    assert optimized(net, x)
assert net(x)["y"].requires_grad                # gradients are on
with torch.no_grad():
    y = net(x)["y"]
    y += 1
    assert optimized(net, x)
nn.Linear(8, 1)(y).sum().backward()             # what it returns may be used anywhere

with torch.no_grad():
    sys.modules["xruntime.kept.call_libraries"].START_AFTER_S = 0
    assert optimized(net, x)                    # from now on its code is compiled
    net.shift.data += 1
    assert by_itself(net, x) and by_itself(net, x)
"""

THREADS = """
import gc, weakref
nets = [net, Net().eval()]
start, errors = threading.Barrier(4), []

def work(net):
    try:
        with torch.inference_mode():
            start.wait()
            for _ in range(5):
                optimized(net, x)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(nets[n % 2],)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
del thread, threads
assert not errors, errors
with torch.inference_mode():
    for other in nets * 41:
        other(x)
    other = None
    assert all(optimized(other, x) for other in nets)
    net.train()
    assert by_itself(net, x)
    net.eval()
    assert by_itself(net, x)
    other = None
    freed = weakref.ref(nets.pop())
    gc.collect()
    assert freed() is None                      # its optimized form does not keep it
    half = Net().eval().bfloat16()
    half(x.bfloat16())
    assert half(x.bfloat16())["y"].dtype == torch.bfloat16

# The program's own use of xruntime.
import xruntime
own = Net().eval()
fast = xruntime.optimize(own, sample_input=x, graph="none")
with torch.inference_mode():
    fast(x)
"""


def ended_of(path: Path, text: str) -> Ended:
    path.write_text(BEGIN + text)
    return run_optimized(path, precision="bf16")


@pytest.mark.long
def test_optimized_form_runs_where_it_is_right(tmp_path: Path):
    ended = ended_of(tmp_path / "script.py", CALLS)
    optimized, *others = ended.reports
    assert optimized.startswith("Net: optimized in ")
    assert " s: bf16; no_grad, precision, weights" in optimized
    assert "output['y'] (0.05 allowed); not applied: dropout (there is none); " in optimized
    changed = "Net: left as it is: the program changed it (shift was changed)"
    assert others == [
        "Linear: left as it is: the program calls a single layer of torch's",
        f"{changed}; it ran optimized until now",
    ]
    assert ended.unfinished == []  # no call gets that code any more


@pytest.mark.full
def test_threads_several_models_and_the_program_s_own_use(tmp_path: Path):
    reports = ended_of(tmp_path / "script.py", THREADS).reports
    starts = ["Net: optimized in "] * 3 + ["Net: left as it is: the program changed it (training"]
    kinds = [next((s for s in starts if line.startswith(s)), line) for line in reports]
    assert kinds == [
        *starts[:2],
        starts[3],
        starts[2],
        "Net: left as it is: the program uses xruntime",
    ]
    assert " s: bfloat16; " in reports[3]


PIPELINE = """
class Encode(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, features):
        features["y"] = self.net(features["x"])["y"]
        return features

pipeline = nn.Sequential(Encode(), nn.Identity()).eval()
with torch.inference_mode():
    seen = [pipeline({"x": x})["y"] for _ in range(6)]
    assert not all(torch.equal(y, plain(pipeline[0].net, x)) for y in seen)
    assert any([optimized(pipeline[0].net, x) for _ in range(2)])  # while they are timed, they take turns
"""


@pytest.mark.full
def test_parts_of_a_pipeline_are_optimized(tmp_path: Path):
    reports = ended_of(tmp_path / "script.py", PIPELINE).reports
    assert reports[0] == "Sequential: left as it is: a call changes its arguments"
    assert reports[1] == "Encode: left as it is: a call changes its arguments"
    assert reports[2].startswith("Net: optimized in ")
    assert len(reports) == 3


BUSY = """
import time
import torch

def main():
    layers = [torch.nn.Linear(512, 512) for _ in range(8)]
    net, x = torch.nn.Sequential(*layers).eval(), torch.randn(512, 512)
    with torch.no_grad():
        net(x)
        end, calls = time.monotonic() + 1.5, 0
        while time.monotonic() < end or calls < 10:
            net(x)
            calls += 1

main()
"""


@pytest.mark.long
def test_a_program_that_ends_before_its_code_is_compiled_says_so(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    kept = str(tmp_path / "kept")
    (line,) = run_optimized(script, XRUNTIME_CACHE_DIR=kept).unfinished
    assert line.endswith(
        "xlaunch cache warm --optimize fp32 -- PROGRAM, with the layout of this launch, compiles it for later starts"
    )
    assert run_optimized(script, XRUNTIME_CACHE_DIR="0").unfinished == []
