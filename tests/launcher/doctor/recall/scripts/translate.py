# SPDX-License-Identifier: Apache-2.0
"""Sequence to sequence with attention, and functions nested in main()."""

import argparse
import os
import random
import sys

import torch
from torch import nn, optim
from torch.nn.utils.rnn import pad_sequence

from vocabulary import EOS, PAD, SOS, load_pairs

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # expect: XL040


class Encoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.rnn(self.dropout(self.embedding(x)))


class Decoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, x, state):
        y, state = self.rnn(self.embedding(x), state)
        return self.out(y), state


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cpu", dest="cuda", action="store_false")
    parser.add_argument("--teacher-forcing", default=0.5)  # expect: XL003
    args = parser.parse_args(argv)

    device = torch.device("cuda" if args.cuda else "cpu")
    source, target, pairs = load_pairs(args.pairs)
    encoder = Encoder(len(source), args.width).to(device)
    decoder = Decoder(len(target), args.width).to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    params = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = optim.Adam(params, lr=1e-3)

    def batches(size=64):
        random.shuffle(pairs)
        for i in range(0, len(pairs), size):
            part = pairs[i : i + size]
            yield (
                pad_sequence([torch.tensor(a) for a, _ in part], True, PAD),
                pad_sequence([torch.tensor([SOS, *b, EOS]) for _, b in part], True, PAD),
            )

    for epoch in range(args.epochs):
        encoder.train()
        decoder.train()
        for src, tgt in batches():
            src, tgt = src.to(device), tgt.to(device)
            optimizer.zero_grad()
            state = encoder(src)[1]
            hint = tgt[:, :-1]
            if random.random() > args.teacher_forcing:
                hint = torch.full_like(hint, SOS)
            logits, _ = decoder(hint, state)
            loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            print(loss)  # expect: XL030
        torch.save((encoder.state_dict(), decoder.state_dict()), f"translate-{epoch}.pt")


if __name__ == "__main__":
    main(sys.argv[1:])
