# SPDX-License-Identifier: Apache-2.0
"""Variational autoencoder with settings in a dictionary."""
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms
from torchvision.utils import save_image

config = {"batch": 128, "epochs": 10, "lr": 1e-3, "device": "cuda", "latent": 20}


class VAE(nn.Module):
    def __init__(self, latent):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(784, 400)
        self.mu = nn.Linear(400, latent)
        self.logvar = nn.Linear(400, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return torch.sigmoid(self.decoder(z)), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


tensors = transforms.ToTensor()
train_loader = torch.utils.data.DataLoader(
    datasets.MNIST("data", train=True, transform=tensors), config["batch"], shuffle=True
)
test_loader = torch.utils.data.DataLoader(
    datasets.MNIST("data", train=False, transform=tensors), config["batch"]
)
device = torch.device(config["device"])
vae = VAE(config["latent"])
vae = vae.to(device)
optimizer = optim.Adam(vae.parameters(), lr=config["lr"])
for epoch in range(config["epochs"]):
    vae.train()
    for data, _ in train_loader:
        recon, mu, logvar = vae(data)  # expect: XL011
        loss = loss_function(recon, data, mu, logvar)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    vae.eval()
    total = torch.zeros((), device=device)
    with torch.no_grad():
        for data, _ in test_loader:
            data = data.to(device)
            total += loss_function(vae(data)[0], data, *vae(data)[1:])
        grid = vae.decoder(torch.randn(64, config["latent"], device=device)).sigmoid()
    save_image(grid.cpu().view(64, 1, 28, 28), f"digits_{epoch}.png")
    print(f"====> Test set loss: {total.item() / len(test_loader.dataset):.4f}")
