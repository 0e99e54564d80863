# SPDX-License-Identifier: Apache-2.0
"""A model in float or INT8, whose steps run in the turns of DIRECTORY until the benchmark ends.

    python -m benchmarks.int8.works DIRECTORY resnet50 --form xruntime --batch 16

Inputs are random, and so are ResNet-50's weights. Both INT8 forms are calibrated with the same batches.
`torchao` is what torchao's documentation of X86InductorQuantizer describes; its quantizer refuses a module
that is called more than once, so ResNet-50 gets a ReLU for each call there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MethodType

import torch
from torch import nn

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.workloads import Work, model_work, work_on
from benchmarks.harness.works import model_name

WORKS = ("resnet50", "minilm", "bert")
FORMS = ("eager", "compiled", "torchao", "xruntime")
CALIBRATION_BATCHES = 2


def work_name(text: str) -> str:
    """Check the name of a work, one of WORKS or `LIBRARY:MODEL`, for a parser of options."""
    return model_name(text, WORKS)


def eager(work: Work) -> Callable[[torch.Tensor], object]:
    return work.model


def compiled(work: Work) -> Callable[[torch.Tensor], object]:
    import torch._inductor.config as settings

    settings.freezing = True
    return torch.compile(work.model)


def by_hand(work: Work) -> Callable[[torch.Tensor], object]:
    """INT8 by torchao alone, as it documents it."""
    import torch._inductor.config as settings
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    exported = torch.export.export(with_own_relus(work.model), (work.batch,)).module()
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    for _ in range(CALIBRATION_BATCHES):
        prepared(work.batch)
    settings.freezing = True
    return torch.compile(convert_pt2e(prepared))


def by_xruntime(work: Work) -> Callable[[torch.Tensor], object]:
    from xruntime.quantization import QuantConf, calibrate, convert

    with calibrate(work.model, QuantConf(), work.batch) as observed:
        for _ in range(CALIBRATION_BATCHES):
            observed(work.batch)
    return convert(observed)


def with_own_relus(model: nn.Module) -> nn.Module:
    """Give each call of a bottleneck's ReLU a module of its own."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.relu_of_narrow(self.narrow(x))
        y = self.relu_of_look(self.look(y))
        return self.relu(self.widen(y) + self.shortcut(x))

    for block in model.modules():
        if type(block).__name__ == "Bottleneck":
            block.relu_of_narrow, block.relu_of_look = nn.ReLU(True), nn.ReLU(True)
            block.forward = MethodType(forward, block)
    return model


MAKERS = dict(zip(FORMS, (eager, compiled, by_hand, by_xruntime), strict=True))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path, help="directory of the benchmark's turns")
    parser.add_argument("work", type=work_name)
    parser.add_argument("--form", choices=FORMS, default="xruntime")
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    work = model_work(options.work, options.batch, torch.float32)
    with torch.no_grad():
        run = MAKERS[options.form](work)
    with torch.inference_mode():
        work_on(options.directory, lambda: run(work.batch))


if __name__ == "__main__":
    main()
