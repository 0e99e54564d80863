# SPDX-License-Identifier: Apache-2.0
"""Train a reader of licence plates on photographs that it draws, to 99 % of held-out plates.

    python examples/plates.py --device auto
    xlaunch --metric images/s examples/plates.py --seconds 20 --batch 128 --workers 2

A plate has five to seven characters. Convolutions look at the photograph, a GRU reads it from left to
right, and the CTC loss needs no positions of characters ("Connectionist Temporal Classification", Graves
et al., 2006). Prints the loss and images/s of training about once a second, and after each epoch
how many held-out plates are read without an error; below --goal the exit code is 1.

plates_before.py is the same with the mistakes that docs/tutorial-plates.md finds.

Needs `pip install pillow`.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import sys
import time
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.utils.data import DataLoader, Dataset

from xruntime import describe_device, device_option

CHARACTERS = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"
BLANK = 0
"""The label of no character; those of CHARACTERS begin at 1."""
MAX_LENGTH = 7
PHOTOGRAPH = (512, 128)
IMAGE = (128, 32)
STEPS = 32
"""Positions from left to right at which the network reads."""
LEARNT, HELD_OUT = 2700, 300
REPORT_S = 1.0

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Photograph(NamedTuple):
    jpeg: bytes
    text: str


def draw_photographs(count: int, seed: int = 0) -> list[Photograph]:
    """The same plates for the same seed: any place, a little crooked, in front of any colour."""
    dice = random.Random(seed)  # noqa: S311 - no secret is made of it
    fonts = [ImageFont.load_default(size) for size in (64, 70, 76)]
    photographs = []
    for _ in range(count):
        text = "".join(dice.choices(CHARACTERS, k=dice.randint(5, MAX_LENGTH)))
        colour = (dice.randint(40, 200), dice.randint(40, 200), dice.randint(40, 200))
        image = Image.new("RGB", PHOTOGRAPH, colour)
        pencil = ImageDraw.Draw(image)
        left, top, width, height = dice.randint(8, 40), dice.randint(6, 22), 440, 92
        plate = (left, top, left + width, top + height)
        pencil.rounded_rectangle(plate, 10, fill="white", outline="black", width=3)
        font, pitch = dice.choice(fonts), (width - 30) / len(text)
        for position, character in enumerate(text):
            middle = (left + 15 + pitch * (position + 0.5), top + height / 2)
            pencil.text(middle, character, font=font, fill="black", anchor="mm")
        file = io.BytesIO()
        image.rotate(dice.uniform(-3, 3), fillcolor=colour).save(file, "JPEG", quality=80)
        photographs.append(Photograph(file.getvalue(), text))
    return photographs


class Plates(Dataset[Batch]):
    """Grey images (1, 32, 128) of uint8, labels (MAX_LENGTH) filled up with blanks, and their number."""

    def __init__(self, photographs: list[Photograph]) -> None:
        self.photographs = photographs

    def __len__(self) -> int:
        return len(self.photographs)

    def __getitem__(self, index: int) -> Batch:
        jpeg, text = self.photographs[index]
        image = Image.open(io.BytesIO(jpeg))
        image.draft("L", IMAGE)  # libjpeg decodes at a quarter of the size, and no colours
        labels = torch.tensor([CHARACTERS.index(one) + 1 for one in text])
        filled = nn.functional.pad(labels, (0, MAX_LENGTH - len(text)), value=BLANK)
        return torch.from_numpy(np.array(image)[None]), filled, torch.tensor(len(text))


class Reader(nn.Module):
    """Images (n, 1, 32, 128) in 0..1 to scores of each character, (STEPS, n, 1 + characters)."""

    def __init__(self, width: int = 32, hidden: int = 96) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, pool: tuple[int, int]) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(pool),
            )

        self.look = nn.Sequential(
            block(1, width, (2, 2)),
            block(width, 2 * width, (2, 2)),
            block(2 * width, 4 * width, (2, 1)),
            block(4 * width, 4 * width, (2, 1)),
        )
        self.read = nn.GRU(2 * 4 * width, hidden, bidirectional=True)
        self.name = nn.Linear(2 * hidden, 1 + len(CHARACTERS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        columns = self.look(images).flatten(1, 2).permute(2, 0, 1)
        return self.name(self.read(columns)[0])


class Place(NamedTuple):
    """Where the model computes, and whether convolutions and the GRU do so in bf16."""

    device: torch.device
    bf16: bool


def score(model: Reader, images: torch.Tensor, place: Place) -> torch.Tensor:
    """Logarithms of probabilities in fp32, (STEPS, n, 1 + characters), of images in uint8."""
    images = images.to(place.device, non_blocking=True, memory_format=torch.channels_last)
    with torch.autocast(place.device.type, torch.bfloat16, enabled=place.bf16):
        scores = model(images.float() / 255)
    return scores.float().log_softmax(dim=2)


def train(
    model: Reader,
    loader: DataLoader[Batch],
    optimizer: torch.optim.Optimizer,
    place: Place,
    deadline: float,
) -> None:
    """Pass over the plates once, or until `deadline`; print loss and rate every second."""
    model.train()
    seen, total, start = 0, torch.zeros((), device=place.device), time.perf_counter()
    for number, (images, labels, lengths) in enumerate(loader, start=1):
        scores = score(model, images, place)
        targets = labels.to(place.device, non_blocking=True)
        # The loss reads the lengths on the CPU: there it does not wait for the device.
        steps = torch.full_like(lengths, STEPS)
        loss = nn.functional.ctc_loss(scores, targets, steps, lengths)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        seen += len(images)
        total += loss.detach() * len(images)
        now = time.perf_counter()
        if now >= min(start + REPORT_S, deadline) or number == len(loader):
            mean = total.item() / seen  # waits for the device, so what is timed is finished
            rate = seen / (time.perf_counter() - start)
            print(f"loss {mean:.3f}, {rate:.1f} images/s", flush=True)
            seen, total, start = 0, torch.zeros_like(total), time.perf_counter()
        if now >= deadline:
            break


@torch.inference_mode()
def read(model: Reader, loader: DataLoader[Batch], place: Place) -> list[str]:
    """The texts of the plates, in the loader's order."""
    model.eval()
    return [
        "".join(CHARACTERS[label - 1] for label, _ in groupby(row) if label != BLANK)
        for images, _, _ in loader
        for row in score(model, images, place).argmax(dim=2).T.tolist()
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    device_option(parser)
    parser.add_argument("--batch", type=int, default=32, help="images at a time (default 32)")
    parser.add_argument("--workers", type=int, default=1, help="processes that decode (default 1)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the plates (default 5)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="train no longer than this")
    parser.add_argument("--goal", type=float, default=0.0, help="share of plates to read right")
    arguments = parser.parse_args()
    if arguments.batch < 1 or arguments.workers < 0 or arguments.epochs < 1:
        parser.error("--batch and --epochs are at least 1, --workers at least 0")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(0)
    place = Place(arguments.device, bf16=bool(describe_device(arguments.device).bf16))
    model = Reader().to(place.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    photographs = draw_photographs(LEARNT + HELD_OUT)
    learnt, held_out = photographs[:LEARNT], photographs[LEARNT:]
    pinned = place.device.type != "cpu"
    loader = DataLoader(
        Plates(learnt),
        arguments.batch,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        pin_memory=pinned,
    )
    held_out_loader = DataLoader(Plates(held_out), batch_size=100, pin_memory=pinned)

    deadline = time.perf_counter() + arguments.seconds
    for epoch in range(1, arguments.epochs + 1):
        train(model, loader, optimizer, place, deadline)
        texts = read(model, held_out_loader, place)
        right = sum(text == plate.text for text, plate in zip(texts, held_out, strict=True))
        print(f"epoch {epoch}: {right / HELD_OUT:.1%} of {HELD_OUT} held-out plates are read right")
        if time.perf_counter() >= deadline:
            break
    print(f"the first held-out plate is {held_out[0].text}, and read as {texts[0]}")
    return 0 if right / HELD_OUT >= arguments.goal else 1


if __name__ == "__main__":
    sys.exit(main())
