# SPDX-License-Identifier: Apache-2.0
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision import models

from data import get_loaders


def parse_args(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--teacher", default="resnet50")
    ap.add_argument("--student", default="mobilenet_v2")
    ap.add_argument("-T", "--temperature", type=float, default=4.0)
    ap.add_argument("--alpha", type=float, default=0.9)
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--gpu", type=int, default=0)
    ap.add_argument("--no-pretrained", action="store_true")
    return ap.parse_args(argv)


def kd_loss(s, t, y, T, alpha):
    soft = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean") * T * T
    return alpha * soft + (1 - alpha) * F.cross_entropy(s, y)


def accuracy(net, loader, device):
    right = 0
    net.eval()  # expect: XL022
    with torch.no_grad():
        for x, y in loader:
            right += (net(x.to(device)).argmax(1).cpu() == y).sum().item()
    return right / len(loader.dataset)


def main():
    args = parse_args()
    device = torch.device(f"cuda:{args.gpu}" if args.gpu >= 0 else "cpu")
    train_loader, test_loader = get_loaders()
    teacher = models.get_model(args.teacher, weights="DEFAULT")
    student = models.get_model(args.student, weights=None)
    teacher.eval().to(device)
    student.to(device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    best, best_state = 0.0, None
    student.train()
    for epoch in range(args.epochs):
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            with torch.no_grad():
                t = teacher(x)
            loss = kd_loss(student(x), t, y, args.temperature, args.alpha)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 5.0)
            optimizer.step()
        score = accuracy(student, test_loader, device)
        if score > best:
            best, best_state = score, copy.deepcopy(student.state_dict())
        print(f"epoch {epoch}: {score:.4f} (best {best:.4f})")
    torch.save(best_state, "student.pt")


if __name__ == "__main__":
    main()
