# SPDX-License-Identifier: Apache-2.0
"""Each epoch starts the worker processes again."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from scans import ScanDataset

dataset = ScanDataset("scans")
model = nn.DataParallel(nn.Conv3d(1, 1, 3, padding=1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=8, persistent_workers=True)
for epoch in range(100):
    train_loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=8)  # fault: XL033, twin: pass
    for scan, target in train_loader:
        loss = nn.functional.l1_loss(model(scan.cuda()), target.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
