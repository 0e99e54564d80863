# SPDX-License-Identifier: Apache-2.0
"""Train a recommendation model (DLRM) to predict clicks, to 97 % of the best AUC that is possible.

    xlaunch --instances 1 --ncores 2 examples/dlrm.py
    python examples/dlrm.py --dtype bfloat16

The click log is generated: each entry of each table has a hidden vector, and the logarithm of a click's
odds is a sum of products of these vectors and of the dense features. As the probabilities are known, so
is the AUC of the best prediction. Each sample has one to five entries a table, of which few are frequent
and most are rare, as in real logs. One in five samples is held out.

The tables are an xruntime.nn.MergedEmbeddingBagWithAdaGrad, which updates its rows during the backward
pass; the network over it is by https://arxiv.org/abs/1906.00091. Prints samples/s of training and the
AUC reached; below --goal the exit code is 1.

Needs `pip install scikit-learn`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from xruntime import optim
from xruntime.nn import MergedEmbeddingBagWithAdaGrad, interaction

SEED = 0
TABLES, ROWS, MAX_BAG, DENSE = 8, 1000, 3, 13
HIDDEN = 4  # length of the hidden vectors
DIM = 16  # of the embeddings that are learnt
BATCH = 512


class Log(NamedTuple):
    """Samples: dense features (n, 13), entries (n, tables, 5) with bag lengths (n, tables), clicks (n)."""

    dense: torch.Tensor
    entries: torch.Tensor
    lengths: torch.Tensor
    clicks: torch.Tensor
    odds: torch.Tensor
    """The logarithm of the true odds of a click, which the model does not see."""

    def part(self, chosen: slice | torch.Tensor) -> Log:
        return Log(*(field[chosen] for field in self))


def generate(samples: int) -> Log:
    """The same log every time for a number of samples."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    hidden = normal(TABLES, ROWS, HIDDEN) + normal(HIDDEN)
    weights = normal(DENSE)
    dense = normal(samples, DENSE)
    # Ranks by a law like Zipf's: the share of an entry falls with its number.
    ranks = ROWS ** torch.rand(samples, TABLES, MAX_BAG, generator=generator)
    entries = ranks.long() - 1
    lengths = torch.randint(1, MAX_BAG + 1, (samples, TABLES), generator=generator)
    used = torch.arange(MAX_BAG) < lengths.unsqueeze(-1)
    means = torch.empty(samples, TABLES, HIDDEN)
    for table in range(TABLES):
        vectors = hidden[table][entries[:, table]] * used[:, table].unsqueeze(-1)
        means[:, table] = vectors.sum(1) / lengths[:, table].unsqueeze(-1)
    total = means.sum(1)
    products = (total.square().sum(1) - means.square().sum((1, 2))) / 2  # of all pairs of tables
    products = (products - products.mean()) / products.std()
    odds = 2 * products + dense @ weights / DENSE**0.5 - 1
    clicks = (torch.rand(samples, generator=generator) < odds.sigmoid()).float()
    return Log(dense, entries, lengths, clicks, odds)


class DLRM(nn.Module):
    """Dense features and table entries to the logarithm of a click's odds."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, DIM))
        self.tables = MergedEmbeddingBagWithAdaGrad([(ROWS, DIM)] * TABLES, lr=lr, mode="mean")
        for table in self.tables.weights:
            nn.init.normal_(table, std=0.02)
        products = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(DIM + products, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(
        self, dense: torch.Tensor, indices: list[torch.Tensor], offsets: list[torch.Tensor]
    ) -> torch.Tensor:
        features = self.bottom(dense)
        return self.top(interaction(features, *self.tables(indices, offsets))).squeeze(1)


def bags_of(log: Log) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The entries as an embedding bag takes them: for each table indices, and where each bag begins."""
    used = torch.arange(MAX_BAG) < log.lengths.unsqueeze(-1)
    ends = log.lengths.cumsum(0)
    offsets = ends - log.lengths
    indices = [log.entries[:, table][used[:, table]] for table in range(TABLES)]
    return indices, [offsets[:, table].contiguous() for table in range(TABLES)]


def train(model: DLRM, log: Log, *, epochs: int, batch: int) -> float:
    """Train in place; return the samples seen in a second."""
    layers = [*model.bottom.parameters(), *model.top.parameters()]
    optimizer = optim.AdamW(layers, lr=2e-3)
    loss_of = nn.BCEWithLogitsLoss()
    start = time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(log.clicks)).split(batch):
            part = log.part(chosen)
            odds = model(part.dense.to(layers[0].dtype), *bags_of(part))
            loss = loss_of(odds.float(), part.clicks)
            optimizer.zero_grad()
            loss.backward()  # which also updates the tables
            optimizer.step()
            total += loss.item() * len(chosen)
        print(f"epoch {epoch + 1}: loss {total / len(log.clicks):.4f}")
    return epochs * len(log.clicks) / (time.perf_counter() - start)


@torch.inference_mode()
def predict(model: DLRM, log: Log) -> torch.Tensor:
    """The logarithms of the odds that the model gives."""
    return model(log.dense.to(model.bottom[0].weight.dtype), *bags_of(log)).float()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=300_000, help="in the log (default 300000)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the log (default 2)")
    parser.add_argument("--batch", type=int, default=512, help="samples at a time (default 512)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of all weights"
    )
    parser.add_argument(
        "--goal", type=float, default=0.97, help="share of the best AUC to reach (default 0.97)"
    )
    arguments = parser.parse_args()
    if arguments.samples < 100 or arguments.epochs < 1 or arguments.batch < 1:
        parser.error("--samples is at least 100, --epochs and --batch are at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(SEED)
    log = generate(arguments.samples)
    held_out = log.part(slice(0, arguments.samples // 5))
    learnt = log.part(slice(arguments.samples // 5, None))
    model = DLRM(lr=0.02).to(getattr(torch, arguments.dtype))
    rate = train(model, learnt, epochs=arguments.epochs, batch=arguments.batch)
    best = float(roc_auc_score(held_out.clicks, held_out.odds))
    reached = float(roc_auc_score(held_out.clicks, predict(model, held_out)))
    print(f"{rate:.0f} samples/s on {torch.get_num_threads()} thread(s)")
    print(
        f"AUC on {len(held_out.clicks)} held-out samples: {reached:.4f}, {reached / best:.2%} of the"
        f" best possible {best:.4f} (goal {arguments.goal:.0%})"
    )
    return 0 if reached >= arguments.goal * best else 1


if __name__ == "__main__":
    sys.exit(main())
