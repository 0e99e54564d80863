# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import random

import torch
import torch.nn as nn
import torch.optim as optim
import torchvision.utils as vutils
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--dataroot", required=True)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batchSize", type=int, default=64)
parser.add_argument("--nz", type=int, default=100)
parser.add_argument("--ngf", type=int, default=64)
parser.add_argument("--niter", type=int, default=25)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--outf", default=".")
opt = parser.parse_args()

os.makedirs(opt.outf, exist_ok=True)
torch.manual_seed(random.randint(1, 10000))
device = torch.device("cpu" if opt.cpu else "cuda:0")

dataset = datasets.ImageFolder(
    opt.dataroot,
    transforms.Compose([transforms.Resize(64), transforms.CenterCrop(64), transforms.ToTensor()]),
)
dataloader = DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, num_workers=opt.workers)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf, 4, 4, 0), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 4, 0), nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf=64):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 4, 0), nn.LeakyReLU(0.2), nn.Conv2d(ndf, ndf * 4, 4, 4, 0),
            nn.BatchNorm2d(ndf * 4), nn.LeakyReLU(0.2), nn.Conv2d(ndf * 4, 1, 4, 1, 0),
        )

    def forward(self, x):
        return self.main(x).view(-1)


netG = Generator(opt.nz, opt.ngf).to(device)
netD = Discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(64, opt.nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(opt.beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(opt.beta1, 0.999))

for epoch in range(opt.niter):
    for i, (real, _) in enumerate(dataloader):
        netD.zero_grad()
        real = real.to(device)
        label = torch.ones(real.size(0)).to(device)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), opt.nz, 1, 1).to(device)
        fake = netG(noise)
        label.fill_(0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        print("[%d/%d] D %.4f G %.4f" % (epoch, i, errD_real.item(), errG.item()))  # expect: XL030

    with torch.no_grad():
        samples = netG(fixed_noise)
    vutils.save_image(samples, f"{opt.outf}/fake_{epoch:03d}.png", normalize=True)
