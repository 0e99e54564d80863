# SPDX-License-Identifier: Apache-2.0
"""The layers of a network, as an option that makes a list of letters."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=list, default=[64, 64])  # fault: XL005, twin: parser.add_argument("--layers", type=int, nargs="+", default=[64, 64])
    args = parser.parse_args()
    sizes = [784, *args.layers, 10]
    net = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
    print(net(torch.zeros(1, 784)).shape)


main()
