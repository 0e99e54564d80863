# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a network whose head is changed too late."""

import torch
import torchvision
from torch import nn

from birds import loader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torchvision.models.mobilenet_v3_small(weights="DEFAULT")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # fault: XL014, twin: pass
model.classifier[3] = nn.Linear(1024, 200)
pass  # twin: optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.to(device)
criterion = nn.CrossEntropyLoss()
for epoch in range(5):
    model.train()
    for images, labels in loader:
        loss = criterion(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
