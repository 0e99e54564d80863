# SPDX-License-Identifier: Apache-2.0
"""XL10x: advice on performance, with --hints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Call, Problem, dotted, has_stars, keyword
from xlaunch.doctor.lint.names import Kind
from xlaunch.doctor.lint.source import usable_cpus
from xlaunch.doctor.lint.waiting import timed_calls
from xlaunch.doctor.lint.work import Work

_PRECISION = frozenset(
    (
        "GradScaler", "amp", "apex", "autocast", "bf16", "bfloat16", "float16", "float8",
        "fp16", "half", "mixed_precision",
    )
)  # fmt: skip
_GAINS_BY_PRECISION = re.compile(
    r"Conv\dd|Transformer|Attention|LSTM|GRU|from_pretrained|create_model|resnet"
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
_PATCHES = re.compile(r"(?i)vit|swin")
"""Models with one convolution, that of the patches."""
_IN_MEMORY = re.compile(r"(Tensor|Random|Dummy|Fake|Synthetic)\w*(Dataset|Data)?$")
_MASK = re.compile(r"(?i)mask|trimap|label|target|annot")
_EVALUATION = re.compile(r"Eval|Test|Valid")
_COLD = re.compile(r"(?i)warm|compil|export")


_MAX_TIMED_CALLS = 8
"""Where more is timed, the model's first call is a part of it only."""


def check_hints(work: Work) -> Iterator[Problem]:
    """What would probably make the script faster."""
    if not work.is_managed:
        yield from _precision(work)
        yield from _memory_format(work)
    yield from _loaders(work)
    yield from _decoding(work)
    yield from _optimizers(work)
    yield from _data_parallel(work)
    yield from _warm_up(work)


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


def _memory_format(work: Work) -> Iterator[Problem]:
    facts = work.facts
    if "channels_last" in facts.words or not work.module_calls:
        return
    convolutions = "Conv2d" in facts.words
    for one in work.module_calls:
        value = one.value
        # What runs once is a demonstration, and a target's network follows another.
        if not (one.call.block.loops() or work.backwards) or "target" in one.text:
            continue
        pretrained = (value.name or "").startswith("torchvision.models.")
        pretrained = pretrained and not _PATCHES.search(value.name or "")
        if value.origin is None or not ((convolutions and value.definition) or pretrained):
            continue
        owner = value.scope.enclosing_class if value.scope is not None else None
        if owner is not None and isinstance(owner.node, ast.ClassDef) and owner.node.bases:
            continue  # a part of a model, which has one order for all
        if value.definition is not None and "Conv2d" not in ast.unparse(value.definition):
            continue
        yield (
            value.origin,
            "XL102",
            "convolutions are usually faster with channels last: "
            "model.to(memory_format=torch.channels_last), and the same for the images",
        )
        return  # once a file


def _loaders(work: Work) -> Iterator[Problem]:
    for call in work.facts.called.get("DataLoader", ()):
        if work.names.full(call.node.func, call.scope) != "torch.utils.data.DataLoader":
            continue
        given = len(call.node.args) + len(call.node.keywords)
        # Loaders of single items are for trying something out.
        if has_stars(call.node) or len(call.node.args) > 5 or given < 2:
            continue
        workers = keyword(call.node, "num_workers")
        count = workers.value if isinstance(workers, ast.Constant) else None
        if workers is None or count == 0:
            if workers is None and not _is_in_memory(work, call):  # 0 was chosen
                yield (
                    call.node,
                    "XL103",
                    "the training process itself loads the data; num_workers=2 or more, with "
                    "persistent_workers=True, loads it beside the training",
                )
            continue
        if isinstance(count, int) and count > (cpus := usable_cpus()):
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
                    "persistent_workers",  # refused without workers, as a variable count may say
                    "starts the workers once",
                    isinstance(count, int) and any("epoch" in one for one in work.facts.words),
                ),
            )
            if matters and keyword(call.node, name) is None
        ]
        if missing:
            yield (
                call.node,
                "XL103",
                ", and ".join(missing),
            )


def _is_in_memory(work: Work, call: Call) -> bool:
    dataset = call.node.args[0] if call.node.args else keyword(call.node, "dataset")
    text = dotted(dataset)
    home = call.scope.find(text) if text else None
    nodes = [one.node for one in home.bindings[text]] if home is not None and text else [dataset]
    return any(isinstance(node, ast.Call) and _keeps_data(work, node, call) for node in nodes)


def _keeps_data(work: Work, made: ast.Call, call: Call) -> bool:
    """Whether a dataset has its items in memory: its ``__getitem__`` calls nothing of elsewhere."""
    if _IN_MEMORY.search(dotted(made.func) or ""):
        return True
    definition = work.names.class_of(made.func, call.scope)
    getters = [
        scope
        for function, scope in work.facts.functions.items()
        if getattr(function, "name", "") == "__getitem__"
        and scope.enclosing_class is not None
        and scope.enclosing_class.node is definition
    ]
    called = [
        work.names.full(one.node.func, one.scope) or ""
        for scope in getters
        for one in work.facts.within[scope]
    ]
    return bool(getters) and all(
        name in ("len", "int", "float") or (name.startswith("torch.") and "load" not in name)
        for name in called
    )


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
    """Whether an image is a mask of classes, which is small, or read once, for evaluation."""
    owner = call.scope.enclosing_class
    if owner is not None and _EVALUATION.search(getattr(owner.node, "name", "")):
        return True
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


def _data_parallel(work: Work) -> Iterator[Problem]:
    if not work.backwards:
        return  # for inference there is no other
    for call in work.facts.called.get("DataParallel", ()):
        if work.names.full(call.node.func, call.scope) != "torch.nn.DataParallel":
            continue
        function = getattr(call.scope.node, "name", "")
        owner = call.scope.enclosing_class
        offered = function + (getattr(owner.node, "name", "") if owner is not None else "")
        wrapped_before = any(
            one.scope is call.scope and "DataParallel" in ast.unparse(one.node)
            for one in work.facts.called.get("isinstance", ())
        )
        if "DataParallel" not in offered and not wrapped_before:
            yield (
                call.node,
                "XL107",
                "DataParallel copies the model to every device in every step, and one process drives "
                "all; use DistributedDataParallel with torchrun",
            )


def _warm_up(work: Work) -> Iterator[Problem]:
    for region, called, node in timed_calls(work):
        first = min(one.line for one in region)
        loops = called.call.block.loops()
        earlier = any(
            one.text == called.text and one.call.line < first for one in work.module_calls
        )
        # In a loop only the first round is cold, and scripts print each.
        if (
            not earlier
            and not loops
            and len(region) <= _MAX_TIMED_CALLS
            and not any(_COLD.search(dotted(one.node.func) or "") for one in region)
            and not _COLD.search(_stored_in(work, node))
            and not work.names.is_kind(node, called.call.scope, Kind.TENSOR)
        ):
            yield (
                node,
                "XL108",
                f"the first call of {called.text} also allocates, chooses kernels and may compile; call "
                f"it once or more before the clock starts",
            )


def _stored_in(work: Work, node: ast.expr) -> str:
    """The name that a value is stored in; empty if in none."""
    return next((dotted(t) or "" for t, value, _ in work.facts.assignments if value is node), "")
