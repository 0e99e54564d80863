# SPDX-License-Identifier: Apache-2.0
"""The engine of a project: its caller chooses the device."""

import torch


def train_one_epoch(model, criterion, loader, optimizer, device, epoch):
    model.train()
    total = torch.zeros((), device=device)
    for samples, targets in loader:
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        loss = criterion(model(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()  # fault: XL030, twin: total += loss.detach()
    print(f"epoch {epoch}: {total / len(loader):.4f}")
