# SPDX-License-Identifier: Apache-2.0
"""A training without a fault: nothing is to be found here."""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "4")

import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

from data import Photos


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--betas", nargs=2, type=float, default=[0.9, 0.999])
    parser.add_argument("--level", choices=[1, 2, 3], type=int, default=2)
    parser.add_argument("--quiet", action="store_true", default=False)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    right = 0
    for images, labels in loader:
        output = model(images.to(device, non_blocking=True))
        right += (output.argmax(1).cpu() == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    args = parse()
    device = torch.device(args.device)
    model = nn.Sequential(
        nn.Conv2d(3, 32 * args.level, 3), nn.BatchNorm2d(32 * args.level), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * args.level, 10),
    ).to(device)
    model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=tuple(args.betas))
    criterion = nn.CrossEntropyLoss()
    options = {"batch_size": 64, "num_workers": 4, "persistent_workers": True, "pin_memory": True}
    train_loader = DataLoader(Photos(args.root, "train"), shuffle=True, **options)
    valid_loader = DataLoader(Photos(args.root, "valid"), **options)
    for epoch in range(args.epochs):
        begun = time.perf_counter()
        total = torch.zeros((), device=device)
        for step, (images, labels) in enumerate(train_loader):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            noise = torch.rand(images.shape, device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
                loss = criterion(model(images + 0.01 * noise), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0 and not args.quiet:
                print(f"step {step}: {loss.item():.3f}")
        mean = total.item() / len(train_loader)
        took = time.perf_counter() - begun
        accuracy = evaluate(model, valid_loader, device)
        print(f"epoch {epoch}: {mean:.3f} in {took:.0f} s, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
