# SPDX-License-Identifier: Apache-2.0
"""XL02x: modes and gradients in evaluation, and loaders that are built again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xlaunch.doctor.lint.facts import Block, Call, Function, Problem, dotted, has_stars, keyword
from xlaunch.doctor.lint.names import argument_for
from xlaunch.doctor.lint.work import ModuleCall, Work, bound_in, names_in

_MODE_MATTERS = re.compile(r"(?i)drop|batch_?norm|instance_?norm|rrelu|transformer|\.bn|models\.")
_WITHOUT_GRADIENTS = re.compile(r"(?i)grad|infer|context|ctx|eval")
_ATTACK = re.compile(r"(?i)attack|adv(_|ersar)|perturb")
_DEPTH = 6


def check_training(work: Work) -> Iterator[Problem]:
    """Evaluation in the right mode and without gradients; training in training mode."""
    if not work.is_managed:
        yield from _evaluations(work)
        yield from _not_restored(work)
    yield from _rebuilt_loaders(work)


def _evaluations(work: Work) -> Iterator[Problem]:
    facts = work.facts
    switches = any(not call.node.args for call in facts.called.get("eval", ())) or any(
        call.receiver is not None
        and facts.definition(call) is None
        and (call.node.args or call.node.keywords)
        for call in facts.called.get("train", ())
    )
    switches = switches or any("eval_mode" in word for word in facts.words)
    trains = bool(work.backwards) and "step" in facts.words
    seen: set[Block] = set()
    for loop, called in work.evaluations():
        if loop in seen:
            continue
        seen.add(loop)
        if not switches and trains and _mode_matters(work, called):
            yield (
                called.call.node,
                "XL020",
                f"{called.text} is evaluated in training mode: dropout and batch normalization act; "
                f"call {called.text}.eval() before, and train() after",
            )
        if _ATTACK.search(ast.unparse(loop.node)):
            continue  # adversarial inputs are made with gradients
        if not _is_without_gradients(work, called.call) and not _forward_is_without(called):
            yield (
                called.call.node,
                "XL021",
                f"{called.text} is evaluated with gradients, which keeps every activation in memory; "
                f"put the loop under 'with torch.inference_mode():'",
            )


def _mode_matters(work: Work, called: ModuleCall) -> bool:
    """Whether a model behaves differently in evaluation, as far as its code shows."""
    origin, definition = called.value.origin, called.value.definition
    if definition is not None:
        # Its parts may be other classes of this file.
        scope = work.facts.functions[definition]
        bases = [work.names.full(base, scope) or "" for base in definition.bases]
        inherits = not all(base.startswith("torch.nn.") for base in bases)
        return inherits or _MODE_MATTERS.search(" ".join(work.facts.words)) is not None
    if origin is not None and (called.value.name or "").startswith("torch.nn."):
        return bool(_MODE_MATTERS.search(ast.unparse(origin)))
    # Models from pretrained weights of transformers begin in evaluation mode.
    return not (called.value.name or "").startswith("transformers.")


def _is_without_gradients(work: Work, call: Call, depth: int = 0) -> bool:
    """Whether a call runs without gradients, by what stands around it or its function's callers."""
    for around in call.block.ancestors():
        node = around.node
        shown: list[ast.AST] = []
        if isinstance(node, ast.With | ast.AsyncWith):
            shown = list(node.items)
        elif isinstance(node, Function):
            shown = list(node.decorator_list)
        if any(_WITHOUT_GRADIENTS.search(ast.unparse(one)) for one in shown):
            return True
    switches = work.facts.called.get("set_grad_enabled", ())
    if any(isinstance(one.parent, ast.Expr) for one in switches) or "autograd" in work.facts.words:
        return True
    function = call.scope.node
    if not isinstance(function, Function) or depth > _DEPTH:
        return False
    return any(_is_without_gradients(work, one, depth + 1) for one in work.facts.calls_of(function))


def _forward_is_without(called: ModuleCall) -> bool:
    definition = called.value.definition
    return definition is not None and "grad()" in ast.unparse(definition)


def _not_restored(work: Work) -> Iterator[Problem]:
    if not work.backwards or "eval" not in work.facts.called:
        return
    for loop in work.facts.loops:
        if not isinstance(loop.node, ast.For | ast.While):
            continue
        effects, kinds = _done_in(work, loop)
        if not {"eval", "backward"} <= kinds or "train" in kinds or "unknown" in kinds:
            continue
        trained = {text for kind, text, _ in effects if kind == "trained"}
        # The innermost loop that does both is the one of epochs, or of steps.
        inner = [one for one in work.facts.loops if one is not loop and one.is_within(loop)]
        if any({"eval", "backward"} <= _done_in(work, one)[1] for one in inner):
            continue
        done = set()
        for kind, text, call in effects:
            if kind == "eval" and text in trained and text not in done:
                done.add(text)
                yield (
                    call.node,
                    "XL022",
                    f"{text} stays in evaluation mode: the loop trains on and never calls "
                    f"{text}.train(); call it at the start of every epoch",
                )


Effect = tuple[str, str, Call]


def _done_in(work: Work, loop: Block) -> tuple[list[Effect], set[str]]:
    """The effects of a loop's calls, and their kinds."""
    effects = list(_effects(work, list(work.within(loop)), {}, 0))
    return effects, {kind for kind, _, _ in effects}


def _effects(work: Work, calls: list[Call], texts: dict[str, str], depth: int) -> Iterator[Effect]:
    """What calls do to models: ``eval``, ``train``, ``backward``, and which models are ``trained``.

    Functions of this file are followed; `texts` has what their parameters stand for. ``unknown``:
    a model goes to a function of elsewhere, which may switch it.
    """
    module_calls = {id(one.call.node): one.text for one in work.module_calls}
    backwards = [one for one in work.backwards if one in calls]
    for call in calls:
        receiver = dotted(call.receiver) or ""
        shown = texts.get(receiver, receiver)
        definition = work.facts.definition(call)
        if call.name == "eval" and call.receiver is not None and not call.node.args:
            yield "eval", shown, call
        # A method train() of this class trains a model, and one of a model sets its mode.
        elif call.name == "train" and receiver and definition is None:
            yield "train", shown, call
        if id(call.node) in module_calls and backwards:
            same = any(
                set(map(id, call.block.loops())) & set(map(id, one.block.loops()))
                for one in backwards
            )
            if same or not call.block.loops():
                text = module_calls[id(call.node)]
                yield "trained", texts.get(text, text), call
        if definition is not None and depth < _DEPTH:
            scope = work.facts.functions[definition]
            inner = {}
            for argument in (*definition.args.args, *definition.args.kwonlyargs):
                given = dotted(argument_for(definition, argument.arg, call.node))
                if given is not None:
                    inner[argument.arg] = texts.get(given, given)
            yield from _effects(work, work.facts.within[scope], inner, depth + 1)
        elif not _is_harmless(work, call):
            for given_node in call.passed:
                passed = dotted(given_node) or ""
                if {passed, texts.get(passed, passed)} & set(module_calls.values()):
                    yield "unknown", passed, call
    for one in backwards:
        yield "backward", "", one


def _is_harmless(work: Work, call: Call) -> bool:
    """Whether a call cannot switch the mode of a model that it is given."""
    name = work.names.full(call.node.func, call.scope) or ""
    return name.startswith(("torch.", "print", "len", "copy.")) or call.name in (
        "update", "append", "save",
    )  # fmt: skip


def _rebuilt_loaders(work: Work) -> Iterator[Problem]:
    for call in work.facts.called.get("DataLoader", ()):
        if work.names.full(call.node.func, call.scope) != "torch.utils.data.DataLoader":
            continue
        workers = keyword(call.node, "num_workers")
        if workers is None or (isinstance(workers, ast.Constant) and not workers.value):
            continue
        if has_stars(call.node):
            continue
        places = [call]
        function = call.scope.node
        if isinstance(function, Function) and not call.block.loops():
            places += work.facts.calls_of(function)
        for place in places:
            loops = [one for one in place.block.loops() if _is_of_epochs(one)]
            if loops and not names_in(place.node) & bound_in(loops[0]):
                yield (
                    call.node,
                    "XL023",
                    "every epoch builds this DataLoader and starts its workers again; build it before "
                    "the loop, with persistent_workers=True",
                )
                break


def _is_of_epochs(loop: Block) -> bool:
    node = loop.node
    if not isinstance(node, ast.For):
        return False
    return "epoch" in ast.unparse(node.target).lower() or "epoch" in ast.unparse(node.iter).lower()
