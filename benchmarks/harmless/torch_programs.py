# SPDX-License-Identifier: Apache-2.0
"""The programs of benchmarks.harmless with torch: ``python -m benchmarks.harmless.torch_programs NAME``."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from typing import Any

import torch

from benchmarks.harmless.programs import UNITS, WORKERS, work


def training() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    )


def with_lightning() -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = training()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

        def on_train_start(self) -> None:
            self.working = contextlib.ExitStack()
            if self.trainer.is_global_zero:
                self.working.enter_context(work())

        def on_train_end(self) -> None:
            self.working.close()

    steps = 20 * UNITS
    data = torch.utils.data.TensorDataset(torch.randn(2 * steps * 64, 256))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=64))


def train_rank(rank: int, meeting: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(training())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for steps in (2, 20 * UNITS):
        with work() if rank == 0 else contextlib.nullcontext():
            for _ in range(steps):
                model(torch.randn(64, 256)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


def with_ddp() -> None:
    from torch.multiprocessing import spawn

    with tempfile.TemporaryDirectory() as directory:
        spawn(train_rank, (f"{directory}/meeting",), nprocs=2)


class Images:
    """Random images, which the workers of a DataLoader enlarge."""

    def __getitem__(self, index: int) -> Any:
        image = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(index))
        return torch.nn.functional.interpolate(image, size=(160, 160), mode="bicubic")[0]

    def __len__(self) -> int:
        return 16 * (UNITS + 1)


def data_loader() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, 2)
    )
    loader: Any = torch.utils.data.DataLoader(Images(), batch_size=16, num_workers=WORKERS)  # type: ignore[arg-type]
    batches = iter(loader)
    model(next(batches)).sum().backward()
    with work():
        for batch in batches:
            model(batch).sum().backward()


PROGRAMS = {"lightning": with_lightning, "ddp": with_ddp, "dataloader": data_loader}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
