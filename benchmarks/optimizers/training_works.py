# SPDX-License-Identifier: Apache-2.0
"""One form of one model in training, for python -m benchmarks.optimizers.training_steps.

    python -m benchmarks.optimizers.training_works DIRECTORY bert --form optimize

Steps run in the turns of DIRECTORY until the benchmark ends. A step is forward, backward and an update by AdamW.
Only the form `optimize` imports this project: the Python of the form `ipex` does not have it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.workloads import DTYPES, work_on

FORMS = ("eager", "channels-last", "compile", "ipex", "optimize")
"""Stock torch, eager, eager with convolutions channels-last, and compiled; IPEX; ours. All begin with torch's fused
AdamW."""

LAYERS, LENGTH, CLASSES = 2, 128, 1000


class TrainingWork(NamedTuple):
    model: nn.Module
    batch: Tensor
    targets: Tensor
    """Numbers of classes: of each item, or of each token."""


def bert(batch: int) -> TrainingWork:
    """Layers of BERT-base, which classify sequences of tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_hidden_layers=LAYERS, num_labels=CLASSES))
    tokens = torch.randint(0, 30_000, (batch, LENGTH))
    return TrainingWork(model, tokens, torch.randint(0, CLASSES, (batch,)))


def vit(batch: int) -> TrainingWork:
    """Layers of ViT-base with dropouts of 0.1, which classify images."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=LAYERS,
        num_labels=CLASSES,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    images = torch.randn(batch, 3, 224, 224)
    return TrainingWork(
        ViTForImageClassification(config), images, torch.randint(0, CLASSES, (batch,))
    )


def gpt2(batch: int) -> TrainingWork:
    """Layers of GPT-2 with a small vocabulary, which predict each next token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, vocab_size=CLASSES, use_cache=False))
    tokens = torch.randint(0, CLASSES, (batch, LENGTH + 1))
    return TrainingWork(model, tokens[:, :-1], tokens[:, 1:])


class WideBlock(nn.Module):
    """Two convolutions with a dropout between them, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(map(nn.BatchNorm2d, (inputs, outputs)))
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            ]
        )
        self.dropout = nn.Dropout(0.3)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        values = functional.relu(self.norms[0](images))
        inner = functional.relu(self.norms[1](self.convolutions[0](values)))
        added: Tensor = self.convolutions[1](self.dropout(inner)) + self.shortcut(values)
        return added


def cnn(batch: int) -> TrainingWork:
    """A wide residual network of 16 layers, 4 times as wide, with dropouts of 0.3 (arXiv 1605.07146)."""
    sizes = [(16, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        *(WideBlock(*size) for size in sizes),
        *(nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(256, 100),
    )
    return TrainingWork(model, torch.randn(batch, 3, 32, 32), torch.randint(0, 100, (batch,)))


WORKS: dict[str, Callable[[int], TrainingWork]] = {
    "bert": bert,
    "cnn": cnn,
    "gpt2": gpt2,
    "vit": vit,
}


def forms_of(work: str) -> list[str]:
    """Return the forms of a work."""
    return [form for form in FORMS if form != "channels-last" or work == "cnn"]


def step_of(form: str, work: TrainingWork, dtype: torch.dtype) -> Callable[[], object]:
    """Return a function that runs one step, in bf16 under autocast or in what `optimize` makes of it."""
    model: nn.Module = work.model.train()
    batch = work.batch
    if form == "channels-last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batch = batch.to(memory_format=torch.channels_last)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if form == "optimize":
        from xruntime import optimize

        model, optimizer = optimize(model, optimizer=optimizer, dtype=dtype, inplace=True)
    elif form == "ipex":
        import intel_extension_for_pytorch as ipex

        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=dtype, inplace=True)
    elif form == "compile":
        model.compile()
    autocast = dtype is torch.bfloat16 and form != "optimize"

    def step() -> object:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            output = model(batch)
        scores = output if isinstance(output, Tensor) else output.logits
        loss = functional.cross_entropy(scores.flatten(0, -2).float(), work.targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path, help="directory of the benchmark's turns")
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args()
    torch.manual_seed(0)
    step = step_of(options.form, WORKS[options.work](options.batch), DTYPES[options.dtype])
    step()
    # The peak of memory is that of steps, without the preparation.
    Path("/proc/self/clear_refs").write_text("5")
    work_on(options.directory, step)


if __name__ == "__main__":
    main()
