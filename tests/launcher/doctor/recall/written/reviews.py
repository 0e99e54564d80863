# SPDX-License-Identifier: Apache-2.0
"""Classifies reviews with an LSTM; one class trains and tests it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from reviews_data import make_loaders


class Classifier(nn.Module):
    def __init__(self, words, classes):
        super().__init__()
        self.embedding = nn.Embedding(words, 128)
        self.drop = nn.Dropout(0.5)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.out = nn.Linear(256, classes)

    def forward(self, text):
        _, (hidden, _) = self.lstm(self.drop(self.embedding(text)))
        return self.out(self.drop(hidden[-1]))


class Trainer:
    def __init__(self, words, classes):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Classifier(words, classes).to(self.device)
        self.opt = torch.optim.Adam(self.model.parameters())

    def train(self, loader):
        self.model.train()
        for text, label in loader:
            loss = F.cross_entropy(self.model(text.to(self.device)), label.to(self.device))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def test(self, loader):
        # self.model.eval()
        pass  # fault: XL025, twin: self.model.eval()
        right = total = 0
        for text, label in loader:
            output = self.model(text.to(self.device))
            right += output.max(1)[1].eq(label.to(self.device)).sum()
            total += label.numel()
        return 100.0 * right.item() / total


if __name__ == "__main__":
    train_loader, test_loader, vocabulary = make_loaders("reviews.csv")
    trainer = Trainer(len(vocabulary), 5)
    for epoch in range(20):
        trainer.train(train_loader)
        print("epoch", epoch, "accuracy", trainer.test(test_loader))
