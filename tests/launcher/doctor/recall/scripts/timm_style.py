# SPDX-License-Identifier: Apache-2.0
#!/usr/bin/env python3
"""Train image models, with a loop in functions and a meter."""
import argparse
import time
from contextlib import suppress

import torch
import torch.nn as nn
import torch.utils.data as D
import torchvision.datasets as dsets
import torchvision.transforms as tf
from timm import create_model


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def parse():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("data")
    add("--model", default="resnet50")
    add("--epochs", type=int, default=90)
    add("-b", "--batch-size", type=int, default=128)
    add("-j", "--workers", type=int, default=8)
    add("--smoothing", type=float, default=0.1)
    add("--amp", action="store_true")
    return parser.parse_args()


def train_epoch(epoch, model, loader, optimizer, loss_fn, args, device):
    losses, batch_time = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    autocast = torch.autocast(device.type) if args.amp else suppress()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device), target.to(device)
        with autocast:
            loss = loss_fn(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), input.size(0))  # expect: XL030
        batch_time.update(time.time() - end)
        end = time.time()
        if batch_idx % 50 == 0:
            print(f"{epoch} [{batch_idx}] loss {losses.avg:.3f} time {batch_time.avg:.3f}")
    return losses.avg


def validate(model, loader, loss_fn, device):
    losses = AverageMeter()
    with torch.no_grad():
        for input, target in loader:
            input = input.to(device)
            target = target.to(device)
            output = model(input)  # expect: XL020
            losses.update(loss_fn(output, target).item(), input.size(0))
    return losses.avg


def main():
    args = parse()
    device = torch.device("cuda:0")
    model = create_model(args.model, pretrained=False, drop_rate=0.1)
    model.to(device)
    transform = tf.Compose([tf.RandomResizedCrop(224), tf.ToTensor()])
    train_set = dsets.ImageFolder(args.data + "/train", transform)
    valid_set = dsets.ImageFolder(args.data + "/val", transform)
    kwargs = dict(batch_size=args.batch_size, num_workers=args.workers, pin_memory=True)
    loader_train = D.DataLoader(train_set, shuffle=True, **kwargs)
    loader_eval = D.DataLoader(valid_set, **kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    train_loss = nn.CrossEntropyLoss(label_smoothing=args.smoothing).to(device)
    for epoch in range(args.epochs):
        train_epoch(epoch, model, loader_train, optimizer, train_loss, args, device)
        print("validation", validate(model, loader_eval, nn.CrossEntropyLoss(), device))


if __name__ == "__main__":
    main()
