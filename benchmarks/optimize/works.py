# SPDX-License-Identifier: Apache-2.0
"""One form of one model, for python -m benchmarks.optimize: stock torch, or what `xruntime.optimize` returns.

    python -m benchmarks.optimize.works DIRECTORY NOTES mobilenet --form optimize --batch 1

Writes the seconds of preparation, and what `explain` says, into a file of the directory NOTES. Steps run
in the turns of DIRECTORY until the benchmark ends. In bfloat16 every form runs under autocast.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.workloads import DTYPES, MODELS, Work, library_model, work_on
from benchmarks.harness.works import model_name
from xruntime import optimization, optimize

FORMS = ("eager", "compile", "freeze", "optimize", "optimize-eager")
"""Stock torch: eager, torch.compile, torch.compile with frozen weights; ours: compiled, and not."""


class InvertedResidual(nn.Module):
    """Expansion, a convolution of each channel by itself, and projection (arXiv 1801.04381)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers = conv_norm(inputs, width, 1) if expansion > 1 else []
        layers += conv_norm(width, width, 3, stride=stride, groups=width)
        layers += [nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return images + features if self.adds else features


def conv_norm(
    inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]


def mobilenet_v2() -> nn.Module:
    layers = conv_norm(3, 32, 3, stride=2)
    inputs = 32
    for expansion, outputs, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for at in range(count):
            layers.append(InvertedResidual(inputs, outputs, stride if at == 0 else 1, expansion))
            inputs = outputs
    layers += conv_norm(inputs, 1280, 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def vgg11() -> nn.Module:
    """VGG-11 without batch norms (arXiv 1409.1556)."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for size, outputs in ((512 * 7 * 7, 4096), (4096, 4096)):
        layers += [nn.Linear(size, outputs), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def images(make: Callable[[], nn.Module]) -> Callable[[int, torch.dtype], Work]:
    def work(batch: int, dtype: torch.dtype) -> Work:
        return Work(make().eval().to(dtype), torch.randn(batch, 3, 224, 224).to(dtype))

    return work


WORKS = {
    "resnet50": MODELS["resnet50"],
    "bert": MODELS["bert"],
    # The same DLRM twice: of torch's modules alone, and with MergedEmbeddingBag and interaction.
    "dlrm": MODELS["dlrm_torch"],
    "dlrm_native": MODELS["dlrm"],
    "mobilenet": images(mobilenet_v2),
    "vgg11": images(vgg11),
    "minilm": MODELS["minilm"],
}


def work_name(text: str) -> str:
    """Check the name of a work, one of WORKS or `LIBRARY:MODEL`, for a parser of options."""
    return model_name(text, WORKS)


def step_of(form: str, work: Work, dtype: torch.dtype) -> tuple[Callable[[], object], str]:
    """Return a function that runs one step, and a text that explains the form."""
    model, batch = work
    if form.startswith("optimize"):
        compiles = form == "optimize"
        fast = optimize(
            model,
            sample_input=batch,
            dtype=None if dtype is torch.float32 else dtype,
            graph="auto" if compiles else "none",
            wait=compiles,
        )
        return lambda: fast(batch), str(optimization.explain(fast))
    if form != "eager":
        model = torch.compile(model, options={"freezing": form == "freeze"})

    def step() -> object:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            return model(batch)

    return step, form


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path, help="directory of the benchmark's turns")
    parser.add_argument("notes", type=Path, help="directory for notes on the preparation")
    parser.add_argument("work", type=work_name)
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args()
    torch.manual_seed(0)
    make = WORKS.get(options.work, partial(library_model, options.work))
    work = make(options.batch, torch.float32)
    if options.form == "freeze":
        # Dynamo reads the process's setting.
        import torch._inductor.config as settings

        settings.freezing = True
    began = time.perf_counter()
    with torch.no_grad():
        step, text = step_of(options.form, work, DTYPES[options.dtype])
        step()
    note = {"form": options.form, "prepare_s": time.perf_counter() - began, "text": text}
    (options.notes / f"{options.form}-{os.getpid()}.json").write_text(json.dumps(note))
    with torch.inference_mode():
        work_on(options.directory, step)


if __name__ == "__main__":
    main()
