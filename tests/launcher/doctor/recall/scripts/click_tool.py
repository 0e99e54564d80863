# SPDX-License-Identifier: Apache-2.0
import click
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, random_split

from speech.data import SpokenDigits, pad


class Recognizer(nn.Module):
    def __init__(self, mels=80, hidden=256, classes=10):
        super().__init__()
        self.rnn = nn.GRU(mels, hidden, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@click.group()
def cli():
    """Recognize spoken digits."""


@cli.command()
@click.argument("root", type=click.Path(exists=True))
@click.option("--epochs", default=10, show_default=True)
@click.option("--lr", default=3e-4)
@click.option("--augment", is_flag=True, default=True, help="Mask frequencies.")  # expect: XL002
@click.option("--resume", is_flag=True, default=False)
@click.option("--gpu/--no-gpu", default=True)
def train(root, epochs, lr, augment, resume, gpu):
    device = "cuda" if gpu and torch.cuda.is_available() else "cpu"
    dataset = SpokenDigits(root, augment=augment)
    train_set, valid_set = random_split(dataset, [0.9, 0.1])
    train_loader = DataLoader(train_set, 32, shuffle=True, collate_fn=pad, num_workers=4)
    valid_loader = DataLoader(valid_set, 32, collate_fn=pad)
    model = Recognizer().cuda()
    if resume:
        model.load_state_dict(torch.load("digits.pt", map_location=device, weights_only=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loss_function = nn.CrossEntropyLoss()

    for epoch in range(epochs):
        model.train()
        for spectra, digits in train_loader:
            spectra, digits = spectra.to(device), digits.to(device)
            optimizer.zero_grad(set_to_none=True)
            loss_function(model(spectra), digits).backward()
            optimizer.step()

        model.eval()
        right = torch.zeros((), device=device)
        with torch.inference_mode():
            for spectra, digits in valid_loader:
                spectra, digits = spectra.to(device), digits.to(device)
                right += (model(spectra).argmax(-1) == digits).sum()
        click.echo(f"{epoch + 1}: {right.item() / len(valid_set):.3f}")
        torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    cli()
