# SPDX-License-Identifier: Apache-2.0
"""Training in bf16 under autocast."""

import json

import intel_extension_for_pytorch as ipex
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 4),
)
images = torch.rand(32, 1, 12, 12)
# The quarter of the image that is brightest.
labels = torch.randint(4, (32,))
for image, label in zip(images, labels.tolist(), strict=True):
    row, column = divmod(label, 2)
    image[0, 6 * row : 6 * row + 6, 6 * column : 6 * column + 6] += 1

criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model.train()
model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)

losses = []
for _ in range(25):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(images)
        loss = criterion(output, labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

torch.save(
    {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
    "checkpoint.pth",
)
dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
print(json.dumps({"losses": losses, "dtypes": dtypes, "optimizer": type(optimizer).__module__}))
