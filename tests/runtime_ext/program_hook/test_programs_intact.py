# SPDX-License-Identifier: Apache-2.0
"""A program with the hook sees itself, its models and its processes as without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.runtime_ext.program_hook.scripts import run_optimized

SCRIPT = """
from __future__ import annotations
import copy, inspect, io, json, multiprocessing, os, pickle, subprocess, sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    def forward(self, x, *, scale=1.0):
        return self.layers(x) * scale

class Data(torch.utils.data.Dataset):
    def __init__(self, net):
        self.net = net
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with torch.no_grad():
            return self.net(torch.ones(1, 4) * index), os.getpid()

def seen(net):
    with torch.inference_mode():
        value = net(torch.ones(1, 4)).sum().item()
    plain = nn.Module.__call__ is nn.Module._wrapped_call_impl
    names = sorted(name for name in os.environ if name in ("PYTHONPATH", "XLAUNCH_OPTIMIZE"))
    return value, plain, names

def main():
    torch.manual_seed(0)
    net = Net().eval()
    with torch.inference_mode():
        before = dict(vars(net))
        for _ in range(3):
            y = net(torch.ones(1, 4))
        assert vars(net) == before and type(net) is Net and list(net.state_dict())[0] == "layers.0.weight"
        for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
            assert type(again) is Net and vars(again).keys() == before.keys()
            assert all(map(torch.equal, again.state_dict().values(), net.state_dict().values()))
        file = io.BytesIO()
        torch.save(net, file)
    assert inspect.getsource(Net.forward) and torch.__spec__.loader.__class__.__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(torch.__spec__.loader) and "sitecustomize" not in sys.modules
    value = seen(net)[0]
    told = {"file": __file__, "name": __name__, "argv": sys.argv, "main": Net.__module__, "flags": sys.flags.optimize}
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            other, plain, names = pool.apply(seen, (net,))
        assert abs(other - value) < 1e-5 and plain == (method == "spawn") and names == told.get("names", names), names
        told["names"] = names
    loader = torch.utils.data.DataLoader(Data(net), batch_size=2, num_workers=2)
    values, pids = zip(*loader)
    assert torch.cat(values).shape == (4, 1, 2) and os.getpid() not in torch.cat(pids).tolist()
    command = [sys.executable, "-c", "import sys, torch; print(len(sys.path), torch.nn.Module.__call__.__name__)"]
    subprocess.run(command, check=True, capture_output=True)
    pid = os.fork()
    if pid == 0:
        seen(net)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    print(json.dumps(told))

if __name__ == "__main__":
    main()
"""
USERS = "import builtins\nbuiltins.mine = 'imported'\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_program_and_its_processes_are_as_without(script: Path):
    ended = run_optimized(script, "--instances", "a b")
    told = json.loads(ended.out)
    assert told["file"] == str(script)
    assert told["argv"] == [str(script), "--instances", "a b"]
    assert (told["name"], told["main"], told["flags"]) == ("__main__", "__main__", 0)
    assert told["names"] == (["PYTHONPATH"] if os.environ.get("PYTHONPATH") else [])
    # Children of any kind report nothing.
    (line,) = ended.reports
    assert line.startswith("Net: optimized in ")


def test_user_s_own_sitecustomize_is_imported_as_ever(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(USERS)
    shown = "import sys; print(mine, sys.modules['sitecustomize'].__file__, sys.path[1])"
    ended = run_optimized("python", "-c", shown, PYTHONPATH=str(tmp_path))
    assert ended.out.split() == ["imported", str(tmp_path / "sitecustomize.py"), str(tmp_path)]
    assert ended.reports == ["nothing is optimized: the program did not import torch"]


def test_torch_that_is_only_looked_for_is_not_imported():
    code = (
        "import importlib.util as u, sys; u.find_spec('torch'); assert 'torch' not in sys.modules"
    )
    assert run_optimized("python", "-c", code).reports == [
        "nothing is optimized: the program did not import torch"
    ]


def test_each_instance_reports_for_itself(tmp_path: Path):
    (tmp_path / "x.py").write_text("pass")
    options = ("--instances", "2", "--ncores", "1", "--oversubscribe")
    ended = run_optimized(tmp_path / "x.py", options=options)
    text = "nothing is optimized: the program did not import torch"
    assert sorted(ended.reports) == [f"[0] {text}", f"[1] {text}"]
