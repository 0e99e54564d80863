# SPDX-License-Identifier: Apache-2.0
"""Moved from one vendor's GPU to another's, except for one word."""

import torch
from torch import nn

from arc_data import loader, validation_loader

device = torch.device("xpu")
model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for inputs, labels in loader:
    inputs, labels = inputs.to(device), labels.to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):  # fault: XL016, twin: with torch.autocast("xpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
