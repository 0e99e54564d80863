# SPDX-License-Identifier: Apache-2.0
"""What names stand for: imports resolved through their aliases, and the kinds of values.

A kind is claimed only if all bindings of a name agree; else it is unknown, and rules are silent.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from typing import NamedTuple

from xlaunch.doctor.lint.facts import (
    Binding,
    Call,
    Facts,
    Function,
    Scope,
    dotted,
    has_stars,
    keyword,
    looped_over,
    operands,
)


class Kind(enum.Enum):
    TENSOR = "tensor"
    MODULE = "module"
    """A model or layer: a `torch.nn.Module`."""
    OUTPUT = "output"
    """What a module returns: a tensor, or several."""
    LOADER = "loader"
    OTHER = "other"
    """Known to be none of these, such as a number."""


PARAMETER = "parameter"
"""The name of a value that a caller in another file passes."""


class Value(NamedTuple):
    """What an expression holds."""

    kind: Kind
    origin: ast.Call | None = None
    """The call that made it, if there is only one."""
    scope: Scope | None = None
    """Where that call stands."""
    name: str | None = None
    """The dotted name of what was called. **Ex.:** ``torch.nn.Linear``."""
    definition: ast.ClassDef | None = None
    """Its class, if this file defines it."""


FACTORIES = frozenset(
    (
        "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint",
        "randn", "randperm", "tensor", "zeros",
    )
)  # fmt: skip
"""Functions of torch that make a tensor and take ``device=``."""

_TENSOR_FUNCTIONS = FACTORIES | frozenset(
    (
        "abs", "add", "argmax", "argmin", "argsort", "as_tensor", "bernoulli", "bmm", "cat",
        "clamp", "clone", "concat", "concatenate", "cos", "cosine_similarity", "cross",
        "cumsum", "diag", "div", "dot", "einsum", "empty_like", "exp", "flatten", "from_numpy",
        "full_like", "gather", "hstack", "index_select", "log", "log_softmax", "masked_select",
        "matmul", "mean", "mm", "mul", "multinomial", "neg", "norm", "normal", "ones_like",
        "outer", "pow", "prod", "rand_like", "randint_like", "randn_like", "relu",
        "repeat_interleave", "reshape", "rot90", "rsqrt", "scatter", "sigmoid", "sin",
        "softmax", "sqrt", "squeeze", "stack", "std", "sub", "sum", "tanh", "tensordot", "tile",
        "transpose", "tril", "triu", "unsqueeze", "var", "vstack", "where", "zeros_like",
    )
)  # fmt: skip
_TENSOR_METHODS = frozenset(
    (
        "abs", "add", "add_", "argmax", "argmin", "bfloat16", "bool", "byte", "clamp", "clamp_",
        "clone", "contiguous", "cpu", "cuda", "cumsum", "detach", "div", "div_", "double", "eq",
        "exp", "expand", "fill_", "flatten", "float", "ge", "gt", "half", "int", "ipu", "le",
        "log", "log_softmax", "long", "lt", "masked_fill", "masked_fill_", "matmul", "mean",
        "mul", "mul_", "ne", "neg", "norm", "normal_", "permute", "pin_memory", "pow", "prod",
        "repeat", "requires_grad_", "reshape", "round", "sigmoid", "softmax", "sort_", "sqrt",
        "squeeze", "std", "sub", "sum", "t", "tanh", "to", "transpose", "type_as", "uniform_",
        "unsqueeze", "var", "view", "view_as", "xpu", "zero_",
    )
)  # fmt: skip
_NUMBERS = frozenset(
    ["item", "tolist", "numpy", "size", "dim", "numel", "nelement", "data_ptr", "is_cuda"]
)

_MODELS = (
    "torchvision.models.",
    "timm.create_model",
    "timm.models.",
    "segmentation_models_pytorch.",
)
_MODULE_ROOTS = frozenset(
    (
        "torch.nn.Module", "torch.nn.Sequential", "torch.nn.ModuleList", "torch.jit.ScriptModule",
        "transformers.PreTrainedModel", "transformers.modeling_utils.PreTrainedModel",
    )
)  # fmt: skip
LIGHTNING = frozenset(("lightning", "pytorch_lightning", "lightning_fabric"))
"""They move, switch and wait by themselves."""

_MODULE_METHODS = frozenset(("parameters", "named_parameters", "modules", "named_modules", "eval"))
_DEPTH = 30
"""Expressions that are nested deeper are not understood."""


class Names:
    """What the names of one file stand for."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._known: dict[tuple[Scope, str], Value | None] = {}
        self._open: set[tuple[Scope, str]] = set()
        self._methods: dict[tuple[Scope, str], set[str]] = {}
        for call in facts.calls:
            receiver = dotted(call.receiver)
            owner = self.owner(call.scope, receiver) if receiver is not None else None
            # `frame.eval("a + b")` and `engine.backward(loss)` are methods of other things.
            if owner is None or (call.node.args and call.name in ("eval", "backward")):
                continue
            assert receiver is not None
            self._methods.setdefault((owner, receiver), set()).add(call.name)

    def full(self, node: ast.AST | None, scope: Scope) -> str | None:
        """The dotted name that an expression means, through aliases of imports.

        **Ex.:** ``torch.nn.Linear`` for ``nn.Linear``, ``bool`` for the built-in. None for what
        this file binds otherwise.
        """
        text = dotted(node)
        if text is None:
            return None
        first, dot, rest = text.partition(".")
        home = scope.find(first)
        if home is None:
            return text
        bound = home.bindings[first]
        imported = {binding.text for binding in bound if binding.how == "import"}
        if len(imported) == 1 and all(b.how == "import" or _is_none(b.node) for b in bound):
            return _canonical(imported.pop() + dot + rest)
        return None

    def call_name(self, node: ast.expr | None, scope: Scope) -> str:
        """The full name of what a call calls; empty for any other expression."""
        return (self.full(node.func, scope) or "") if isinstance(node, ast.Call) else ""

    def calls_named(self, full: str) -> Iterator[Call]:
        """The calls of what an import makes known by this full name."""
        for call in self.facts.called.get(full.rpartition(".")[2], ()):
            if self.full(call.node.func, call.scope) == full:
                yield call

    def is_kind(self, node: ast.AST | None, scope: Scope, *kinds: Kind) -> bool:
        """Whether an expression is known to hold one of `kinds`."""
        value = self.value(node, scope)
        return value is not None and value.kind in kinds

    def value(self, node: ast.AST | None, scope: Scope, depth: int = 0) -> Value | None:
        """What an expression holds; None if it is not known."""
        if depth > _DEPTH:
            return None
        depth += 1
        if isinstance(node, ast.Name):
            return self._named(node.id, scope, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._called(node, scope, depth)
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
            return self._tensor_of(operands(node), scope, depth)
        if isinstance(node, ast.Subscript):
            return self._tensor_of([node.value], scope, depth)
        if isinstance(node, ast.IfExp):
            return _merge([self.value(one, scope, depth) for one in (node.body, node.orelse)])
        if isinstance(node, ast.Constant | ast.JoinedStr):
            return Value(Kind.OTHER)
        return None

    def _tensor_of(self, parts: list[ast.expr], scope: Scope, depth: int) -> Value | None:
        """A tensor, if one of `parts` is."""
        values = (self.value(part, scope, depth) for part in parts)
        is_tensor = any(value is not None and value.kind is Kind.TENSOR for value in values)
        return Value(Kind.TENSOR) if is_tensor else None

    def class_of(self, node: ast.AST, scope: Scope) -> ast.ClassDef | None:
        """The class of this file that a name means."""
        if not isinstance(node, ast.Name):
            return None
        home = scope.find(node.id)
        bound = home.bindings[node.id] if home is not None else []
        single = bound[0].node if len(bound) == 1 else None
        return single if isinstance(single, ast.ClassDef) else None

    def is_module_class(self, definition: ast.ClassDef, depth: int = 0) -> bool:
        """Whether a class of this file is a module, by its bases."""
        scope = self.facts.functions[definition].parent
        assert scope is not None
        for base in definition.bases:
            name = self.full(base, scope) or ""
            if name in _MODULE_ROOTS or (name.startswith("torch.nn.") and _is_class(name)):
                return True
            inner = self.class_of(base, scope)
            if inner is not None and depth < _DEPTH and self.is_module_class(inner, depth + 1):
                return True
        return False

    def owner(self, scope: Scope, receiver: str) -> Scope | None:
        """The scope that binds a receiver such as ``model`` or ``self.model``."""
        if receiver.startswith("self."):
            return scope.enclosing_class
        return scope.find(receiver.partition(".")[0])

    def _named(self, name: str, scope: Scope, depth: int) -> Value | None:
        home = scope.find(name)
        if home is None:
            return None
        return self._bound((home, name), home.bindings[name], depth)

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Value | None:
        if node.attr in ("data", "grad", "T", "mT"):
            value = self._tensor_of([node.value], scope, depth)
            if value is not None:
                return value
        if dotted(node.value) == "self":
            owner = scope.enclosing_class
            bound = owner.attributes.get(node.attr) if owner is not None else None
            if owner is not None and bound:
                return self._bound((owner, f"self.{node.attr}"), bound, depth)
        if node.attr == "loss":
            value = self.value(node.value, scope, depth)
            if value is not None and value.kind is Kind.OUTPUT:
                return Value(Kind.TENSOR)
        return None

    def _bound(self, key: tuple[Scope, str], bindings: list[Binding], depth: int) -> Value | None:
        """What a name holds by all its bindings, else by the methods that are called on it."""
        if key in self._known:
            return self._known[key]
        if key in self._open:
            return None
        self._open.add(key)
        values: list[Value | None] = []
        for binding in bindings:
            if _is_none(binding.node) or self._is_of_itself(binding, key[1]):
                continue
            values.append(self._by_binding(binding, depth))
        self._open.discard(key)
        value = _merge(values) if values else None
        if value is None and any(one is None for one in values):
            value = self._by_methods(key, [one for one in values if one is not None])
        self._known[key] = value
        return value

    def _is_of_itself(self, binding: Binding, name: str) -> bool:
        """Whether a binding keeps what the name holds. **Ex.:** ``model = model.to(device)``."""
        node = binding.node
        if binding.how != "is" or node is None:
            return False
        while True:
            if dotted(node) == name:
                return True
            if isinstance(node, ast.Call):
                called = self.full(node.func, binding.block.scope) or ""
                if called in ("torch.compile", "torch.jit.script", "torch.autograd.Variable") and (
                    node.args
                ):
                    node = node.args[0]
                elif isinstance(node.func, ast.Attribute) and node.func.attr in _TENSOR_METHODS:
                    node = node.func.value
                else:
                    return False
            elif isinstance(node, ast.BinOp):
                node = node.left
            else:
                return False

    def _by_methods(self, key: tuple[Scope, str], others: list[Value]) -> Value | None:
        methods = self._methods.get(key, set())
        if "torch" not in self.facts.modules():
            return None
        guess = None
        if "backward" in methods:
            guess = Kind.TENSOR
        elif methods & _MODULE_METHODS:
            guess = Kind.MODULE
        if guess is None or any(one.kind is not guess for one in others):
            return None
        return Value(guess)

    def _by_binding(self, binding: Binding, depth: int) -> Value | None:
        scope = binding.block.scope
        if binding.how == "is":
            return self.value(binding.node, scope, depth)
        if binding.how == "parameter" and isinstance(binding.node, ast.arg):
            return self._parameter(binding.node, scope, depth)
        if binding.how in ("each", "each item") and isinstance(binding.node, ast.expr):
            source, _ = looped_over(binding.node)
            if binding.how == "each item" and self.yields_tensors(source, scope, depth):
                return Value(Kind.TENSOR)
            if binding.how == "each" and _last_part(source) in ("parameters", "buffers"):
                return Value(Kind.TENSOR)
            if self.call_name(binding.node, scope) in (
                "range", "tqdm.trange", "tqdm.auto.trange",
            ):  # fmt: skip
                return Value(Kind.OTHER)
        return None

    def yields_tensors(self, source: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a loop over `source` unpacks tensors on the CPU: a `DataLoader`'s usual batches."""
        value = self.value(source, scope, depth)
        if value is None or value.kind is not Kind.LOADER:
            return False
        if value.origin is None:
            # A parameter: its batches are tensors unless a library that has others is imported.
            return not self.facts.modules() & {
                "torch_geometric", "dgl", "transformers", "torchtext", "monai", "datasets",
                "accelerate", "detectron2", "nvidia", "ffcv",
            }  # fmt: skip
        assert value.scope is not None
        if keyword(value.origin, "collate_fn") is not None or has_stars(value.origin):
            return False
        dataset = value.origin.args[0] if value.origin.args else keyword(value.origin, "dataset")
        return dataset is not None

    def _parameter(self, argument: ast.arg, scope: Scope, depth: int) -> Value | None:
        if argument.annotation is not None:
            name = self.full(argument.annotation, scope) or ""
            kind = _ANNOTATIONS.get(name)
            if kind is not None:
                return Value(kind, name=PARAMETER)
        function = scope.node
        if not isinstance(function, Function):
            return None
        passed = [
            (given, call.scope)
            for call in self.facts.calls_of(function)
            if (given := argument_for(function, argument.arg, call.node)) is not None
        ]
        if passed:
            return _merge([self.value(given, where, depth) for given, where in passed])
        if argument.arg.endswith(("loader", "dataloader")) and "torch" in self.facts.modules():
            return Value(Kind.LOADER, name=PARAMETER)
        return None

    def _called(self, node: ast.Call, scope: Scope, depth: int) -> Value | None:
        name = self.full(node.func, scope)
        if name is not None and "." in name:
            kind = _kind_of_call(name)
            if kind is not None:
                return Value(kind, node, scope, name)
            if name in ("torch.compile", "torch.jit.script") and node.args:
                value = self.value(node.args[0], scope, depth)
                return value if value is not None and value.kind is Kind.MODULE else None
            if name == "torch.autograd.Variable" and node.args:
                return Value(Kind.TENSOR)
        if name in ("int", "float", "len", "str", "round", "range", "list", "dict", "sum", "max"):
            return Value(Kind.OTHER) if name not in ("sum", "max") else None
        definition = self.class_of(node.func, scope)
        if definition is not None:
            if self.is_module_class(definition):
                return Value(Kind.MODULE, node, scope, definition.name, definition)
            return None
        function = self.facts.function(node.func, scope)
        if function is not None:
            return self._returned(self.facts.functions[function], depth)
        if isinstance(node.func, ast.Attribute):
            value = self.value(node.func.value, scope, depth)
            method = node.func.attr
            if value is not None:
                return _kind_of_method(value, method)
            if method in ("unsqueeze", "detach") and "torch" in self.facts.modules():
                return Value(Kind.TENSOR)
            if method == "from_pretrained":
                full = self.full(node.func.value, scope) or ""
                if full.startswith("transformers.") and "Model" in full:
                    return Value(Kind.MODULE, node, scope, f"{full}.from_pretrained")
        value = self.value(node.func, scope, depth)
        if value is not None and value.kind is Kind.MODULE:
            layer = (value.name or "").startswith("torch.nn.") and not (value.name or "").endswith(
                ("Sequential", "LSTM", "GRU", "RNN", "MultiheadAttention", "DataParallel")
            )
            return Value(Kind.TENSOR if layer else Kind.OUTPUT)
        return None

    def _returned(self, scope: Scope, depth: int) -> Value | None:
        """What a function of this file returns."""
        key = (scope, "return")
        if key not in self._known and key not in self._open:
            self._open.add(key)
            value = _merge([self.value(one, scope, depth) for one in self.facts.returns[scope]])
            if value is not None and value.kind is Kind.MODULE:
                value = value._replace(origin=None, scope=None)  # it may have been moved there
            self._known[key] = value
            self._open.discard(key)
        return self._known.get(key)


def argument_for(function: Function, name: str, call: ast.Call) -> ast.expr | None:
    """What a call of `function` passes for its parameter `name`, if that is plain to see."""
    given = keyword(call, name)
    if given is not None or has_stars(call):
        return given
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        names = names[1:]
    place = names.index(name) if name in names else len(call.args)
    return call.args[place] if place < len(call.args) else None


def _merge(values: list[Value | None]) -> Value | None:
    """What all of `values` have in common; None if their kinds differ."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values) or len({value.kind for value in known}) > 1:
        return None
    if len(set(known)) == 1:
        return known[0]
    return Value(known[0].kind, name=PARAMETER if any(v.name == PARAMETER for v in known) else None)


def _kind_of_call(name: str) -> Kind | None:
    """What a function or class of a known library makes."""
    if name.startswith("torch.nn.functional."):
        return Kind.TENSOR
    if name == "torch.nn.Parameter":
        return Kind.TENSOR
    if name.startswith("torch.nn.") and _is_class(name) and ".utils." not in name:
        return Kind.MODULE
    if name.startswith("torch.") and name.removeprefix("torch.") in _TENSOR_FUNCTIONS:
        return Kind.TENSOR
    if name.startswith(_MODELS):
        last = name.rpartition(".")[2]
        return Kind.MODULE if not last.startswith(("get_model_", "get_weight", "list_")) else None
    return Kind.LOADER if name == "torch.utils.data.DataLoader" else None


def _kind_of_method(value: Value, method: str) -> Value | None:
    if value.kind is Kind.TENSOR:
        if method in _NUMBERS:
            return Value(Kind.OTHER)
        return Value(Kind.TENSOR) if method in _TENSOR_METHODS else None
    if value.kind is Kind.MODULE:
        same = "to cuda xpu cpu half float double bfloat16 eval train requires_grad_ share_memory"
        return value if method in same.split() else None
    return None


def _canonical(name: str) -> str:
    """One name for what has several. **Ex.:** ``torch.nn.parallel.DataParallel``."""
    for alias, usual in _ALIASES:
        if name.startswith(alias):
            return usual + name.removeprefix(alias)
    return name


_ALIASES = (
    ("torch.nn.modules.module.", "torch.nn."),
    ("torch.nn.parameter.", "torch.nn."),
    ("torch.nn.parallel.DataParallel", "torch.nn.DataParallel"),
    ("torch.utils.data.dataloader.", "torch.utils.data."),
    ("torch.utils.data.dataset.", "torch.utils.data."),
)
_ANNOTATIONS = {
    "torch.Tensor": Kind.TENSOR,
    "torch.FloatTensor": Kind.TENSOR,
    "torch.LongTensor": Kind.TENSOR,
    "torch.nn.Module": Kind.MODULE,
    "torch.utils.data.DataLoader": Kind.LOADER,
}


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2][:1].isupper()


def _last_part(node: ast.expr) -> str:
    """The name of the method that an expression calls."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else ""


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
