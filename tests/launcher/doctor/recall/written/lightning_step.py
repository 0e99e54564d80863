# SPDX-License-Identifier: Apache-2.0
"""A module of Lightning."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(L.LightningModule):
    def __init__(self, width=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)
        )

    def forward(self, x):
        return x - self.body(x)

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        loss = F.mse_loss(self(noisy), clean)
        self.log("train_loss", loss.item())  # fault: XL030, twin: self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        self.log("val_loss", F.mse_loss(self(noisy), clean))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


trainer = L.Trainer(max_epochs=10, accelerator="gpu", devices=1)
