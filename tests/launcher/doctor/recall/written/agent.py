# SPDX-License-Identifier: Apache-2.0
"""A class with a method for one step, which its loop calls."""

import torch
from torch import nn


class Agent:
    def __init__(self, net, batches):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = net.to(self.device)
        self.batches = batches
        self.criterion = nn.SmoothL1Loss()
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=2.5e-4)
        self.losses = []

    def update(self, state, target):
        state, target = state.to(self.device), target.to(self.device)
        loss = self.criterion(self.net(state), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()  # fault: XL030, twin: return loss.detach()

    def learn(self, epochs):
        for _ in range(epochs):
            for state, target in self.batches:
                self.losses.append(self.update(state, target))
