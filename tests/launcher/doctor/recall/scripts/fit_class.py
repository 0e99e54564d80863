# SPDX-License-Identifier: Apache-2.0
"""A regressor with the interface of scikit-learn."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor:
    def __init__(self, hidden=64, lr=1e-3, epochs=50, batch_size=256, device=None, verbose=True):
        self.hidden = hidden
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.verbose = verbose
        self.best_state = None

    def _build(self, features):
        return nn.Sequential(
            nn.Linear(features, self.hidden),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(self.hidden, 1),
        )

    def fit(self, X, y, X_val, y_val):
        self.model = self._build(X.shape[1]).to(self.device)
        self.model.train()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        criterion = nn.MSELoss()
        dataset = TensorDataset(torch.as_tensor(X).float(), torch.as_tensor(y).float())
        loader = DataLoader(dataset, batch_size=self.batch_size, shuffle=True)

        best = float("inf")
        for epoch in range(self.epochs):
            for features, target in loader:
                features = features.to(self.device)
                target = target.to(self.device)
                optimizer.zero_grad()
                loss = criterion(self.model(features).squeeze(-1), target)
                loss.backward()
                optimizer.step()

            error = self._validate(X_val, y_val)
            if error < best:
                best = error
                self.best_state = {k: v.clone() for k, v in self.model.state_dict().items()}
            if self.verbose:
                print(f"{epoch:4d} {error:.5f}")

        self.model.load_state_dict(self.best_state)
        return self

    def _validate(self, X, y):
        self.model.eval()
        with torch.no_grad():
            predicted = self.model(torch.as_tensor(X).float().to(self.device))
        return float(np.mean((predicted.squeeze(-1).cpu().numpy() - y) ** 2))

    def predict(self, X):
        self.model.eval()
        inputs = torch.as_tensor(X).float()
        inputs.to(self.device)  # expect: XL010
        with torch.no_grad():
            return self.model(inputs).squeeze(-1).cpu().numpy()


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 12)), rng.normal(size=2000)
    model = Regressor(epochs=5).fit(X[:1500], y[:1500], X[1500:], y[1500:])
    print(model.predict(X[:3]))
