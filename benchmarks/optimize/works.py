# SPDX-License-Identifier: Apache-2.0
"""One form of one model, for python -m benchmarks.optimize: stock torch, or what `xruntime.optimize` returns.

    python -m benchmarks.optimize.works DIRECTORY NOTES resnet50 --form optimize --batch 1

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

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.workloads import DTYPES, MODELS, Work, library_model, work_on
from benchmarks.harness.works import model_name
from xruntime import optimization, optimize

FORMS = ("eager", "compile", "freeze", "optimize", "optimize-eager")
"""Stock torch: eager, torch.compile, torch.compile with frozen weights; ours: compiled, and not."""


WORKS = {
    "resnet50": MODELS["resnet50"],
    "bert": MODELS["bert"],
    # The same DLRM twice: of torch's modules alone, and with MergedEmbeddingBag and interaction.
    "dlrm": MODELS["dlrm_torch"],
    "dlrm_native": MODELS["dlrm"],
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
