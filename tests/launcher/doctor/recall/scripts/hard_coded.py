# SPDX-License-Identifier: Apache-2.0
"""Super-resolution; somebody added --device later."""
from argparse import ArgumentParser

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

from sr_data import Crops, psnr


class ESPCN(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh(),
            nn.Conv2d(32, scale * scale, 3, padding=1), nn.PixelShuffle(scale),
        )

    def forward(self, x):
        return self.body(x)


def arguments():
    parser = ArgumentParser()
    parser.add_argument("--scale", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda", "xpu"])
    return parser.parse_args()


def main():
    args = arguments()
    device = torch.device(args.device)
    net = ESPCN(args.scale).to(device)
    mse = nn.MSELoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    train_loader = DataLoader(Crops("T91", args.scale), 16, shuffle=True, num_workers=2)
    test_loader = DataLoader(Crops("Set5", args.scale), 1)

    for epoch in range(args.epochs):
        net.train()
        for low, high in train_loader:
            low = low.cuda()  # expect: XL013
            high = high.to("cuda")  # expect: XL013
            loss = mse(net(low), high)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 != 9:
            continue
        net.eval()
        values = []
        with torch.no_grad():
            for low, high in test_loader:
                values.append(psnr(net(low.to(device)).cpu(), high))
        print(epoch, sum(values) / len(values))


if __name__ == "__main__":
    main()
