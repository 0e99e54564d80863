# SPDX-License-Identifier: Apache-2.0
"""Moves a batch that is a dictionary."""

import torch
from transformers import AutoModelForSequenceClassification

from corpus import loader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased").to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for epoch in range(3):
    for batch in loader:
        for key, value in batch.items():
            value.to(device)  # fault: XL010, twin: batch[key] = value.to(device)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
