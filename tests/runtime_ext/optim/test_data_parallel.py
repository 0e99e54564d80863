# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over two processes that begin with different seeds: their weights stay equal, and their
dropouts differ.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
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


# Prints the outcome of the pass, the share of values that both ranks keep or both drop, whether gradients are equal
# in each step, the quotient of the last and first losses, and whether a second run has the same losses.
DROPOUTS = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from xruntime import optimize
from xruntime.optimization import explain

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
equal, masks = True, []

def of_both(value):
    both = [torch.empty_like(value) for _ in range(2)]
    distributed.all_gather(both, value)
    return both

def trained():
    global equal
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(64, 512), nn.Dropout(0.3), nn.Linear(512, 8))
    model, optimizer = optimize(model, optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3))
    model[1].register_forward_hook(lambda *call: masks.append((call[2] == 0).to(torch.uint8)))
    parallel, losses = DistributedDataParallel(model), []
    inputs = torch.randn(128, 64)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(inputs), inputs[:, :8])
        loss.backward()
        equal &= torch.equal(*of_both(torch.cat([p.grad.flatten() for p in model.parameters()])))
        optimizer.step()
        losses.append(loss.item())
    return explain(model).step("dropout_training").outcome.name, losses

outcome, losses = trained()
mine, other = of_both(masks[0])
again = trained()[1] == losses
distributed.destroy_process_group()
print(outcome, (mine == other).float().mean().item(), equal, losses[-1] / losses[0], again)
"""


def answers_of_ranks(program: str, store: Path, *arguments: str) -> Iterator[tuple[str, str]]:
    """The output and errors of a program, as each of two ranks."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(store), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield from [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()


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
    for answer, errors in answers_of_ranks(PROGRAM, tmp_path / "store", way):
        assert answer == "0 of 658\n", errors
        # The broadcast replaced the upper halves of given weights.
        assert ("after their fp32 weights were given" in errors) == (
            way in ("given weights", "optimize")
        )


@pytest.mark.long
def test_ranks_drop_different_values_and_train_the_same_weights(
    native: None, needs: Needs, tmp_path: Path
) -> None:
    needs(torch.distributed.is_available(), "torch with torch.distributed")
    for answer, errors in answers_of_ranks(DROPOUTS, tmp_path / "store"):
        assert answer, errors
        outcome, agreement, equal, quotient, again = answer.split()
        assert (outcome, equal, again) == ("APPLIED", "True", "True")
        # 0.7 squared and 0.3 squared, within six standard deviations of 65,536 values.
        assert 0.568 < float(agreement) < 0.592
        assert float(quotient) < 0.5
