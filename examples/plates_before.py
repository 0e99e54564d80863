# SPDX-License-Identifier: Apache-2.0
"""The licence-plate reader of plates.py with the mistakes that docs/tutorial-plates.md finds.

    python examples/plates_before.py --cuda False --epochs 1

It learns as well as plates.py, and computes on the CPU whatever it is asked for: nothing fails, and the
memory of a GPU is even in use. Do not copy from it.
"""

import argparse
import io
import time

import torch
from PIL import Image
from plates import CHARACTERS, HELD_OUT, LEARNT, MAX_LENGTH, STEPS, Reader, draw_photographs
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", type=bool, default=True)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--seconds", type=float, default=3600.0)
parser.add_argument("--lr", default=0.002)
args = parser.parse_args()

device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


class Plates(Dataset):
    def __init__(self, photographs):
        self.photographs = photographs

    def __len__(self):
        return len(self.photographs)

    def __getitem__(self, index):
        photograph = self.photographs[index]
        image = (
            Image.open(io.BytesIO(photograph.jpeg)).convert("RGB").resize((128, 32)).convert("L")
        )
        pixels = torch.tensor(list(image.tobytes()), dtype=torch.float32).view(1, 32, 128) / 255
        labels = [CHARACTERS.index(character) + 1 for character in photograph.text]
        labels += [0] * (MAX_LENGTH - len(labels))
        return pixels, torch.tensor(labels), len(photograph.text)


def read_plate(best):
    text, before = "", 0
    for label in best:
        if label not in (0, before):
            text += CHARACTERS[label - 1]
        before = label
    return text


def evaluate(model, loader, photographs):
    texts = []
    for images, _, _ in loader:
        images.to(device)
        best = model(images).argmax(dim=2)
        texts += [read_plate(best[:, column].tolist()) for column in range(len(images))]
    return sum(texts[i] == photographs[i].text for i in range(len(texts))) / len(texts)


torch.manual_seed(0)
photographs = draw_photographs(LEARNT + HELD_OUT)
learnt, held_out = photographs[:LEARNT], photographs[LEARNT:]
train_loader = DataLoader(Plates(learnt), batch_size=args.batch, shuffle=True)
test_loader = DataLoader(Plates(held_out), batch_size=100)

model = Reader()
for parameter in model.parameters():
    parameter.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
criterion = nn.CTCLoss()

deadline = time.time() + args.seconds
for epoch in range(args.epochs):
    running_loss, seen, start = 0.0, 0, time.time()
    for images, labels, lengths in train_loader:
        images.to(device)
        labels.to(device)
        output = model(images).log_softmax(2)
        steps = torch.full((len(images),), STEPS).to(device)
        loss = criterion(output, labels, steps, lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        running_loss += loss.item()
        seen += len(images)
        print(f"loss {loss.item():.3f}, {seen / (time.time() - start):.1f} images/s", flush=True)
        if time.time() > deadline:
            break
    accuracy = evaluate(model, test_loader, held_out)
    print(f"epoch {epoch + 1}: {accuracy:.1%} of {HELD_OUT} held-out plates are read right")
    if time.time() > deadline:
        break
