# SPDX-License-Identifier: Apache-2.0
"""One walk over a syntax tree that notes what the rules ask for: calls, names, loops, functions.

The rules read these notes and never walk the tree themselves.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Problem = tuple[ast.expr | ast.stmt, str, str]
"""A node, the rule's code, and a message."""


class Block:
    """The code under one statement, with the block that encloses it."""

    __slots__ = ("node", "parent", "part", "scope")

    def __init__(self, node: ast.AST, part: str, parent: Block | None, scope: Scope) -> None:
        self.node = node
        self.part = part
        """**Ex.:** ``body``, ``orelse``, ``handlers``."""
        self.parent = parent
        self.scope = scope

    def outwards(self) -> Iterator[Block]:
        """The block itself and the blocks that enclose it, within the same function."""
        return itertools.takewhile(lambda block: block.scope is self.scope, self.ancestors())

    def ancestors(self) -> Iterator[Block]:
        """The block itself and all that enclose it, those of outer functions included."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def is_within(self, other: Block) -> bool:
        """Whether this block is `other` or is enclosed by it, within the same function."""
        return any(block is other for block in self.outwards())

    def loops(self) -> list[Block]:
        """The enclosing bodies of loops, the innermost first, within the same function."""
        return [block for block in self.outwards() if block.part == "loop"]


class Binding(NamedTuple):
    """One way in which a name gets its value."""

    how: str
    """``is`` (the value), ``item`` (one of it, unpacked), ``each`` (it is looped over),
    ``each item`` (unpacked in a loop), ``parameter``, ``import``, ``function``, ``class``,
    ``unknown``."""
    node: ast.AST | None
    """The value's expression, the parameter, or the definition."""
    text: str
    """Imports: the dotted name that is imported."""
    block: Block


class Scope:
    """A module, class or function, and the names that it binds."""

    def __init__(self, node: ast.AST, parent: Scope | None) -> None:
        self.node = node
        self.parent = parent
        self.bindings: dict[str, list[Binding]] = defaultdict(list)
        self.attributes: dict[str, list[Binding]] = defaultdict(list)
        """Classes: what methods bind to ``self.NAME``."""
        self.block = Block(node, "body", None, self)

    @property
    def enclosing_class(self) -> Scope | None:
        """The class of the method that this scope is, or that encloses it."""
        return next(
            (block for block in self._outwards() if isinstance(block.node, ast.ClassDef)), None
        )

    def find(self, name: str) -> Scope | None:
        """The scope that binds a name used here, as Python looks it up."""
        for scope in self._outwards():
            if name in scope.bindings and (
                scope is self or not isinstance(scope.node, ast.ClassDef)
            ):
                return scope
        return None

    def find_bindings(self, text: str) -> list[Binding]:
        """All bindings of a name, or of ``self.NAME``, that may apply where it is used here."""
        if text.startswith("self."):
            owner = self.enclosing_class
            return owner.attributes.get(text[5:], []) if owner is not None else []
        home = self.find(text)
        return home.bindings[text] if home is not None else []

    def _outwards(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


class Call(NamedTuple):
    """A call and where it stands."""

    node: ast.Call
    parent: ast.AST
    """The expression or statement that directly contains the call."""
    block: Block

    @property
    def scope(self) -> Scope:
        return self.block.scope

    @property
    def receiver(self) -> ast.expr | None:
        """**Ex.:** ``model`` of ``model.to(device)``."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def name(self) -> str:
        """The last part of what is called. **Ex.:** ``to``; empty for other expressions."""
        func = self.node.func
        return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


class FileFacts:
    def __init__(self, tree: ast.Module, directory: str = "") -> None:
        self.directory = directory
        """Where the file is, and the modules that stand beside it."""
        self.module = Scope(tree, None)
        self.calls: list[Call] = []
        """In the order of the source."""
        self.called: dict[str, list[Call]] = defaultdict(list)
        """By the last part of the name. **Ex.:** ``to`` has all of ``x.to(...)``."""
        self.within: dict[Scope, list[Call]] = defaultdict(list)
        """By the function in which they stand."""
        self.imports: list[tuple[str, ast.Import | ast.ImportFrom, Block]] = []
        """Dotted names; one that is imported several times is listed several times."""
        self.attributes: list[tuple[ast.Attribute, ast.AST, Block]] = []
        """Dotted names, whole, with what they are part of. **Ex.:** ``torch.cuda.amp.autocast``."""
        self.assignments: list[tuple[ast.expr, ast.expr, Block]] = []
        """Targets with their values."""
        self.words: set[str] = set()
        """All names, attributes and keywords."""
        self.texts: set[str] = set()
        """All short string constants."""
        self.tests: list[tuple[ast.expr, Block]] = []
        """The conditions of ``if``, ``while`` and conditional expressions, and their operands."""
        self.last_read: dict[tuple[Scope, str], int] = {}
        """The last line of a function that reads a name."""
        self.computed: set[tuple[Scope, str]] = set()
        """Names that a function adds, subtracts, multiplies or divides, as modules never are."""
        self.classes: dict[ast.AST, Scope] = {}
        self._walk(tree)

    def modules(self) -> set[str]:
        """The first parts of what is imported. **Ex.:** ``torch``, ``numpy``."""
        return {name.partition(".")[0] for name, _, _ in self.imports}

    def named(self, *names: str) -> Iterator[Call]:
        """The calls of functions and methods with one of these names."""
        return itertools.chain.from_iterable(self.called.get(name, ()) for name in names)

    def full(self, node: ast.AST | None, scope: Scope) -> str | None:
        """The dotted name that an expression means, through aliases of imports.

        **Ex.:** ``torch.nn.Linear`` for ``nn.Linear``, ``bool`` for the built-in. None for what
        this file binds otherwise.
        """
        text = dotted(node)
        if text is None:
            return None
        first, dot, attributes = text.partition(".")
        bound = scope.find_bindings(first)
        if not bound:
            module = _STARRED.get(text, "")
            stars = [binding.text for binding in self.module.bindings.get("*", ())]
            return f"{module}.{text}" if f"{module}.*" in stars else text
        imported = {binding.text for binding in bound if binding.how == "import"}
        others = [b.node for b in bound if b.how != "import"]
        if len(imported) == 1 and all(isinstance(b, ast.Constant) and not b.value for b in others):
            return imported.pop() + dot + attributes
        return None

    def calls_named(self, full: str) -> Iterator[Call]:
        """The calls of the imported function or class with this full name."""
        for call in self.named(full.rpartition(".")[2]):
            if self.full(call.node.func, call.scope) == full:
                yield call

    def calls_of(self, function: Function) -> list[Call]:
        """The calls of a function of this file."""
        return [call for call in self.named(function.name) if self.definition(call) is function]

    def definition(self, call: Call) -> ast.AST | None:
        """The function of this file that a call by name, or as a method of its class, runs."""
        func, bindings = call.node.func, []
        if isinstance(func, ast.Name):
            bindings = call.scope.find_bindings(func.id)
        elif (owner := self._class_of(call)) is not None:
            bindings = owner.bindings.get(call.name, [])
        single = bindings[0] if len(bindings) == 1 else None
        return single.node if single is not None and single.how == "function" else None

    def _class_of(self, call: Call) -> Scope | None:
        """The class of this file whose method a call runs. **Ex.:** of ``trainer = Trainer()``."""
        text = dotted(call.receiver)
        if text == "self":
            return call.scope.enclosing_class
        values = (
            [binding.node for binding in call.scope.find_bindings(text)] if text is not None else []
        )
        if len(values) != 1 or not isinstance(values[0], ast.Call):
            return None
        name = dotted(values[0].func)
        bindings = call.scope.find_bindings(name) if name is not None else []
        node = bindings[0].node if len(bindings) == 1 else None
        return self.classes.get(node) if node is not None else None

    def _walk(self, tree: ast.Module) -> None:
        # A list instead of recursion: expressions may be nested deeper than Python's stack.
        pending: list[Child] = [(tree, tree, self.module.block)]
        while pending:
            node, parent, block = pending.pop()
            if isinstance(node, _OPENING):
                children = self._opened(node, block)
            else:
                self._note(node, parent, block)
                children = [(child, node, block) for child in ast.iter_child_nodes(node)]
            pending.extend(reversed(children))

    def _note(self, node: ast.AST, parent: ast.AST, block: Block) -> None:
        """Note a node whose parts stand in the same block."""
        match node:
            case ast.Name(id=name):
                self.words.add(name)
                if isinstance(node.ctx, ast.Load):
                    line = max(node.lineno, self.last_read.get((block.scope, name), 0))
                    self.last_read[block.scope, name] = line
            case ast.Attribute(attr=name):
                self.words.add(name)
                if not isinstance(parent, ast.Attribute):
                    self.attributes.append((node, parent, block))
            case ast.keyword(arg=arg):
                self.words.add(arg or "**")
            case ast.Constant(value=str(text)) if len(text) < 100:
                self.texts.add(text)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                names = [dotted(argument) for argument in operands(node)]
                self.computed |= {(block.scope, name) for name in names if name is not None}
            case ast.Call():
                call = Call(node, parent, block)
                self.calls.append(call)
                self.within[block.scope].append(call)
                self.called[call.name].append(call)
            case ast.Import(names=aliases):
                for alias in aliases:
                    self.imports.append((alias.name, node, block))
                    first = alias.name.partition(".")[0]
                    full = alias.name if alias.asname else first
                    self._bind(alias.asname or first, "import", None, block, full)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    full = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                    self.imports.append((full, node, block))
                    self._bind(alias.asname or alias.name, "import", None, block, full)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, block)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value, block)
            case (
                ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._bind_target(target, "is", value, block)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                # What the function binds, the module's name may hold.
                for name in names:
                    self._bind(name, "unknown", None, self.module.block)

    def _assign(self, targets: list[ast.expr], value: ast.expr, block: Block) -> None:
        for target in targets:
            self.assignments.append((target, value, block))
            self._bind_target(target, "is", value, block)

    def _opened(self, node: ast.AST, block: Block) -> list[Child]:
        """The parts of a node, some of which stand in blocks or scopes of their own."""

        def inner(part: str) -> Block:
            return Block(node, part, block, block.scope)

        parts: list[tuple[Block, Sequence[ast.AST]]]
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            self.tests += [(condition, block) for condition in _conditions(node.test)]
        match node:
            case ast.For() | ast.AsyncFor():
                body = inner("loop")
                self._bind_target(node.target, "each", node.iter, body)
                parts = [(block, [node.iter]), (body, [node.target, *node.body])]
                parts += [(block, node.orelse)]
            case ast.While():
                parts = [(inner("loop"), [node.test, *node.body]), (block, node.orelse)]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                parts = []
                for part in node.generators:
                    parts.append((block, [part.iter]))
                    block = Block(part, "loop", block, block.scope)
                    self._bind_target(part.target, "each", part.iter, block)
                    parts.append((block, [part.target, *part.ifs]))
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                parts.append((block, elements))
            case ast.If():
                parts = [(block, [node.test]), (inner("body"), node.body)]
                parts += [(inner("orelse"), node.orelse)]
            case ast.IfExp():
                parts = [(block, [node.test]), (inner("body"), [node.body])]
                parts += [(inner("orelse"), [node.orelse])]
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._bind_target(item.optional_vars, "unknown", None, block)
                parts = [(block, node.items), (inner("body"), node.body)]
            case ast.Try() | ast.TryStar():
                # Only what stands in "body" and "handlers" may be left out when the code runs.
                parts = [(inner("body"), node.body), (inner("handlers"), node.handlers)]
                parts += [(block, [*node.orelse, *node.finalbody])]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(node.name, "function", node, block)
                own = self._open(node, block)
                self._bind_arguments(node.args, "parameter", own)
                returns = [node.returns] if node.returns else []
                parts = [(block, [*node.decorator_list, node.args, *returns]), (own, node.body)]
            case ast.Lambda():
                own = self._open(node, block)
                self._bind_arguments(node.args, "unknown", own)
                parts = [(block, [node.args]), (own, [node.body])]
            case ast.ClassDef():
                self._bind(node.name, "class", node, block)
                parts = [(block, [*node.decorator_list, *node.bases, *node.keywords])]
                own = self._open(node, block)
                self.classes[node] = own.scope
                parts += [(own, node.body)]
            case _:
                raise AssertionError(node)
        return [(child, node, where) for where, children in parts for child in children]

    def _open(self, node: ast.AST, block: Block) -> Block:
        """The block of a new scope."""
        scope = Scope(node, block.scope)
        scope.block.parent = block
        return scope.block

    def _bind_arguments(self, arguments: ast.arguments, how: str, block: Block) -> None:
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        listed += [
            parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter is not None
        ]
        for argument in listed:
            self._bind(argument.arg, how, argument, block)

    def _bind(
        self, name: str, how: str, node: ast.AST | None, block: Block, text: str = ""
    ) -> None:
        block.scope.bindings[name].append(Binding(how, node, text, block))

    def _bind_target(
        self, target: ast.expr, how: str, value: ast.expr | None, block: Block
    ) -> None:
        if isinstance(target, ast.Starred):
            target, how, value = target.value, "unknown", None
        if isinstance(target, ast.Tuple | ast.List):
            for how_each, value_each, part in _parts(target, how, value):
                self._bind_target(part, how_each, value_each, block)
            return
        binding = Binding(how, value, "", block)
        if isinstance(target, ast.Name):
            block.scope.bindings[target.id].append(binding)
        elif isinstance(target, ast.Attribute) and dotted(target.value) == "self":
            owner = block.scope.enclosing_class
            if owner is not None:
                owner.attributes[target.attr].append(binding)


def _conditions(test: ast.expr) -> list[ast.expr]:
    """The operands of ``and``, ``or`` and ``not`` in a condition."""
    if isinstance(test, ast.BoolOp):
        return [part for value in test.values for part in _conditions(value)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _conditions(test.operand)
    return [test]


Child = tuple[ast.AST, ast.AST, Block]
"""A node, what it is part of, and its block."""


def dotted(node: ast.AST | None) -> str | None:
    """A name with its attributes as text. **Ex.:** ``self.model``; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def operands(node: ast.BinOp | ast.UnaryOp | ast.Compare) -> list[ast.expr]:
    """What an operation computes with."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, *node.comparators]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((option.value for option in call.keywords if option.arg == name), None)


def argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    """The value of an argument that may be given by its position, or by its name."""
    if position is not None and len(call.args) > position:
        return call.args[position]
    return keyword(call, name)


def has_stars(call: ast.Call) -> bool:
    """Whether a call passes ``*args`` or ``**options``, which may hold anything."""
    return any(option.arg is None for option in call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    )


def looped_over(node: ast.expr) -> tuple[ast.expr, bool]:
    """What a loop goes over without wrappers, and whether it is enumerated.

    **Ex.:** ``loader`` and True for ``tqdm(enumerate(loader), total=9)``.
    """
    enumerated = False
    while isinstance(node, ast.Call) and node.args:
        name = (dotted(node.func) or "").rpartition(".")[2]
        if name == "enumerate":
            enumerated = True
        elif name not in ("tqdm", "trange", "track", "iter", "progress_bar", "auto_tqdm"):
            break
        node = node.args[0]
    return node, enumerated


def _parts(
    target: ast.Tuple | ast.List, how: str, value: ast.expr | None
) -> Iterator[tuple[str, ast.expr | None, ast.expr]]:
    """How each element of an unpacked target gets its value."""
    if how == "is" and isinstance(value, ast.Tuple | ast.List):
        stars = any(isinstance(argument, ast.Starred) for argument in (*value.elts, *target.elts))
        if len(value.elts) == len(target.elts) and not stars:
            for part, own in zip(target.elts, value.elts, strict=True):
                yield "is", own, part
            return
    if how == "each" and value is not None and len(target.elts) == 2:
        source, enumerated = looped_over(value)
        if enumerated:
            yield "unknown", None, target.elts[0]
            yield "each", source, target.elts[1]
            return
    for part in target.elts:
        is_value = how in ("is", "each")
        yield (
            {"is": "item", "each": "each item"}.get(how, "unknown"),
            value if is_value else None,
            part,
        )


_STARRED = {"DataLoader": "torch.utils.data"}
"""Names that scripts take from ``from MODULE import *``, and the module."""

_OPENING = (
    ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp,
    ast.If, ast.IfExp, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef,
)  # fmt: skip
"""Nodes with parts that stand in a block or scope of their own."""
