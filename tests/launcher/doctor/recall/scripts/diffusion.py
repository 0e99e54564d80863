# SPDX-License-Identifier: Apache-2.0
"""Denoising diffusion on small images."""

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.cuda import amp
from torch.optim import Adam
from torch.utils.data import DataLoader
from tqdm import tqdm

from ddpm_data import ImageFolder
from unet import Unet

T = 1000


def cycle(dl):
    while True:
        yield from dl


class Trainer:
    def __init__(self, folder, *, steps=100_000, batch=32, lr=8e-5, ema_decay=0.995, every=1000):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Unet(dim=64).to(self.device)
        self.ema = copy.deepcopy(self.model).eval()
        self.ema_decay = ema_decay
        self.opt = Adam(self.model.parameters(), lr=lr)
        self.scaler = amp.GradScaler()  # expect: XL051
        loader = DataLoader(ImageFolder(folder), batch, shuffle=True, num_workers=4)
        self.data = cycle(loader)
        self.steps, self.every = steps, every
        betas = torch.linspace(1e-4, 0.02, T)
        self.alphas = torch.cumprod(1 - betas, 0).to(self.device)

    def noisy(self, x, t, noise):
        a = self.alphas[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    def train(self):
        with tqdm(total=self.steps) as bar:
            for step in range(self.steps):
                x = next(self.data).to(self.device)
                t = torch.randint(0, T, (x.shape[0],)).to(self.device)
                noise = torch.randn_like(x)
                with torch.autocast(self.device.type):
                    predicted = self.model(self.noisy(x, t, noise), t)
                    loss = F.mse_loss(predicted, noise)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad()
                bar.set_description(f"loss {loss.item():.4f}")  # expect: XL030
                bar.update(1)
                self.update_ema()
                if step % self.every == 0:
                    self.sample(Path(f"sample-{step}.pt"))

    @torch.no_grad()
    def update_ema(self):
        for old, new in zip(self.ema.parameters(), self.model.parameters()):
            old.lerp_(new, 1 - self.ema_decay)

    @torch.inference_mode()
    def sample(self, path, count=16):
        x = torch.randn(count, 3, 64, 64, device=self.device)
        for i in reversed(range(T)):
            t = torch.full((count,), i, device=self.device)
            x = x - 0.01 * self.ema(x, t)
        torch.save(x.cpu(), path)


if __name__ == "__main__":
    Trainer("flowers").train()
