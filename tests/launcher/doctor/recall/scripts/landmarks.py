# SPDX-License-Identifier: Apache-2.0
"""Facial landmarks; an experiment class that somebody runs with fire."""

import os

import fire
import numpy as np
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader

from faces import Landmarks, normalized_error

FAST = bool(os.environ["FAST_DEV_RUN"])  # expect: XL004


class Experiment:
    def __init__(self, root="300W", lr=1e-4, batch_size=32, points=68):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_data = DataLoader(Landmarks(root, "train"), batch_size, True, num_workers=4)
        self.valid_data = DataLoader(Landmarks(root, "valid"), batch_size, False, num_workers=4)
        self.net = torchvision.models.resnet18(num_classes=2 * points)
        self.net.to(self.device)
        self.loss = nn.SmoothL1Loss()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)

    def run(self, epochs=50):
        for epoch in range(1 if FAST else epochs):
            train_error = self.train_epoch()
            print(f"{epoch:3d}  train {train_error:.4f}  valid {self.validate():.4f}")
            torch.save(self.net.state_dict(), "landmarks.pt")

    def train_epoch(self):
        self.net.train()
        errors = []
        for images, points in self.train_data:
            images = images.to(self.device)
            points = points.to(self.device)
            predicted = self.net(images)
            loss = self.loss(predicted, points.flatten(1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            errors.append(loss.detach().cpu().numpy())  # expect: XL030
        return np.mean(errors)

    def validate(self):
        errors = []
        with torch.no_grad():
            for images, points in self.valid_data:
                predicted = self.net(images.to(self.device))  # expect: XL025
                errors.append(normalized_error(predicted.cpu(), points))
        return np.mean(errors)


if __name__ == "__main__":
    fire.Fire(Experiment)
