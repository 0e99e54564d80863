# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import logging

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Config:
    epochs: int = 10
    batch_size: int = 64
    lr: float = 3e-4
    clip: float = 1.0
    device: str = "cuda"
    workers: int = 4


class Trainer:
    """Trains a model, and evaluates it after each epoch."""

    def __init__(self, model: nn.Module, config: Config) -> None:
        self.config = config
        self.device = torch.device(config.device)
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def _loader(self, dataset: Dataset, shuffle: bool) -> DataLoader:
        return DataLoader(
            dataset, self.config.batch_size, shuffle=shuffle, num_workers=self.config.workers
        )

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.criterion(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def train(self, train_set: Dataset, valid_set: Dataset) -> None:
        train_loader = self._loader(train_set, shuffle=True)
        valid_loader = self._loader(valid_set, shuffle=False)
        self.model.train()
        for epoch in range(self.config.epochs):
            total = torch.zeros((), device=self.device)
            for inputs, targets in train_loader:
                loss = self.step(inputs.to(self.device), targets.to(self.device))
                total += loss
                log.info("loss %.4f", loss.item())  # expect: XL030
            log.info("epoch %d: %.4f", epoch, total.item() / len(train_loader))
            log.info("accuracy %.3f", self.evaluate(valid_loader))

    @torch.no_grad()
    def evaluate(self, loader: DataLoader) -> float:
        self.model.eval()
        right = total = 0
        for inputs, targets in loader:
            predicted = self.model(inputs.to(self.device)).argmax(dim=-1)
            right += (predicted.cpu() == targets).sum().item()
            total += len(targets)
        return right / total
