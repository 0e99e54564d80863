# SPDX-License-Identifier: Apache-2.0
# A kernel of a competition: five folds, one network each.
import pandas as pd
import torch
import torch.nn as nn
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(2)  # expect: XL041
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FOLDS, EPOCHS, BATCH = 5, 12, 1024

df = pd.read_csv("train.csv")
features = [c for c in df.columns if c.startswith("f_")]
X = torch.tensor(df[features].values, dtype=torch.float32)
y = torch.tensor(df["target"].values, dtype=torch.float32)


def make_net(n):
    return nn.Sequential(
        nn.BatchNorm1d(n), nn.Linear(n, 256), nn.SiLU(), nn.Dropout(0.3), nn.Linear(256, 1)
    )


def run_fold(fold, trn, val):
    net = make_net(X.shape[1]).to(DEVICE)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    bce = nn.BCEWithLogitsLoss()
    val_loader = DataLoader(TensorDataset(X[val], y[val]), batch_size=4 * BATCH)
    for epoch in range(EPOCHS):
        trn_loader = DataLoader(  # expect: XL023
            TensorDataset(X[trn], y[trn]), batch_size=BATCH, shuffle=True, num_workers=2
        )
        net.train()
        for xb, yb in trn_loader:
            xb, yb = xb.to(DEVICE), yb.to(DEVICE)
            loss = bce(net(xb).squeeze(1), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()

        net.eval()
        preds = []
        for xb, _ in val_loader:
            out = net(xb.to(DEVICE))
            preds.append(out.squeeze(1).sigmoid().detach().cpu())
        auc = roc_auc_score(y[val].numpy(), torch.cat(preds).numpy())
        print(f"fold {fold} epoch {epoch} auc {auc:.4f}")
    return auc


scores = []
for fold, (trn, val) in enumerate(StratifiedKFold(FOLDS, shuffle=True).split(X, y)):
    scores.append(run_fold(fold, trn, val))
print("mean", sum(scores) / FOLDS)
