# SPDX-License-Identifier: Apache-2.0
"""A segmentation trainer with a progress bar."""

import torch
import torch.nn.functional as F
from tqdm import tqdm

from unet import UNet
from carvana import train_loader


def train_model(epochs=5, lr=1e-4):
    device = torch.device("cuda")
    model = UNet(3, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(1, epochs + 1):
        with tqdm(total=len(train_loader.dataset), desc=f"Epoch {epoch}/{epochs}") as bar:
            for batch in train_loader:
                images = batch["image"].to(device, non_blocking=True)
                masks = batch["mask"].to(device, non_blocking=True)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), masks)
                optimizer.zero_grad(set_to_none=True)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                bar.update(images.shape[0])
                bar.set_postfix(loss=loss.item())  # fault: XL030, twin: pass
        torch.save(model.state_dict(), f"checkpoint_{epoch}.pth")


train_model()
