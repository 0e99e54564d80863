# SPDX-License-Identifier: Apache-2.0
"""Siamese network for signatures; flags as a shared module wants them."""
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from signatures import Pairs


def str2bool(v):
    return v.lower() in ("yes", "true", "t", "1")


parser = argparse.ArgumentParser(description="Siamese network")
group = parser.add_argument_group("training")
group.add_argument("--epochs", type=int, default=30)
group.add_argument("--margin", type=float, default=1.0)
group.add_argument("--augment", type=str2bool, default=True)
group.add_argument("--shuffle", type=bool, default=True, help="shuffle pairs")  # expect: XL001
group.add_argument("--ngpu", default="1")  # expect: XL006
parser.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.999))
opt = parser.parse_args()

debug = bool(os.getenv("DEBUG"))  # expect: XL004
cuda = torch.cuda.is_available()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 128),
        )

    def forward(self, a, b):
        return self.features(a), self.features(b)


def contrastive(a, b, same):
    d = F.pairwise_distance(a, b)
    return (same * d**2 + (1 - same) * F.relu(opt.margin - d) ** 2).mean()


model = Siamese()
if cuda:
    model.cuda()
train_loader = DataLoader(Pairs("train", opt.augment), batch_size=64, shuffle=opt.shuffle)
test_loader = DataLoader(Pairs("test"), batch_size=64)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=tuple(opt.betas))

for epoch in range(1, opt.epochs + 1):
    model.train()
    for n, (a, b, same) in enumerate(train_loader):
        if cuda:
            a, b = a.cuda(), b.cuda()
            same.cuda()  # expect: XL010
        optimizer.zero_grad()
        loss = contrastive(*model(a, b), same)
        loss.backward()
        optimizer.step()
        if debug and n == 3:
            break

    model.eval()
    distances = []
    for a, b, _ in test_loader:
        if cuda:
            a, b = a.cuda(), b.cuda()
        distances.append(F.pairwise_distance(*model(a, b)).mean())
    print("epoch", epoch, "distance", torch.stack(distances).mean().item())
