# SPDX-License-Identifier: Apache-2.0
"""XL010, XL030 and the hints: moves that are lost, reads that make the device wait, loaders, optimizers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import (
    Binding,
    Block,
    Call,
    FileFacts,
    Function,
    Problem,
    Scope,
    dotted,
    has_stars,
    keyword,
    looped_over,
    operands,
)
from xlaunch.doctor.lint.source import usable_cpus

_CONVERSIONS = (
    "bfloat16", "contiguous", "cpu", "cuda", "double", "float", "half", "long", "to", "xpu",
)  # fmt: skip
_MAKERS = frozenset(
    (
        "arange", "as_tensor", "cat", "empty", "empty_like", "eye", "from_numpy", "full",
        "full_like", "linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn",
        "randn_like", "randperm", "stack", "tensor", "zeros", "zeros_like",
    )
)  # fmt: skip
"""Functions of torch that return a tensor."""
_NOT_TENSORS = frozenset(
    ("backward", "data_ptr", "dim", "item", "nelement", "numel", "numpy", "size", "tolist")
)
"""Methods of tensors that return something else."""
_OTHER_BATCHES = frozenset(
    (
        "torch_geometric", "dgl", "transformers", "torchtext", "monai", "datasets", "accelerate",
        "detectron2", "nvidia", "ffcv",
    )
)  # fmt: skip
"""Libraries whose loaders give batches that are not tensors."""
_FUSED = frozenset(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))
_DEPTH = 30
"""Expressions that are nested deeper are not understood."""


def check_tensors(facts: FileFacts) -> Iterator[Problem]:
    """Results of moves that are lost, and reads in the loop of a training."""
    yield from _lost_results(facts)
    devices = ("cuda", "xpu", "mps")
    if facts.words & set(devices) or any(text.startswith(devices) for text in facts.texts):
        for step in _steps(facts):
            yield from _reads(facts, step)


def _lost_results(facts: FileFacts) -> Iterator[Problem]:
    for call in facts.named(*_CONVERSIONS):
        text = dotted(call.receiver)
        if (
            text is None
            or not isinstance(call.parent, ast.Expr)
            or _expects_errors(call.block)
            or not _is_tensor(facts, call.receiver, call.scope)
        ):
            continue
        arguments = ", ".join(ast.unparse(one) for one in call.node.args)
        target = _module_of_parameter(call.scope, text) or f"{text} = {text}"
        yield (
            call.node,
            "XL010",
            f"tensors are not moved or converted in place: the result of {text}.{call.name}() is "
            f"lost; write {target}.{call.name}({arguments})",
        )


def _module_of_parameter(scope: Scope, name: str) -> str | None:
    """**Ex.:** ``model`` of ``for name in model.parameters()``; modules move in place."""
    for binding in scope.find_bindings(name):
        if _is_parameter(binding):
            assert isinstance(binding.node, ast.Call)
            assert isinstance(binding.node.func, ast.Attribute)
            return ast.unparse(binding.node.func.value)
    return None


def _is_parameter(binding: Binding) -> bool:
    """Whether a loop over the parameters of a module binds a name."""
    func = binding.node.func if isinstance(binding.node, ast.Call) else None
    return (
        binding.how == "each"
        and isinstance(func, ast.Attribute)
        and func.attr in ("parameters", "buffers")
    )


def _expects_errors(block: Block) -> bool:
    """Whether code stands in ``try`` or in ``with pytest.raises(...)``."""
    return any(
        isinstance(one.node, ast.Try)
        or (
            isinstance(one.node, ast.With)
            and any(word in ast.unparse(one.node.items[0]) for word in ("aises", "warns"))
        )
        for one in block.outwards()
    )


def _is_tensor(facts: FileFacts, node: ast.AST | None, scope: Scope, depth: int = 0) -> bool:
    """Whether an expression plainly holds a tensor: all bindings of its names agree."""
    if depth > _DEPTH:
        return False
    depth += 1
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
        return any(_is_tensor(facts, part, scope, depth) for part in operands(node))
    if isinstance(node, ast.Subscript):
        return _is_tensor(facts, node.value, scope, depth)
    if isinstance(node, ast.Call):
        module, _, function = (facts.full(node.func, scope) or "").rpartition(".")
        if module == "torch.nn.functional" or (module == "torch" and function in _MAKERS):
            return True
        if not isinstance(node.func, ast.Attribute) or node.func.attr in _NOT_TENSORS:
            return False
        return node.func.attr in ("detach", "unsqueeze") or _is_tensor(
            facts, node.func.value, scope, depth
        )
    text = dotted(node)
    if text is None:
        return False
    bindings = [
        one
        for one in scope.find_bindings(text)
        if not _keeps(one, text) and not (isinstance(one.node, ast.Constant) and not one.node.value)
    ]
    return bool(bindings) and all(_binds_tensor(facts, one, depth) for one in bindings)


def _keeps(binding: Binding, name: str) -> bool:
    """Whether a binding keeps what the name holds. **Ex.:** ``x = x.to(device)``."""
    node = binding.node
    while True:
        if binding.how == "is" and dotted(node) == name:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.BinOp):
            node = node.left
        else:
            return False


def _binds_tensor(facts: FileFacts, binding: Binding, depth: int) -> bool:
    node, scope = binding.node, binding.block.scope
    if binding.how == "is":
        return _is_tensor(facts, node, scope, depth)
    if isinstance(node, ast.arg):
        return facts.full(node.annotation, scope) == "torch.Tensor"
    return _is_parameter(binding) or (
        binding.how == "each item" and isinstance(node, ast.expr) and _is_loader(facts, node, scope)
    )


def _is_loader(facts: FileFacts, node: ast.expr, scope: Scope) -> bool:
    """Whether a loop unpacks the usual batches of a `DataLoader`: tensors on the CPU."""
    source, _ = looped_over(node)
    made = [source]
    if (text := dotted(source)) is not None:
        made = [one.node for one in scope.find_bindings(text) if isinstance(one.node, ast.expr)]
        if not made:  # a parameter
            return text.endswith("loader") and not facts.modules() & _OTHER_BATCHES
    return all(isinstance(one, ast.Call) and _returns_loader(facts, one, scope) for one in made)


def _returns_loader(facts: FileFacts, node: ast.Call, scope: Scope) -> bool:
    """Whether a call is of `DataLoader`, or of a function that is named after it."""
    full = facts.full(node.func, scope)
    if full == "torch.utils.data.DataLoader":
        return not any(option.arg in ("collate_fn", None) for option in node.keywords)
    named = re.search(r"(^|_)(data_?)?loader$", (dotted(node.func) or "").rpartition(".")[2])
    return named is not None and not facts.modules() & _OTHER_BATCHES


def _steps(facts: FileFacts) -> list[Block]:
    """The bodies of the innermost loops that call ``backward()``, or a function that does."""
    found: dict[int, Block] = {}

    def look(call: Call, depth: int) -> None:
        loops = [one for one in call.block.loops() if not isinstance(one.node, ast.comprehension)]
        if loops:
            found[id(loops[0])] = loops[0]
        elif isinstance(call.scope.node, Function) and depth:
            for caller in facts.calls_of(call.scope.node):
                look(caller, depth - 1)

    for call in facts.named("backward"):
        if call.receiver is not None and dotted(call.receiver) not in ("super", "ctx", "self"):
            look(call, 9)
    return list(found.values())


def _reads(facts: FileFacts, step: Block) -> Iterator[Problem]:
    """The reads of a step: one finding, at the first, that names the lines of the others."""
    reads: dict[int, tuple[Call, str]] = {}
    for call in facts.within[step.scope]:
        if not call.block.is_within(step) or call.line in reads or _is_conditional(call, step):
            continue
        shown = _shown_read(call, step)
        if shown is not None:
            reads[call.line] = (call, shown)
    if not reads:
        return
    (call, shown), *others = (reads[line] for line in sorted(reads))
    lines = ", ".join(str(other.line) for other, _ in others)
    also = f" (and so does line {lines})" if len(others) == 1 else f" (and so do lines {lines})"
    yield (
        call.node,
        "XL030",
        f"{shown} at every step waits for the device{also if others else ''}; keep the tensor "
        f"(detach()) and read it every hundredth step or after the loop",
    )


def _is_conditional(call: Call, step: Block) -> bool:
    """Whether code in a loop does not run once in each round."""
    return call.block.loops()[0] is not step or any(
        isinstance(one.node, ast.If | ast.IfExp | ast.Try) and one.is_within(step)
        for one in call.block.outwards()
        if one is not step
    )


def _shown_read(call: Call, step: Block) -> str | None:
    """What a call reads, if it reads what a model or a loss computed in this step."""
    if call.receiver is not None:
        # Outputs are copied because they are needed on the CPU; losses, to be shown. An environment
        # needs the action.
        func = call.parent.func if isinstance(call.parent, ast.Call) else None
        needed = isinstance(func, ast.Attribute) and func.attr == "step"
        reads = (call.name == "item" and not needed and _is_computed(call.receiver, step)) or (
            call.name in ("cpu", "tolist") and _is_loss(call.receiver)
        )
        return f"{dotted(call.receiver) or 'a tensor'}.{call.name}()" if reads else None
    if call.name in ("print", "float"):
        for given in call.node.args:
            parts: list[ast.expr] = [given]
            if isinstance(given, ast.JoinedStr):
                parts = [one.value for one in given.values if isinstance(one, ast.FormattedValue)]
            for part in parts:
                if not isinstance(part, ast.Call) and _is_loss(part) and _is_computed(part, step):
                    return f"{call.name}() of {dotted(part) or 'a tensor'}"
    return None


def _is_loss(node: ast.expr) -> bool:
    return "loss" in ast.unparse(node).lower()


def _is_computed(node: ast.expr, step: Block) -> bool:
    """Whether a step computes an expression; a batch as the loader gives it is on the CPU."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    return any(
        binding.how in ("is", "item") and binding.block.is_within(step) and not _is_number(binding)
        for name in names
        for binding in step.scope.bindings.get(name, ())
    ) or (isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute))


def _is_number(binding: Binding) -> bool:
    """Whether a binding holds a number already. **Ex.:** ``shown = loss.item()``."""
    func = binding.node.func if isinstance(binding.node, ast.Call) else binding.node
    name = (dotted(func) or "").rpartition(".")[2]
    return isinstance(func, ast.Constant) or name in ("item", "numpy", "tolist", "float", "int")


def check_hints(facts: FileFacts) -> Iterator[Problem]:
    """What would probably make the script faster."""
    cpus = usable_cpus()
    for call in facts.calls_named("torch.utils.data.DataLoader"):
        workers = keyword(call.node, "num_workers")
        count = workers.value if isinstance(workers, ast.Constant) else None
        if isinstance(count, int) and count > cpus:
            yield (
                call.node,
                "XL104",
                f"num_workers={count} is more than the {cpus} CPUs of this process; take "
                f"len(os.sched_getaffinity(0))",
            )
    for call in facts.calls:
        if (
            facts.full(call.node.func, call.scope) not in _FUSED
            or has_stars(call.node)
            or keyword(call.node, "fused")
            or keyword(call.node, "foreach")
            or (call.node.args and isinstance(call.node.args[0], ast.List))  # a few tensors
        ):
            continue
        if "sparse" in facts.words:  # fused updates refuse sparse gradients
            return
        yield (
            call.node,
            "XL106",
            "fused=True updates all parameters in one pass over memory, on cpu, cuda, xpu and mps",
        )
        return  # once a file
