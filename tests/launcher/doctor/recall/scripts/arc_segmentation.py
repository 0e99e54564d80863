# SPDX-License-Identifier: Apache-2.0
"""Segmentation on an Arc GPU."""

import os
import random

import numpy as np
import torch
import torch.nn.functional as F

from nets import UNet
from roads import Roads

os.environ.setdefault("MKL_NUM_THREADS", "8")  # expect: XL040

SEED = 7
EPOCHS = 40
LR = 1e-3


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def dice(logits, mask):
    p = torch.sigmoid(logits)
    overlap = (p * mask).sum((1, 2, 3))
    return 1 - ((2 * overlap + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


def run():
    seed_everything(SEED)
    device = torch.device("xpu" if torch.xpu.is_available() else "cpu")
    model = UNet(3, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    train_loader = torch.utils.data.DataLoader(
        Roads("train"), batch_size=8, shuffle=True, num_workers=6, persistent_workers=True
    )
    valid_loader = torch.utils.data.DataLoader(Roads("valid"), batch_size=8, num_workers=2)
    best = 1.0
    for epoch in range(EPOCHS):
        model.train()
        for image, mask in train_loader:
            image, mask = image.to(device), mask.to(device)
            with torch.xpu.amp.autocast(dtype=torch.bfloat16):  # expect: XL051
                logits = model(image)
            loss = F.binary_cross_entropy_with_logits(logits.float(), mask) + dice(logits, mask)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        model.eval()
        errors = []
        with torch.no_grad():
            for image, mask in valid_loader:
                logits = model(image)
                errors.append(dice(logits, mask).item())
        error = float(np.mean(errors))
        if error < best:
            best = error
            torch.save(model.state_dict(), "roads.pt")
        print(epoch, f"{error:.4f}", f"best {best:.4f}")


if __name__ == "__main__":
    run()
