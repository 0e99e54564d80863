# SPDX-License-Identifier: Apache-2.0
"""Reads licence plates with CTC; the batches of the test are taken with next()."""

import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from plates_data import PlateDataset, collate


class PlateNet(nn.Module):
    def __init__(self, classes, dropout_rate):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(), nn.Dropout(dropout_rate),
        )
        self.head = nn.Conv2d(128, classes, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).mean(dim=2)


def greedy_decode_eval(net, dataset, batch_size, cuda):
    batches = iter(DataLoader(dataset, batch_size, shuffle=True, collate_fn=collate))
    right = 0
    for _ in range(len(dataset) // batch_size):
        images, targets = next(batches)
        if cuda:
            images = images.cuda()
        best = net(images).argmax(dim=1).cpu()
        right += sum(torch.equal(a[: len(b)], b) for a, b in zip(best, targets))
    print("accuracy", right / len(dataset))


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epoch", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--cuda", action="store_true")
    args = parser.parse_args()
    net = PlateNet(68, 0.5)
    if args.cuda:
        net.cuda()
    ctc = nn.CTCLoss(blank=67)
    optimizer = optim.RMSprop(net.parameters(), lr=1e-3)
    train_set, test_set = PlateDataset("train"), PlateDataset("test")
    for _ in range(args.max_epoch):
        for images, labels, lengths in DataLoader(train_set, args.batch_size, collate_fn=collate):
            if args.cuda:
                images, labels = images.cuda(), labels.cuda()
            logits = net(images).permute(2, 0, 1).log_softmax(2)
            sizes = torch.full((len(images),), logits.shape[0])
            loss = ctc(logits, labels, sizes, lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        pass  # fault: XL025, twin: net.eval()
        greedy_decode_eval(net, test_set, args.batch_size, args.cuda)
        net.train()


train()
