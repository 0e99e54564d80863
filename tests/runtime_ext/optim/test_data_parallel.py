# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over two processes that begin with different seeds: their weights stay equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runtime_ext.conftest import Needs

# The recipe of torch's documentation: make the model, wrap it, train. Prints how many of all fp32
# weights differ between the processes.
PROGRAM = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from xruntime import optim, optimize

rank, store, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 10))
weights = {name: value.clone() for name, value in model.state_dict().items()}
if way == "optimize":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
else:
    model.to(torch.bfloat16)
    rounding = "stochastic" if way == "stochastic" else "split"
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, rounding=rounding)
    if way == "given weights":
        optimizer.load_master_state_dict(model, weights)
parallel = DistributedDataParallel(model)
drawn = torch.Generator().manual_seed(rank)
for _ in range(30):
    inputs, labels = torch.rand(8, 16, generator=drawn), torch.randint(10, (8,), generator=drawn)
    optimizer.zero_grad()
    outputs = parallel(inputs if way == "optimize" else inputs.bfloat16())
    nn.functional.cross_entropy(outputs.float(), labels).backward()
    optimizer.step()
found = torch.cat([value.flatten() for value in optimizer.master_state_dict(model).values()])
both = [torch.empty_like(found) for _ in range(2)]
distributed.all_gather(both, found)
distributed.destroy_process_group()
print(int((both[0] != both[1]).sum()), "of", found.numel())
"""


@pytest.mark.parametrize(
    "way",
    [
        *(pytest.param(way, marks=pytest.mark.long) for way in ("split", "optimize")),
        *(pytest.param(way, marks=pytest.mark.full) for way in ("stochastic", "given weights")),
    ],
)
def test_processes_of_different_seeds_train_the_same_weights(
    native: None, needs: Needs, tmp_path: Path, way: str
) -> None:
    needs(torch.distributed.is_available(), "torch with torch.distributed")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store"), way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        answers = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for answer, errors in answers:
        assert answer == "0 of 658\n", errors
        # The broadcast replaced the upper halves of given weights.
        assert ("after their fp32 weights were given" in errors) == (
            way in ("given weights", "optimize")
        )
