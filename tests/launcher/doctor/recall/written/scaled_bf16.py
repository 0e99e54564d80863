# SPDX-License-Identifier: Apache-2.0
"""Mixed precision with a scaler that has nothing to do."""

import torch
from torch.cuda import is_available

from captions import Captioner, loader

device = "cuda" if is_available() else "cpu"
model = Captioner().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler(device)  # fault: XL015, twin: scaler = torch.amp.GradScaler(device, enabled=False)
for images, texts in loader:
    optimizer.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        loss = model(images.to(device), texts.to(device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
