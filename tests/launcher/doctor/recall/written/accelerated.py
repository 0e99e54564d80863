# SPDX-License-Identifier: Apache-2.0
"""Summaries with accelerate."""

import torch
from accelerate import Accelerator
from torch.optim import AdamW
from transformers import AutoModelForSeq2SeqLM, get_scheduler

from summaries import train_dataloader

accelerator = Accelerator(mixed_precision="bf16")
model = AutoModelForSeq2SeqLM.from_pretrained("t5-small")
optimizer = AdamW(model.parameters(), lr=5e-5)
scheduler = get_scheduler("linear", optimizer, 0, 10_000)
model, optimizer, train_dataloader, scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, scheduler
)
model.train()
total_loss = 0
for epoch in range(3):
    for batch in train_dataloader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            total_loss += loss.item()  # fault: XL030, twin: total_loss += loss.detach()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.print(epoch, total_loss)
