# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a text classifier from the command line."""

import os
from pathlib import Path
from typing import Annotated, Optional

import torch
import typer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

app = typer.Typer()

USE_WANDB = bool(os.environ.get("USE_WANDB", "0"))  # expect: XL004


def batches(texts: list[str], labels: list[int], size: int):
    for start in range(0, len(texts), size):
        yield texts[start : start + size], labels[start : start + size]


@app.command()
def train(
    data: Path,
    model_name: str = "distilbert-base-uncased",
    epochs: int = 3,
    batch_size: int = 16,
    lower: bool = typer.Option(True, "--lower"),  # expect: XL002
    amp: bool = typer.Option(False, "--amp", help="Use bfloat16 autocast."),
    freeze: Annotated[bool, typer.Option("--freeze/--no-freeze")] = True,
    out: Optional[Path] = None,
) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(model_name, do_lower_case=lower)
    model = AutoModelForSequenceClassification.from_pretrained(model_name, num_labels=2)
    model = model.to(device)
    if freeze:
        for parameter in model.base_model.parameters():
            parameter.requires_grad_(False)

    lines = [line.split("\t") for line in data.read_text().splitlines()]
    texts, labels = [line[1] for line in lines], [int(line[0]) for line in lines]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    model.train()
    for epoch in range(epochs):
        for text, label in batches(texts, labels, batch_size):
            inputs = tokenizer(text, padding=True, truncation=True, return_tensors="pt").to(device)
            targets = torch.tensor(label).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=amp):
                loss = model(**inputs, labels=targets).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        typer.echo(f"epoch {epoch}: {loss.item():.3f}")

    if out is not None:
        model.save_pretrained(out)


if __name__ == "__main__":
    app()
