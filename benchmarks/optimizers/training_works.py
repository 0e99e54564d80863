# SPDX-License-Identifier: Apache-2.0
"""One form of one model in training, for python -m benchmarks.optimizers.training_steps.

    python -m benchmarks.optimizers.training_works DIRECTORY bert --form optimize

Steps run in the turns of DIRECTORY until the benchmark ends. A step is forward, backward and an update by AdamW.
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
from xruntime import optimize

FORMS = ("eager", "compile", "optimize")
"""Stock torch with its fused AdamW, eager and compiled; ours."""

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


WORKS: dict[str, Callable[[int], TrainingWork]] = {"bert": bert, "gpt2": gpt2, "vit": vit}


def step_of(form: str, work: TrainingWork, dtype: torch.dtype) -> Callable[[], object]:
    """Return a function that runs one step, in bf16 under autocast or in what `optimize` makes of it."""
    model: nn.Module = work.model.train()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if form == "optimize":
        model, optimizer = optimize(model, optimizer=optimizer, dtype=dtype, inplace=True)
    elif form == "compile":
        model.compile()
    autocast = dtype is torch.bfloat16 and form != "optimize"

    def step() -> object:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            scores = model(work.batch).logits
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
