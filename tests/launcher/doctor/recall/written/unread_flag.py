# SPDX-License-Identifier: Apache-2.0
"""A trainer whose option for weight decay was never connected."""

import argparse

import torch

from tabular import Table, build

parser = argparse.ArgumentParser(description="Trains a network on a table.")
parser.add_argument("table")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--weight-decay", type=float, default=1e-4)  # fault: XL006, twin: pass
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
for _ in range(args.epochs):
    for x, y in Table(args.table):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
