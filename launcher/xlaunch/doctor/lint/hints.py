# SPDX-License-Identifier: Apache-2.0
"""XL10x: advice on performance, with --hints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Call, Problem, dotted, has_stars, keyword
from xlaunch.doctor.lint.source import usable_cpus
from xlaunch.doctor.lint.work import Work

_PRECISION = frozenset(
    (
        "GradScaler", "amp", "apex", "autocast", "bf16", "bfloat16", "float16", "float8",
        "fp16", "half", "mixed_precision",
    )
)  # fmt: skip
_GAINS_BY_PRECISION = re.compile(
    r"Conv\dd|^Transformer|Attention|LSTM|GRU|from_pretrained|create_model|resnet"
)
"""Small networks of linear layers gain nothing."""

_DECODERS = {
    "PIL.Image.open": "Pillow",
    "skimage.io.imread": "scikit-image",
    "matplotlib.pyplot.imread": "matplotlib",
    "matplotlib.image.imread": "matplotlib",
    "imageio.imread": "imageio",
}
_FUSED = frozenset(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))
_SLOW_READERS = frozenset(
    (
        "PIL", "cv2", "h5py", "imageio", "librosa", "skimage", "soundfile",
        "torchaudio", "torchvision",
    )
)  # fmt: skip
"""Where none is imported, the data is probably in memory."""
_MASK = re.compile(r"(?i)mask|trimap|label|target|annot")


def check_hints(work: Work) -> Iterator[Problem]:
    """What would probably make the script faster."""
    if not work.is_managed:
        yield from _precision(work)
    yield from _loaders(work)
    yield from _decoding(work)
    yield from _optimizers(work)


def _precision(work: Work) -> Iterator[Problem]:
    words = work.facts.words
    if words & _PRECISION or not work.uses_device or "step" not in words:
        return
    if not any(_GAINS_BY_PRECISION.search(word) for word in words) and not (
        "models" in words and "torchvision" in work.facts.modules()
    ):
        return
    for one in work.backwards[:1]:
        yield (
            one.node,
            "XL101",
            "the training is in fp32 throughout; on devices and CPUs with bf16, forward and loss under "
            "torch.autocast(device.type, dtype=torch.bfloat16) are faster",
        )


def _loaders(work: Work) -> Iterator[Problem]:
    for call in work.names.calls_named("torch.utils.data.DataLoader"):
        given = len(call.node.args) + len(call.node.keywords)
        # Loaders of single items are for trying something out.
        if has_stars(call.node) or len(call.node.args) > 5 or given < 2:
            continue
        workers = keyword(call.node, "num_workers")
        count = workers.value if isinstance(workers, ast.Constant) else None
        if workers is None and work.facts.modules() & _SLOW_READERS:
            yield (
                call.node,
                "XL103",
                "the training process itself loads the data; num_workers=2 or more, with "
                "persistent_workers=True, loads it beside the training",
            )
        if not isinstance(count, int) or count == 0:
            continue
        if count > (cpus := usable_cpus()):
            yield (
                call.node,
                "XL104",
                f"num_workers={count} is more than the {cpus} CPUs of this process; take "
                f"len(os.sched_getaffinity(0))",
            )
        missing = [
            f"{name}=True {gain}"
            for name, gain, matters in (
                (
                    "pin_memory",
                    "lets a device copy while it computes",
                    "cuda" in work.facts.words or "cuda" in work.facts.texts,
                ),
                (
                    "persistent_workers",
                    "starts the workers once",
                    any("epoch" in one for one in work.facts.words),
                ),
            )
            if matters and keyword(call.node, name) is None
        ]
        if missing:
            yield (call.node, "XL103", ", and ".join(missing))


def _decoding(work: Work) -> Iterator[Problem]:
    for call in work.facts.named("open", "imread"):
        library = _DECODERS.get(work.names.full(call.node.func, call.scope) or "")
        function = getattr(call.scope.node, "name", "")
        if library is not None and function == "__getitem__" and not _is_mask(work, call):
            yield (
                call.node,
                "XL105",
                f"{library} decodes each image at full size in every epoch; "
                f"torchvision.io.decode_image is faster, and images that were made smaller once "
                f"are faster still",
            )


def _is_mask(work: Work, call: Call) -> bool:
    """Whether an image is a mask of classes, which is small."""
    targets = [
        dotted(target) or ""
        for target, value, block in work.facts.assignments
        if block.scope is call.scope and any(one is call.node for one in ast.walk(value))
    ]
    return _MASK.search(" ".join([*targets, *map(ast.unparse, call.node.args)])) is not None


def _optimizers(work: Work) -> Iterator[Problem]:
    for call in work.facts.calls:
        if work.names.full(call.node.func, call.scope) not in _FUSED or has_stars(call.node):
            continue
        if keyword(call.node, "fused") or keyword(call.node, "foreach"):
            continue
        if call.node.args and isinstance(call.node.args[0], ast.List):
            continue  # a few tensors
        yield (
            call.node,
            "XL106",
            "fused=True updates all parameters in one pass over memory, on cpu, cuda, xpu and mps",
        )
        return  # once a file
