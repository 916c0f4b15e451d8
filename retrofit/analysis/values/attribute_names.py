"""Names of attributes that a program takes by a text: `getattr(self, "loss_" + name)`, `getattr(callback, name)`.

Also what it finds among all names of a module: `for name, kind in vars(models).items()`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..calls import CallSite, last_name, returns_of, takes, without_methods
from ..files.runtime_names import canonical
from ..nodes import walk
from ..python_api import ATTRIBUTES, LISTS_OBJECTS, LOOKS_UP, VARS
from ..scopes import Scope
from .kinds import External, Instance, LocalClass, LocalFunction, LocalModule, Result, Value, Values
from .texts import evaluated, is_open, texts_of

if TYPE_CHECKING:
    from .inference import Analysis

ANY = ".*"
DIRECTIVE = re.compile(r"%(?:\(\w*\))?[^a-zA-Z%]*[a-zA-Z%]")  # of a text that % fills: %s, %.2f, %(name)d, %%
LISTS_NAMES = frozenset({"dir", VARS})
# Functions and attributes by which a program takes what it has under a name that is a text.
EVALUATES = frozenset({"eval", "exec", "globals", "locals", "__import__"})
ASKS_ABOUT = frozenset({"callable", "isinstance", "issubclass", "isclass", "isfunction", "hasattr", "type"})
LISTS_MEMBERS = "getmembers"  # of inspect
TESTS_OF_CLASSES = frozenset({"issubclass", "isclass"})
SAME_TEXT = frozenset({"lower", "upper", "casefold", "strip", "title", "capitalize"})
FINDS = frozenset({"importlib.import_module", "pydoc.locate"})  # what a dotted name is the name of
FINDS_CLASSES = frozenset({"__subclasses__", "getmembers", "import_module", "locate", "import_string"})


def is_taken_by_text(node: ast.AST) -> bool:
    """Return whether a node is a call of getattr(value, name)."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    return is_call and len(node.args) > 1  # type: ignore[attr-defined]


def names_taken(analysis: Analysis, node: ast.Call, known: Iterable[str], scope: Scope | None = None) -> list[str]:
    """Return those of some names that getattr(value, name) can take; a variable can hold any text of the program.

    With the scope of the call, a variable can hold what `dir` and the like list, too.
    """
    text = node.args[1]
    pattern = pattern_of(text)
    if pattern == ANY and scope is not None and _is_listed(text, scope):
        return list(known)
    if pattern == ANY:
        texts = analysis.fact("texts", lambda: _texts(analysis))
        return [name for name in known if name in texts]
    return [name for name in known if re.fullmatch(pattern, name)]


def named_by_text(analysis: Analysis, function: str, node: ast.Call, scope: Scope) -> Values:
    """Return what a text names: import_module("data." + name), getattr(module, name), eval("nn." + name)."""
    if node in analysis.modules.named:
        sources = [analysis.modules.sources.get(path) for path in analysis.modules.named[node]]
        found = frozenset(LocalModule(analysis.module_scopes[source]) for source in sources if source is not None)
        if found:
            return found
    if function in FINDS and node.args:
        texts = texts_of(analysis, node.args[0], scope)
        return frozenset(External(canonical(text)) for text in texts if not text.startswith("."))
    if function == "eval":
        return frozenset().union(*(analysis.evaluate(part, scope) for part in evaluated(analysis, node, scope)))
    return _taken_by_text(analysis, node, scope) if function == "getattr" and len(node.args) > 1 else frozenset()


def _taken_by_text(analysis: Analysis, node: ast.Call, scope: Scope) -> Values:
    """Return the methods of objects, or the functions and classes of modules, that getattr(value, name) can give."""
    values = analysis.evaluate(node.args[0], scope)
    methods = methods_taken(analysis, node, values)
    if methods:
        return frozenset(methods)
    found = members_by_text(analysis, values, node.args[1], scope)
    is_open = bool(found) and _has_external(values)  # a module of a library, too
    return found | {Result("getattr", node, scope)} if is_open and not _has_external(found) else found


def _has_external(values: Iterable[Value]) -> bool:
    return any(isinstance(value, External) for value in values)


def members_by_text(analysis: Analysis, values: Values, name: ast.expr, scope: Scope) -> Values:
    """Return the functions and classes of modules that a text can be the name of.

    Of modules of the project whatever the name is, unless it is written there; of others the names that are known.
    """
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        modules = (value for value in values if isinstance(value, (LocalModule, External)))
        return frozenset().union(*(analysis.members(module, name.value) for module in modules))
    found = set(_all_members(analysis, values))
    for module in (value for value in values if isinstance(value, External)):
        texts = {text for text in texts_of(analysis, name, scope) if text.isidentifier()}
        unknown = analysis.library.unknown_member(module.name, *_taken(name, scope))
        if not unknown and is_open(analysis, name, scope):
            continue  # the default of an option is one of many names
        for text in texts or {unknown} - {""}:
            found |= analysis.members(module, text)
    return frozenset(found)


def _taken(name: ast.expr, scope: Scope) -> tuple[str, ast.Call | None]:
    """Return what a program calls that which it takes by a name, and the call where it is called at once.

    `name`, the variable that it is assigned to, and the function and the class that this is in: def get_loss(name).
    """
    parents = scope.source.parents
    taken = parents.get(name)
    call = parents.get(taken) if taken is not None else None
    is_called = isinstance(call, ast.Call) and call.func is taken
    statement = parents.get(call) if is_called and call is not None else call
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    owner = scope.enclosing_class()
    words = [ast.unparse(part) for part in (name, *targets)]
    words += [getattr(where.node, "name", "") for where in (scope, owner) if where is not None]
    return " ".join(words), call if is_called else None  # type: ignore[return-value]


def _all_members(analysis: Analysis, values: Values) -> Values:
    """Return the functions and classes that modules have under any name."""
    modules = [value for value in values if isinstance(value, LocalModule)]
    named = [analysis.members(module, inner) for module in modules for inner in _names_of(analysis, module.scope)]
    return frozenset(value for values in named for value in values if isinstance(value, (LocalClass, LocalFunction)))


def _names_of(analysis: Analysis, module: Scope) -> list[str]:
    """Return the names that a module has, also of what it imports all of: `from .resnet import *`."""
    names = [*module.bindings]
    for binding in module.star_imports:
        path = analysis.modules.find(binding.dotted, binding.level, module.source)
        source = analysis.modules.sources.get(path) if path else None
        names += analysis.module_scopes[source].bindings if source is not None else ()
    return names


def in_dict_of_names(analysis: Analysis, node: ast.AST, scope: Scope) -> Values:
    """Return what is taken of a module by the dict of its names: models.__dict__[name], vars(models).get(name)."""
    table, name = None, None
    if isinstance(node, ast.Subscript):
        table, name = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_UP:
        table, name = node.func.value, node.args[0] if node.args else None
    if name is None:
        return frozenset()
    holder = _holder_of(table)
    named = (
        members_by_text(analysis, analysis.evaluate(holder, scope), name, scope) if holder is not None else frozenset()
    )
    return frozenset(value for value in named if _is_meant(value, node, scope))


def _holder_of(table: ast.AST | None) -> ast.expr | None:
    """Return the object of which this is the dict of what it has: `models` of models.__dict__ and vars(models)."""
    if isinstance(table, ast.Call):
        return table.args[0] if last_name(table) == VARS and len(table.args) == 1 else None
    return table.value if isinstance(table, ast.Attribute) and table.attr == ATTRIBUTES else None


def _is_meant(value: Value, node: ast.AST, scope: Scope) -> bool:
    """Return whether a program can take this where it calls it: with these arguments, and for what it returns."""
    call = scope.source.parents.get(node)
    if isinstance(call, ast.Call) and call.func is not node and last_name(call) in ASKS_ABOUT:
        return False  # if callable(models.__dict__[name])
    if not isinstance(value, LocalFunction) or not isinstance(call, ast.Call) or call.func is not node:
        return True
    is_used = not isinstance(scope.source.parents.get(call), ast.Expr)
    return takes(CallSite(call, scope), value.scope) and (bool(returns_of(value.node)) or not is_used)


def methods_taken(analysis: Analysis, node: ast.Call, values: Iterable[Value]) -> list[LocalFunction]:
    """Return the methods of objects of the project that getattr(object, name) can give."""
    found: dict[str, LocalFunction] = {}
    for value in values:
        if not isinstance(value, Instance):
            continue
        own = [*analysis.classes.mro(value.scope), *(() if value.call else analysis.classes.derived(value.scope))]
        for scope in own:
            for name in names_taken(analysis, node, [name for name in scope.bindings if not _is_special(name)]):
                method = analysis.classes.own_method(scope, name)
                if method is not None:
                    found.setdefault(f"{id(scope)} {name}", method)
    return list(found.values())


def _is_special(name: str) -> bool:
    """Return whether Python runs a method by itself, as __init__: no program puts its name together from texts."""
    return name.startswith("__") and name.endswith("__")


def takes_classes_by_text(analysis: Analysis) -> bool:
    """Return whether a program can take a class of its own without naming it: eval(name), globals()[name]."""
    library = analysis.library.creating_functions
    for source in analysis.modules.sources.values():
        for node in source.nodes.of(ast.Call, ast.Attribute):
            if isinstance(node, ast.Call):
                scope = analysis.scope_at(source, node)
                name = last_name(node)
                is_found = name in FINDS_CLASSES and node not in analysis.modules.named
                if is_found or (isinstance(node.func, ast.Name) and name in EVALUATES):
                    return True
                if name == "vars" and (not node.args or _is_of_module(analysis, node.args[0], scope)):
                    return True
                if library and analysis.called(node, scope) & library:
                    return True
            elif node.attr in ("__dict__", "modules"):
                holder = analysis.evaluate(node.value, analysis.scope_at(source, node))
                if any(isinstance(value, LocalModule) or value == External("sys") for value in holder):
                    return True
    return False


def _is_of_module(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    return any(isinstance(value, LocalModule) for value in analysis.evaluate(node, scope))


def _is_listed(text: ast.expr, scope: Scope) -> bool:
    """Return whether a name is one of those that an object has: of dir(losses), vars(losses), losses.__dict__."""
    waiting, seen = [text], set[str]()
    while waiting:
        for part in walk(waiting.pop()):
            if (isinstance(part, ast.Call) and last_name(part) in LISTS_NAMES) or (
                isinstance(part, ast.Attribute) and part.attr == ATTRIBUTES
            ):
                return True
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                bindings = (scope.find(part.id) or (scope, []))[1]
                waiting += [binding.value for binding in bindings if binding.value is not None]
    return False


def pattern_of(node: ast.expr) -> str:
    """Return what a text that is put together can be, as a regular expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return pattern_of(node.left) + pattern_of(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        return ANY.join(re.escape(part) for part in DIRECTIVE.split(str(node.left.value)))
    return ANY


def _texts(analysis: Analysis) -> set[str]:
    nodes = (node for scope in analysis.module_scopes.values() for node in walk(scope.node))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def listed_members(analysis: Analysis, node: ast.expr | None, scope: Scope, path: tuple[int, ...]) -> Values | None:
    """Return what an iteration over the names of a module gives at `path`, of what its tests let through.

    None where it goes through something else.
    """
    holder = _listed(node, path) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or holder is None:
        return None
    modules = frozenset(value for value in analysis.evaluate(holder, scope) if isinstance(value, LocalModule))
    if not modules:
        return None
    members = _all_members(analysis, modules)
    if any(last_name(part) == "isclass" for part in node.args[1:]):
        members = frozenset(value for value in members if isinstance(value, LocalClass))
    tests, key = list(_tests(node, scope)), _key_of(node, scope)
    return frozenset(
        value
        for value in members
        if not (isinstance(value, LocalClass) and _is_abstract(analysis, value.scope))
        and all(_can_pass(analysis, value, test, scope, key) for test in tests)
    )


def _listed(node: ast.Call, path: tuple[int, ...]) -> ast.expr | None:
    """Return the object of which a call lists what it has: `models` of models.__dict__.items(), getmembers(models)."""
    if last_name(node) == LISTS_MEMBERS and node.args:
        return node.args[0] if path == (1,) else None
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method not in LISTS_OBJECTS or path != ((1,) if method == "items" else ()):
        return None
    return _holder_of(node.func.value)  # type: ignore[attr-defined]


def _tests(node: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield what is true of that which the loop around an iteration chooses."""
    loop = scope.source.parents.get(node)
    if isinstance(loop, ast.comprehension):
        yield from (part for test in loop.ifs for part in _implied(test, True))
    for part in walk(loop) if isinstance(loop, ast.For) else ():
        if isinstance(part, (ast.If, ast.IfExp)):
            is_left_out = isinstance(part, ast.If) and isinstance(part.body[-1], ast.Continue)
            yield from _implied(part.test, not is_left_out)


def _implied(test: ast.expr, value: bool) -> Iterator[ast.expr]:
    """Yield the parts of a test that are true where it has a value."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _implied(test.operand, not value)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if value else ast.Or):
        yield from (inner for part in test.values for inner in _implied(part, value))
    elif value:
        yield test


def _key_of(node: ast.Call, scope: Scope) -> str | None:
    """Return the variable that a loop sets to the name of what it goes through: key of `for key, kind in ...`."""
    target = getattr(scope.source.parents.get(node), "target", None)
    return getattr(target.elts[0], "id", None) if isinstance(target, ast.Tuple) else None


def _can_pass(analysis: Analysis, value: Value, test: ast.expr, scope: Scope, key: str | None) -> bool:
    if isinstance(test, ast.Call) and last_name(test) in TESTS_OF_CLASSES:
        bases = analysis.evaluate(test.args[1], scope) if len(test.args) > 1 else frozenset()
        wanted = {base.scope for base in bases if isinstance(base, LocalClass)}
        if not isinstance(value, LocalClass):
            return False
        return not wanted or not wanted.isdisjoint(analysis.classes.mro(value.scope))
    return not isinstance(test, ast.Compare) or _can_be_named(value, test, scope, key)


def _can_be_named(value: Value, test: ast.Compare, scope: Scope, key: str | None) -> bool:
    """Return whether a comparison of a name with a text that is put together can hold: `name == text + "Model"`."""
    sides = [without_methods(side, SAME_TEXT) for side in (test.left, *test.comparators)]
    others = [side for side in sides if getattr(side, "attr", "") != "__name__" and getattr(side, "id", "") != key]
    is_of_name = len(others) == 1 and len(sides) == 2 and isinstance(test.ops[0], ast.Eq)
    if not is_of_name or not isinstance(value, LocalClass):
        return True
    name = getattr(value.scope.node, "name", "")
    return re.fullmatch(pattern_of(_written(others[0], scope)), name, re.IGNORECASE) is not None


def _written(node: ast.expr, scope: Scope) -> ast.expr:
    """Return the text that a variable is set to once, whatever its case is made."""
    seen: set[str] = set()
    while True:
        node = without_methods(node, SAME_TEXT)
        if not isinstance(node, ast.Name) or node.id in seen:
            return node
        seen.add(node.id)
        owner, _ = scope.find(node.id) or (scope, [])
        value = owner.only_value(node.id)
        if value is None:
            return node
        node = value


def _is_abstract(analysis: Analysis, kind: Scope) -> bool:
    """Return whether a class cannot be made: a method of it is abstract."""
    names = {name for base in analysis.classes.mro(kind) for name in base.bindings}
    methods = (analysis.classes.method(kind, name) for name in names)
    marks = (mark for method in methods if method for mark in getattr(method.node, "decorator_list", []))
    return any(getattr(mark, "attr", getattr(mark, "id", "")) == "abstractmethod" for mark in marks)
