# SPDX-License-Identifier: Apache-2.0
"""Fine-tune Faster R-CNN on boxes of our own."""

import argparse
import json
import time
from pathlib import Path

import torch
import torchvision
from torch.cuda.amp import GradScaler, autocast  # expect: XL051
from torchvision.io import read_image
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor


class BoxDataset(torch.utils.data.Dataset):
    def __init__(self, annotations: Path):
        self.records = json.loads(annotations.read_text())
        self.root = annotations.parent

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int):
        record = self.records[index]
        image = read_image(str(self.root / record["file"])).float() / 255
        boxes = torch.tensor(record["boxes"], dtype=torch.float32)
        return image, {"boxes": boxes, "labels": torch.tensor(record["labels"])}


def get_model(num_classes: int):
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights="DEFAULT")
    channels = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(channels, num_classes)
    return model


def train_one_epoch(model, optimizer, loader, device, scaler, print_freq=50):
    model.train()
    for step, (images, targets) in enumerate(loader):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        with autocast():
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % print_freq == 0:
            print(step, loss.item())


def evaluate(model, loader, device):
    model.eval()
    found = []
    for images, targets in loader:
        images = [image.to(device) for image in images]
        outputs = model(images)
        found += [{k: v.cpu() for k, v in output.items()} for output in outputs]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(__doc__)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr-steps", default=[6, 8], help="epochs that decay")  # expect: XL003
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    device = torch.device(args.device)
    dataset = BoxDataset(args.annotations)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=2, shuffle=True, num_workers=4, collate_fn=lambda b: tuple(zip(*b))
    )
    model = get_model(args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, args.lr_steps)
    scaler = GradScaler()
    for _ in range(args.epochs):
        begun = time.time()
        train_one_epoch(model, optimizer, loader, device, scaler)
        schedule.step()
        print(f"epoch took {time.time() - begun:.0f} s")
    torch.save(evaluate(model, loader, device), "detections.pt")


if __name__ == "__main__":
    main()
