# SPDX-License-Identifier: Apache-2.0
"""XL00x: options and environment variables whose value is not the one that the user typed."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from xlaunch.doctor.lint.facts import (
    Call,
    FileFacts,
    Function,
    Problem,
    Scope,
    argument,
    dotted,
    has_stars,
    keyword,
)

_BOOLEAN_NAME = re.compile(
    r"(^|_)(USE|ENABLED?|DISABLED?|DEBUG|VERBOSE|PROFILE|DRY_RUN|FP16|BF16|CUDA|COMPILE)(_|$)"
)
_UNREAD_ON_PURPOSE = re.compile(
    r"'-f'|SUPPRESS|unused|not used|deprecat|ignore|local[-_]rank|is_config_file|hidden=True|"
    r"is_eager|action='(help|version)",
    re.IGNORECASE,
)
_READS_ALL = frozenset(
    ("vars", "__dict__", "locals", "globals", "exec", "set_defaults", "add_subparsers")
)
"""Names by which a file may read options without writing theirs."""
_READ_VARIABLES = ("os.environ.get", "os.getenv")
_SHOWS = ("format", "join", "print", "info", "str", "Path")
"""Calls that take text."""


def check_arguments(facts: FileFacts) -> Iterator[Problem]:
    """Options of argparse, click and typer, and variables of the environment."""
    imported = facts.modules()
    # jsonargparse reads bool as true and false.
    if "jsonargparse" not in imported:
        yield from _argparse_options(facts)
    if "click" in imported or "typer" in imported:
        yield from _decorated_options(facts)
    if "fire" in imported:
        yield from _fire_options(facts)
    if "absl" in imported:
        yield from _text_as_truth(facts, [*facts.calls_named("absl.flags.DEFINE_string")])
    for call in facts.called.get("bool", ()):
        if len(call.node.args) == 1 and facts.full(call.node.func, call.scope) == "bool":
            yield from _truth_of_environment(facts, call.node, call.node.args[0], call.scope)
    for test, block in facts.tests:
        # Without a default, a script may ask whether the variable is set.
        if isinstance(test, ast.Call) and len([*test.args, *test.keywords]) > 1:
            yield from _truth_of_environment(facts, test, test, block.scope)


def _argparse_options(facts: FileFacts) -> Iterator[Problem]:
    names = ("add_argument", *(("add", "add_arg") if "configargparse" in facts.modules() else ()))
    added = [
        call
        for call in facts.named(*names)
        if call.receiver is not None and _option_strings(call.node)
    ]
    yield from _text_as_truth(facts, added)
    yield from _unread(facts, added)
    reads_bool = any(
        [dotted(value) for value in call.node.args[1:2]] == ["bool"]
        for call in facts.named("register")
    )
    changers: dict[str, set[str]] = defaultdict(set)
    for call in added:
        changers[_destination(call.node)].add(_action(call.node))
    for call in facts.called.get("set_defaults", ()):
        for given in call.node.keywords:
            changers[given.arg or ""].add("set_defaults")
    converted = _converted_attributes(facts)
    for call in added:
        if has_stars(call.node):
            continue
        option, action = _long_option(call.node), _action(call.node)
        default, kind = keyword(call.node, "default"), keyword(call.node, "type")
        if not action and not reads_bool and _is_bool_call(facts, kind, call.scope):
            remedy = "use action=argparse.BooleanOptionalAction"
            if "parse_known_args" in facts.words:  # which would drop the word after a flag
                remedy = 'convert it: type=lambda text: text.lower() in ("1", "true", "yes")'
            yield (
                kind or call.node,
                "XL001",
                f'type=bool: bool("False") is True, so "{option} False" turns {option.lstrip("-")} on; '
                f"{remedy}",
            )
        elif not action and kind is not None:
            name = facts.full(kind, call.scope)
            if name in ("list", "tuple", "set", "dict"):
                makes = (
                    "fails for every text" if name == "dict" else "makes one item of each letter"
                )
                yield (
                    kind,
                    "XL005",
                    f"type={name} {makes}; give the type of one item, with nargs='+'",
                )
        stored = action == "store_true"
        if action in ("store_true", "store_false") and _is_constant(default, stored):
            if len(changers[_destination(call.node)]) == 1:
                yield (
                    call.node,
                    "XL002",
                    f"{option} stores {stored} and is {stored} by default, so it changes nothing; use "
                    f"action=argparse.BooleanOptionalAction, which adds {_opposite(option)}",
                )
        elif kind is None and not action and option.startswith("-"):
            problem = _untyped_default(call.node, option, default)
            dest = _destination(call.node)
            if problem is not None and dest not in converted and not _is_only_shown(facts, dest):
                yield call.node, "XL003", problem


def _untyped_default(node: ast.Call, option: str, default: ast.expr | None) -> str | None:
    """The fault of an option without a type; None if it has none."""
    choices, several = keyword(node, "choices"), keyword(node, "nargs")
    constant = keyword(node, "const")
    if kind := _number_type(getattr(choices, "elts", ())):
        return (
            f"{option} has choices that are numbers and no type, so what is typed is text and equals "
            f"none of them; add type={kind}"
        )
    if choices is not None or (
        # Three states on purpose: absent, without a value, with one.
        isinstance(constant, ast.Constant)
        and not (isinstance(default, ast.Constant) and constant.value == default.value)
    ):
        return None
    if isinstance(default, ast.List | ast.Tuple):
        if kind := _number_type(default.elts):
            more = "" if several is not None else " and nargs='+'"
            return (
                f"{option} has a list of numbers as default and no type, so what is typed is text; "
                f"add type={kind}{more}"
            )
        if several is None and isinstance(default, ast.List):
            return f"{option} has a list as default, and what is typed is one text; add nargs='+'"
    elif isinstance(default, ast.Constant) and isinstance(default.value, bool):
        return (
            f'{option} is {default.value} by default and has no type, so "{option} False" gives the '
            f'text "False", which is true; use action=argparse.BooleanOptionalAction'
        )
    elif default is not None and (kind := _number_type([default])):
        if re.search(r"rate|ratio|(^|\W)lr|decay|momentum|thresh|eps(ilon)?$|alpha|beta", option):
            kind = "float"  # 0 and 1 as well
        return (
            f'{option} has a number as default and no type, so "{option} 1" gives the text "1"; '
            f"add type={kind}"
        )
    return None


def _decorated_options(facts: FileFacts) -> Iterator[Problem]:
    """Options of click that are never read, and flags of click and typer that are on by default."""
    yield from _unread_parameters(facts)
    for call in facts.named("option", "Option"):
        full = facts.full(call.node.func, call.scope)
        options = _option_strings(call.node)
        if not options or has_stars(call.node) or any("/" in other for other in options):
            continue
        if full == "typer.Option":
            on = _is_constant(argument(call.node, 0, "default"), True)
        else:
            on = full in ("click.option", "rich_click.option") and all(
                _is_constant(keyword(call.node, name), True) for name in ("is_flag", "default")
            )
        changes = ("flag_value", "callback", "parser")
        if on and not any(keyword(call.node, text) for text in changes):
            longest = max(options, key=len)
            yield (
                call.node,
                "XL002",
                f"{longest} is on by default; up to click 8.2 {longest} turns it off, and from 8.3 "
                f'nothing does; write "{longest}/{_opposite(longest)}"',
            )


def _unread_parameters(facts: FileFacts) -> Iterator[Problem]:
    """Options of click whose parameter the command never reads."""
    for call in facts.calls_named("click.option"):
        function = call.parent
        if not isinstance(function, Function) or has_stars(call.node):
            continue
        names = [str(value.value) for value in call.node.args if isinstance(value, ast.Constant)]
        name = next((text for text in names if text.isidentifier()), _destination(call.node))
        parameters = {
            parameter.arg for parameter in (*function.args.args, *function.args.kwonlyargs)
        }
        parts = list(ast.walk(function))
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        used |= {part.attr for part in parts if isinstance(part, ast.Attribute)} & {"params"}
        if (
            name in parameters
            and not used & {name, "locals", "params"}
            and not keyword(call.node, "callback")
            and not _UNREAD_ON_PURPOSE.search(ast.unparse(call.node))
            # Not of a stub: pass, raise NotImplementedError.
            and any(isinstance(part, ast.Call) for line in function.body for part in ast.walk(line))
        ):
            yield (
                call.node,
                "XL006",
                f"{function.name}() never reads {name}: what is typed changes nothing; use it, or "
                f"remove the option",
            )


def _truth_of_environment(
    facts: FileFacts, node: ast.Call, read: ast.expr, scope: Scope
) -> Iterator[Problem]:
    """A variable of the environment, or ``bool()`` of one, that is used as a truth value."""
    default: ast.expr | None = None
    name: ast.expr | None = None
    sure = False
    if isinstance(read, ast.Subscript) and facts.full(read.value, scope) == "os.environ":
        name, sure = read.slice, True
    elif isinstance(read, ast.Call) and facts.full(read.func, scope) in _READ_VARIABLES:
        name = read.args[0] if read.args else None
        default = argument(read, 1, "default")
        sure = isinstance(default, ast.Constant) and (
            isinstance(default.value, bool | int)
            or str(default.value).lower() in ("0", "1", "true", "false", "no", "yes")
        )
    if name is None:
        return
    shown = str(name.value) if isinstance(name, ast.Constant) else "the variable"
    if isinstance(default, ast.Constant) and default.value in ("", None, False):
        return  # whether it is set
    if sure or (default is None and _BOOLEAN_NAME.search(shown)):
        yield (
            node,
            "XL004",
            f"{shown} as a truth value is true for every text that is not empty, also for 0 and False; "
            f'compare it: os.environ.get(...) in ("1", "true")',
        )


def _text_as_truth(facts: FileFacts, options: list[Call]) -> Iterator[Problem]:
    """Options that are text, with "False" or the like as default, and are tested as they are."""
    tested = {test.attr for test, _ in facts.tests if isinstance(test, ast.Attribute)}
    tested -= {value.attr for value, _, _ in facts.assignments if isinstance(value, ast.Attribute)}
    for call in options:
        is_flag = call.name == "DEFINE_string"
        default = argument(call.node, 1 if is_flag else None, "default")
        kind = keyword(call.node, "type")
        word = str(default.value) if isinstance(default, ast.Constant) else ""
        is_text = isinstance(default, ast.Constant) and isinstance(default.value, str)
        if (
            is_text
            and word.lower() in ("0", "false", "no", "true", "yes")
            and (kind is None or facts.full(kind, call.scope) == "str")
            and not _action(call.node)
            and _destination(call.node) in tested
        ):
            name = _option_strings(call.node)[-1].lstrip("-")
            yield (
                call.node,
                "XL003",
                f"{name} is text, {word!r} by default, and its truth is tested: every text is true; "
                f"declare it as a flag",
            )


def _fire_options(facts: FileFacts) -> Iterator[Problem]:
    """Parameters of functions given to fire that expect text, and get a number."""
    text_only = {
        one.id
        for target, one, block in facts.assignments
        if isinstance(one, ast.Name)
        and isinstance(target, ast.Subscript)
        and facts.full(target.value, block.scope) == "os.environ"
    } | {dotted(call.receiver) for call in facts.named("split") if call.receiver is not None}
    for call in facts.calls_named("fire.Fire"):
        name = dotted(call.node.args[0]) if call.node.args else None
        functions = [binding.node for binding in call.scope.find_bindings(name)] if name else []
        for function in (
            function for function in functions if isinstance(function, ast.FunctionDef)
        ):
            values = function.args.defaults
            named = zip(
                function.args.args[len(function.args.args) - len(values) :], values, strict=True
            )
            for parameter, value in named:
                text = value.value if isinstance(value, ast.Constant) else None
                if parameter.arg in text_only and re.fullmatch(r"'[\d,]+'", repr(text)):
                    yield (
                        value,
                        "XL003",
                        f'fire makes a number of "--{parameter.arg} 1" and a tuple of "0,1", and this '
                        f"function needs text; take str({parameter.arg})",
                    )


def _unread(facts: FileFacts, options: list[Call]) -> Iterator[Problem]:
    """Options that nothing reads, in a file that reads most of its options and keeps them to itself."""
    if facts.words & _READS_ALL:
        return
    parse = {"parse_args"} | {
        call.scope.node.name
        for call in facts.named("parse_args")
        if isinstance(call.parent, ast.Return) and isinstance(call.scope.node, Function)
    }
    names = {
        target.id
        for target, value, _ in facts.assignments
        if isinstance(target, ast.Name)
        and isinstance(value, ast.Call)
        and (dotted(value.func) or ast.unparse(value.func)).rpartition(".")[2] in parse
    }
    read = {attribute.attr for attribute, _, _ in facts.attributes} | facts.words | facts.texts
    readable = [call for call in options if not has_stars(call.node)]
    missing = [call for call in readable if _destination(call.node) not in read]
    if not names or len(readable) != len(options) or len(missing) * 3 > len(readable):
        return
    assigned = [value for _, value, _ in facts.assignments]
    for call in facts.calls:  # the options as a whole may go to code that is not in this file
        if call.name not in ("print", "info") and facts.definition(call) is None:
            assigned += [*call.node.args, *(option.value for option in call.node.keywords)]
    if any(isinstance(value, ast.Name) and value.id in names for value in assigned):
        return
    for call in missing:
        if not _UNREAD_ON_PURPOSE.search(ast.unparse(call.node)):
            yield (
                call.node,
                "XL006",
                f"nothing in this file reads {_long_option(call.node)}: what is typed changes nothing; use "
                f"{min(names)}.{_destination(call.node)}, or remove the option",
            )


def _is_only_shown(facts: FileFacts, name: str) -> bool:
    """Whether an option is text wherever it is read. **Ex.:** ``f"run-{args.seed}"``."""
    uses = [parent for attribute, parent, _ in facts.attributes if attribute.attr == name]
    passing = [value for value in uses if isinstance(value, ast.keyword)]
    formatted = {  # by functions of this file that get it
        _formats(function, option.arg)
        for call in (facts.calls if passing else ())
        for option in call.node.keywords
        if option in passing and (function := facts.definition(call)) is not None
    }
    return (
        bool(uses)
        and formatted == ({True} if passing else set())
        and all(
            isinstance(argument, ast.FormattedValue | ast.keyword)
            or (
                isinstance(argument, ast.Call)
                and (dotted(argument.func) or "").split(".")[-1] in _SHOWS
            )
            for argument in uses
        )
    )


def _formats(function: ast.AST, parameter: str | None) -> bool:
    """Whether a function puts a parameter into texts, and uses it for nothing else."""
    parts = list(ast.walk(function))
    shown = [part.value for part in parts if isinstance(part, ast.FormattedValue)]
    used = [part for part in parts if isinstance(part, ast.Name) and part.id == parameter]
    return bool(used) and all(part in shown for part in used)


def _converted_attributes(facts: FileFacts) -> set[str]:
    """Attributes that the file converts. **Ex.:** ``port`` in ``int(args.port)``."""
    converted: set[str] = set()
    for call in facts.calls:
        called = (dotted(call.node.func) or "").rpartition(".")[2]
        if called in ("int", "float", "str", "literal_eval", "eval", "loads", "safe_load") or (
            "bool" in called and called != "bool"
        ):
            read: list[ast.AST | None] = [*call.node.args]
            for value in call.node.args:  # int(n) for n in args.numbers
                bound = call.scope.find_bindings(value.id) if isinstance(value, ast.Name) else ()
                read += [binding.node for binding in bound if binding.how == "each"]
            converted.update(part.attr for part in read if isinstance(part, ast.Attribute))
    return converted


def _option_strings(node: ast.Call) -> list[str]:
    """The names that an option declares. **Ex.:** ``["-n", "--number"]``."""
    texts = [value.value for value in node.args if isinstance(value, ast.Constant)]
    strings = [name for name in texts if isinstance(name, str)]
    return [text for text in strings if text.startswith("-")] or strings


def _long_option(node: ast.Call) -> str:
    """The first name that begins with two dashes, or the first."""
    names = _option_strings(node)
    return next((name for name in names if name.startswith("--")), names[0])


def _destination(node: ast.Call) -> str:
    """The attribute that the option sets."""
    destination = keyword(node, "dest")
    if isinstance(destination, ast.Constant):
        return str(destination.value)
    return _long_option(node).lstrip("-").replace("-", "_")


def _action(node: ast.Call) -> str:
    """The action's name; empty for the default one."""
    action = keyword(node, "action")
    if action is None or _is_constant(action, "store"):
        return ""
    return str(action.value) if isinstance(action, ast.Constant) else "another"


def _is_bool_call(facts: FileFacts, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a converter is ``bool``, or ``lambda x: bool(x)``."""
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
        call, own = node.body, [parameter.arg for parameter in node.args.args]
        return dotted(call.func) == "bool" and [dotted(value) for value in call.args] == own
    return node is not None and facts.full(node, scope) == "bool"


def _is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and (type(node.value), node.value) == (type(value), value)


def _number_type(nodes: Sequence[ast.expr]) -> str | None:
    """``int`` or ``float`` for numbers, with a sign or without; None for anything else, and for none."""
    values = [value.operand if isinstance(value, ast.UnaryOp) else value for value in nodes]
    types = {
        type(argument.value) if isinstance(argument, ast.Constant) else None for argument in values
    }
    if not types or not types <= {int, float}:
        return None
    return "float" if float in types else "int"


def _opposite(option: str) -> str:
    name = option.lstrip("-")
    return f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"
