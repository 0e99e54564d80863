# SPDX-License-Identifier: Apache-2.0
# %% imports
import os

import torch
import torchvision
import torchvision.transforms as T
from torch import nn

os.environ["OMP_NUM_THREADS"] = "4"  # expect: XL040

# %% data
tfm = T.Compose([T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)])
train_ds = torchvision.datasets.CIFAR10("data", train=True, download=True, transform=tfm)
valid_ds = torchvision.datasets.CIFAR10("data", train=False, download=True, transform=tfm)
valid_dl = torch.utils.data.DataLoader(valid_ds, batch_size=256)

# %% model
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torchvision.models.resnet18(num_classes=10).to(device)
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

# %% training
history = []
for epoch in range(20):
    train_dl = torch.utils.data.DataLoader(  # expect: XL023
        train_ds, batch_size=128, shuffle=True, num_workers=4, pin_memory=True
    )
    net.train()
    running = 0.0
    for xb, yb in train_dl:
        xb = xb.to(device, non_blocking=True)
        yb = yb.to(device, non_blocking=True)
        opt.zero_grad()
        loss = loss_fn(net(xb), yb)
        loss.backward()
        opt.step()
        running += loss.item()  # expect: XL030
    history.append(running / len(train_dl))

    # %% validation
    net.eval()
    hits = 0
    for xb, yb in valid_dl:
        xb, yb = xb.to(device), yb.to(device)
        pred = net(xb).argmax(1)
        hits += (pred == yb).sum().item()
    print(f"epoch {epoch}: loss {history[-1]:.3f}, accuracy {hits / len(valid_ds):.3f}")

torch.save(net.state_dict(), "cifar.pt")
