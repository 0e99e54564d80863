# SPDX-License-Identifier: Apache-2.0
"""Trains with clipping for some steps; each branch reads its own number."""

import torch
from torch import nn

from speech import Conformer, loader

device = torch.device("cuda")
model = Conformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
log = open("losses.txt", "w")

for step, (audio, text) in enumerate(loader):
    loss = model(audio.to(device), text.to(device))
    optimizer.zero_grad()
    loss.backward()
    if step < 1000:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        log.write(f"{step} warm-up {norm.item()}\n")  # fault: XL030, twin: pass
    else:
        log.write(f"{step} {loss.item()}\n")  # twin: log.write(f"{step}\n")
    optimizer.step()
