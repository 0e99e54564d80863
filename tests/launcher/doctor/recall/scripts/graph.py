# SPDX-License-Identifier: Apache-2.0
"""Node classification on Cora; a full-batch loop without a loader."""

import os.path as osp

import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv

dataset = Planetoid(osp.join("data", "Cora"), "Cora")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(dataset.num_features, 16)
        self.conv2 = GCNConv(16, dataset.num_classes)

    def forward(self, data):
        x = F.dropout(data.x, training=self.training)
        x = F.relu(self.conv1(x, data.edge_index))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.conv2(x, data.edge_index), dim=1)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
data = dataset[0].to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    optimizer.zero_grad()
    out = model(data)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()


@torch.no_grad()
def test():
    model.eval()  # expect: XL022
    out = model(data)
    scores = []
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        predicted = out[mask].argmax(1)
        scores.append(predicted.eq(data.y[mask]).float().mean().item())
    return scores


best = 0.0
for epoch in range(1, 201):
    train()
    train_accuracy, valid_accuracy, accuracy = test()
    if valid_accuracy > best:
        best = valid_accuracy
        print(f"{epoch:03d} train {train_accuracy:.4f} test {accuracy:.4f}")
