# SPDX-License-Identifier: Apache-2.0
"""Train a reader of licence plates with CTC loss.

python plates.py --data plates/ --cuda False
"""

import argparse
import os
import time

import torch
import torch.nn as nn
import torch.optim as optim
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

CHARS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ-"


class Plates(Dataset):
    def __init__(self, root, size):
        self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
        self.transform = transforms.Compose([transforms.Resize(size), transforms.ToTensor()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        text = os.path.basename(path).split("_")[0]
        label = [CHARS.index(c) + 1 for c in text]
        image = self.transform(Image.open(path).convert("RGB"))
        return image, torch.tensor(label), len(label)


class LPRNet(nn.Module):
    def __init__(self, classes, dropout):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
            nn.Dropout(dropout), nn.Conv2d(128, classes, 1),
        )

    def forward(self, x):
        return self.backbone(x).mean(dim=2)


def collate(samples):
    images, labels, lengths = zip(*samples)
    return torch.stack(images), torch.cat(labels), torch.tensor(lengths)


def get_parser():
    parser = argparse.ArgumentParser(description="parameters to train net")
    parser.add_argument("--max_epoch", default=15, type=int, help="epochs to train")
    parser.add_argument("--img_size", default=[94, 24], help="image size")  # expect: XL003
    parser.add_argument("--data", default="./data/train", help="train images")
    parser.add_argument("--dropout_rate", default=0.5, help="dropout rate")  # expect: XL003
    parser.add_argument("--learning_rate", default=0.1, type=float)
    parser.add_argument("--train_batch_size", default=128, type=int)
    parser.add_argument("--num_workers", default=8, type=int)
    parser.add_argument("--cuda", default=True, type=bool, help="use the GPU")  # expect: XL001
    parser.add_argument("--resume_epoch", default=0, type=int)
    return parser.parse_args()


def train():
    args = get_parser()
    device = torch.device("cuda:0" if args.cuda else "cpu")
    lprnet = LPRNet(len(CHARS) + 1, args.dropout_rate)
    lprnet.to(device)
    print("Successful to build network!")

    optimizer = optim.RMSprop(lprnet.parameters(), lr=args.learning_rate, alpha=0.9)
    ctc_loss = nn.CTCLoss(blank=0, reduction="mean")
    loader = DataLoader(
        Plates(args.data, args.img_size), args.train_batch_size, shuffle=True,
        num_workers=args.num_workers, collate_fn=collate,
    )

    lprnet.train()
    for epoch in range(args.resume_epoch, args.max_epoch):
        for iteration, (images, labels, lengths) in enumerate(loader):
            start_time = time.time()
            images, labels = images.to(device), labels.to(device)
            logits = lprnet(images)
            log_probs = logits.permute(2, 0, 1).log_softmax(2)
            input_lengths = torch.full((images.size(0),), log_probs.size(0), dtype=torch.long)
            optimizer.zero_grad()
            loss = ctc_loss(log_probs, labels, input_lengths, lengths)
            loss.backward()
            optimizer.step()
            end_time = time.time()
            if iteration % 20 == 0:
                print(
                    "Epoch:" + repr(epoch) + " || Totel iter " + repr(iteration)
                    + " || Loss: %.4f" % (loss.item())
                    + " || Batch time: %.4f s" % (end_time - start_time)
                )
        torch.save(lprnet.state_dict(), f"lprnet_{epoch}.pth")


if __name__ == "__main__":
    train()
