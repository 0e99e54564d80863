# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a ResNet on flowers, with functions that take everything they need."""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T


def fit(net, loader, criterion, optimizer, device):
    net.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()


def validate(net, loader, device):
    pass  # fault: XL025, twin: net.eval()
    hits, seen = 0, 0
    with torch.no_grad():
        for images, labels in loader:
            scores = net(images.to(device))
            hits += (scores.argmax(dim=1).cpu() == labels).sum().item()
            seen += len(labels)
    return hits / seen


def main():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    ready = T.Compose([T.Resize((224, 224)), T.ToTensor()])
    train = torchvision.datasets.Flowers102("data", "train", transform=ready, download=True)
    val = torchvision.datasets.Flowers102("data", "val", transform=ready, download=True)
    train_loader = DataLoader(train, 32, shuffle=True, num_workers=2, pin_memory=True)
    val_loader = DataLoader(val, 64, num_workers=2, pin_memory=True)
    net = torchvision.models.resnet18(weights="DEFAULT")
    net.fc = nn.Linear(net.fc.in_features, 102)
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(10):
        fit(net, train_loader, nn.CrossEntropyLoss(), optimizer, device)
        print(epoch, validate(net, val_loader, device))


main()
