# SPDX-License-Identifier: Apache-2.0
"""One walk over a syntax tree that notes what the rules ask for: calls, names, loops, functions.

The rules read these notes and never walk the tree themselves.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Problem = tuple[ast.expr | ast.stmt, str, str]
"""A node, the rule's code, and a message."""


class Block:
    """A piece of code under one statement: what it stands in, outwards."""

    __slots__ = ("node", "parent", "part", "scope")

    def __init__(self, node: ast.AST, part: str, parent: Block | None, scope: Scope) -> None:
        self.node = node
        self.part = part
        """**Ex.:** ``body``, ``orelse``, ``handlers``."""
        self.parent = parent
        self.scope = scope

    def outwards(self) -> Iterator[Block]:
        """The block itself and those around it, within the same function."""
        return itertools.takewhile(lambda block: block.scope is self.scope, self.ancestors())

    def ancestors(self) -> Iterator[Block]:
        """The block itself and all around it, those of outer functions too."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def is_within(self, other: Block) -> bool:
        """Whether this block is `other` or stands in it, within the same function."""
        return any(block is other for block in self.outwards())

    def loops(self) -> list[Block]:
        """The bodies of loops around, the innermost first, within the same function."""
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
        """The class of the method that this is, or stands in."""
        return next((one for one in self._outwards() if isinstance(one.node, ast.ClassDef)), None)

    def find(self, name: str) -> Scope | None:
        """The scope that binds a name used here, as Python looks it up."""
        for scope in self._outwards():
            if name in scope.bindings and (
                scope is self or not isinstance(scope.node, ast.ClassDef)
            ):
                return scope
        return None

    def find_bindings(self, text: str) -> list[Binding]:
        """How a name, or ``self.NAME``, used here may have got what it holds."""
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
    """The expression or statement whose direct part the call is."""
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


class Facts:
    """What one file holds."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.calls: list[Call] = []
        """In the order of the source."""
        self.called: dict[str, list[Call]] = defaultdict(list)
        """By the last part of the name. **Ex.:** ``to`` has all of ``x.to(...)``."""
        self.within: dict[Scope, list[Call]] = defaultdict(list)
        """By the function in which they stand."""
        self.imports: list[tuple[str, ast.Import | ast.ImportFrom, Block]] = []
        """Dotted names, as often as imported."""
        self.attributes: list[tuple[ast.Attribute, ast.AST, Block]] = []
        """Dotted names, whole, with what they are part of. **Ex.:** ``torch.cuda.amp.autocast``."""
        self.assignments: list[tuple[ast.expr, ast.expr, Block]] = []
        """Targets with their values."""
        self.words: set[str] = set()
        """All names, attributes and keywords."""
        self.texts: set[str] = set()
        """All short string constants."""
        self._walk(tree)

    def modules(self) -> set[str]:
        """The first parts of what is imported. **Ex.:** ``torch``, ``numpy``."""
        return {name.partition(".")[0] for name, _, _ in self.imports}

    def named(self, *names: str) -> Iterator[Call]:
        """The calls of what has one of these names."""
        return itertools.chain.from_iterable(self.called.get(name, ()) for name in names)

    def full(self, node: ast.AST | None, scope: Scope) -> str | None:
        """The dotted name that an expression means, through aliases of imports.

        **Ex.:** ``torch.nn.Linear`` for ``nn.Linear``, ``bool`` for the built-in. None for what
        this file binds otherwise.
        """
        text = dotted(node)
        if text is None:
            return None
        first, dot, rest = text.partition(".")
        bound = scope.find_bindings(first)
        if not bound:
            return text
        imported = {binding.text for binding in bound if binding.how == "import"}
        others = [b.node for b in bound if b.how != "import"]
        if len(imported) == 1 and all(isinstance(b, ast.Constant) and not b.value for b in others):
            return imported.pop() + dot + rest
        return None

    def call_name(self, node: ast.expr | None, scope: Scope) -> str:
        """The full name of what a call calls; empty for any other expression."""
        return (self.full(node.func, scope) or "") if isinstance(node, ast.Call) else ""

    def calls_named(self, full: str) -> Iterator[Call]:
        """The calls of what an import makes known by this full name."""
        for call in self.named(full.rpartition(".")[2]):
            if self.full(call.node.func, call.scope) == full:
                yield call

    def calls_of(self, function: Function) -> list[Call]:
        """The calls of a function of this file."""
        return [call for call in self.named(function.name) if _definition(call) is function]

    def _walk(self, tree: ast.Module) -> None:
        # A list instead of recursion: expressions may be nested deeper than Python's stack.
        pending: list[Child] = [(tree, tree, self.module.block)]
        while pending:
            node, parent, block = pending.pop()
            note = _NOTES.get(type(node))
            children = note(self, node, parent, block) if note is not None else None
            if children is None:
                children = _children(node, block, *ast.iter_child_nodes(node))
            pending.extend(reversed(children))

    # Each notes one node, and returns its children with their blocks if those differ.

    def note_call(self, node: ast.Call, parent: ast.AST, block: Block) -> None:
        call = Call(node, parent, block)
        self.calls.append(call)
        self.within[block.scope].append(call)
        self.called[call.name].append(call)

    def note_attribute(self, node: ast.Attribute, parent: ast.AST, block: Block) -> None:
        self.words.add(node.attr)
        if not isinstance(parent, ast.Attribute):
            self.attributes.append((node, parent, block))

    def note_name(self, node: ast.Name, parent: ast.AST, block: Block) -> None:
        self.words.add(node.id)

    def note_keyword(self, node: ast.keyword, parent: ast.AST, block: Block) -> None:
        self.words.add(node.arg or "**")

    def note_constant(self, node: ast.Constant, parent: ast.AST, block: Block) -> None:
        if isinstance(node.value, str) and len(node.value) < 100:
            self.texts.add(node.value)

    def note_import(self, node: ast.Import, parent: ast.AST, block: Block) -> None:
        for alias in node.names:
            self.imports.append((alias.name, node, block))
            name = alias.asname or alias.name.partition(".")[0]
            self._bind(name, "import", None, block, alias.name if alias.asname else name)

    def note_import_from(self, node: ast.ImportFrom, parent: ast.AST, block: Block) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            full = f"{module}.{alias.name}"
            self.imports.append((full, node, block))
            self._bind(alias.asname or alias.name, "import", None, block, full)

    def note_assign(self, node: ast.Assign | ast.AnnAssign, parent: ast.AST, block: Block) -> None:
        if node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assignments.append((target, node.value, block))
                self._bind_target(target, "is", node.value, block)

    def note_other_assignment(
        self, node: ast.AugAssign | ast.NamedExpr, parent: ast.AST, block: Block
    ) -> None:
        self._bind_target(node.target, "is", node.value, block)

    def note_loop(
        self, node: ast.For | ast.AsyncFor | ast.While, parent: ast.AST, block: Block
    ) -> Children:
        body = Block(node, "loop", block, block.scope)
        if isinstance(node, ast.While):
            head = _children(node, body, node.test)
        else:
            self._bind_target(node.target, "each", node.iter, body)
            head = _children(node, block, node.iter) + _children(node, body, node.target)
        return head + _children(node, body, *node.body) + _children(node, block, *node.orelse)

    def note_comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        parent: ast.AST,
        block: Block,
    ) -> Children:
        children: list[Child] = []
        for part in node.generators:
            children.append((part.iter, part, block))
            block = Block(part, "loop", block, block.scope)
            self._bind_target(part.target, "each", part.iter, block)
            children += _children(part, block, part.target, *part.ifs)
        made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return children + _children(node, block, *made)

    def note_if(self, node: ast.If | ast.IfExp, parent: ast.AST, block: Block) -> Children:
        children = _children(node, block, node.test)
        for part in ("body", "orelse"):
            inner = getattr(node, part)
            nodes = inner if isinstance(node, ast.If) else [inner]
            children += _children(node, Block(node, part, block, block.scope), *nodes)
        return children

    def note_with(self, node: ast.With | ast.AsyncWith, parent: ast.AST, block: Block) -> Children:
        body = Block(node, "body", block, block.scope)
        for item in node.items:
            if item.optional_vars is not None:
                self._bind_target(item.optional_vars, "unknown", None, block)
        return _children(node, block, *node.items) + _children(node, body, *node.body)

    def note_try(self, node: ast.Try | ast.TryStar, parent: ast.AST, block: Block) -> Children:
        children: list[Child] = []
        for part in ("body", "handlers", "orelse", "finalbody"):
            # Only what stands in "body" and "handlers" may be left out when the code runs.
            inner = Block(node, part, block, block.scope) if part in ("body", "handlers") else block
            children += _children(node, inner, *getattr(node, part))
        return children

    def note_function(self, node: Function, parent: ast.AST, block: Block) -> Children:
        self._bind(node.name, "function", node, block)
        outside = (*node.decorator_list, node.args, *([node.returns] if node.returns else []))
        scope = self._open(node, block)
        for argument in _arguments(node.args):
            self._bind(argument.arg, "parameter", argument, scope.block)
        return _children(node, block, *outside) + _children(node, scope.block, *node.body)

    def note_lambda(self, node: ast.Lambda, parent: ast.AST, block: Block) -> Children:
        scope = self._open(node, block)
        for argument in _arguments(node.args):
            self._bind(argument.arg, "unknown", None, scope.block)
        return _children(node, block, node.args) + _children(node, scope.block, node.body)

    def note_class(self, node: ast.ClassDef, parent: ast.AST, block: Block) -> Children:
        self._bind(node.name, "class", node, block)
        scope = self._open(node, block)
        outside = (*node.decorator_list, *node.bases, *node.keywords)
        return _children(node, block, *outside) + _children(node, scope.block, *node.body)

    def note_global(self, node: ast.Global | ast.Nonlocal, parent: ast.AST, block: Block) -> None:
        # What the function binds, the module's name may hold.
        for name in node.names:
            self._bind(name, "unknown", None, self.module.block)

    def _open(self, node: ast.AST, block: Block) -> Scope:
        scope = Scope(node, block.scope)
        scope.block.parent = block
        return scope

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


def _definition(call: Call) -> ast.AST | None:
    """The function of this file that a call by name, or by ``self.name``, runs."""
    func, bindings = call.node.func, []
    if isinstance(func, ast.Name):
        bindings = call.scope.find_bindings(func.id)
    elif dotted(call.receiver) == "self" and call.scope.enclosing_class is not None:
        bindings = call.scope.enclosing_class.bindings.get(call.name, [])
    single = bindings[0] if len(bindings) == 1 else None
    return single.node if single is not None and single.how == "function" else None


Child = tuple[ast.AST, ast.AST, Block]
"""A node, what it is part of, and its block."""
Children = list[Child] | None


def _children(parent: ast.AST, block: Block, *nodes: ast.AST) -> list[Child]:
    return [(node, parent, block) for node in nodes]


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
    return next((one.value for one in call.keywords if one.arg == name), None)


def has_stars(call: ast.Call) -> bool:
    """Whether a call passes ``*args`` or ``**options``, which may hold anything."""
    return any(one.arg is None for one in call.keywords) or any(
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
        stars = any(isinstance(one, ast.Starred) for one in (*value.elts, *target.elts))
        if len(value.elts) == len(target.elts) and not stars:
            for part, one in zip(target.elts, value.elts, strict=True):
                yield "is", one, part
            return
    if how == "each" and value is not None and len(target.elts) == 2:
        source, enumerated = looped_over(value)
        if enumerated:
            yield "unknown", None, target.elts[0]
            yield "each", source, target.elts[1]
            return
    for part in target.elts:
        known = how in ("is", "each")
        yield (
            {"is": "item", "each": "each item"}.get(how, "unknown"),
            value if known else None,
            part,
        )


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return listed + [one for one in (arguments.vararg, arguments.kwarg) if one is not None]


_NOTES: dict[type[ast.AST], Callable[..., Children]] = {
    kind: note
    for note, *kinds in (
        (Facts.note_call, ast.Call),
        (Facts.note_attribute, ast.Attribute),
        (Facts.note_name, ast.Name),
        (Facts.note_keyword, ast.keyword),
        (Facts.note_constant, ast.Constant),
        (Facts.note_import, ast.Import),
        (Facts.note_import_from, ast.ImportFrom),
        (Facts.note_assign, ast.Assign, ast.AnnAssign),
        (Facts.note_other_assignment, ast.AugAssign, ast.NamedExpr),
        (Facts.note_loop, ast.For, ast.AsyncFor, ast.While),
        (Facts.note_comprehension, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
        (Facts.note_if, ast.If, ast.IfExp),
        (Facts.note_with, ast.With, ast.AsyncWith),
        (Facts.note_try, ast.Try, ast.TryStar),
        (Facts.note_function, ast.FunctionDef, ast.AsyncFunctionDef),
        (Facts.note_lambda, ast.Lambda),
        (Facts.note_class, ast.ClassDef),
        (Facts.note_global, ast.Global, ast.Nonlocal),
    )
    for kind in kinds
}
