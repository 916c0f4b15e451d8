"""Classes and functions that a program finds among all names of a module: `for name, kind in vars(models).items()`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..calls import last_name
from ..nodes import walk
from ..python_api import ATTRIBUTES, LISTS_OBJECTS, VARS
from ..scopes import Scope
from .attribute_names import members_by_text, pattern_of
from .kinds import LocalClass, LocalModule, Value, Values

if TYPE_CHECKING:
    from .inference import Analysis

LISTS_MEMBERS = "getmembers"  # of inspect
TESTS_OF_CLASSES = frozenset({"issubclass", "isclass"})
SAME_TEXT = frozenset({"lower", "upper", "casefold", "strip", "title", "capitalize"})
ALL = ast.Constant(None)  # in place of a name


def listed_members(analysis: Analysis, node: ast.expr | None, scope: Scope, path: tuple[int, ...]) -> Values | None:
    """Return what an iteration over the names of a module gives at `path`, of what its tests let through.

    None where it goes through something else.
    """
    holder = _holder(node, path) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or holder is None:
        return None
    modules = frozenset(value for value in analysis.evaluate(holder, scope) if isinstance(value, LocalModule))
    if not modules:
        return None
    tests = list(_tests(node, scope))
    members = members_by_text(analysis, modules, ALL)
    return frozenset(value for value in members if _is_let(analysis, value, tests, scope))


def _holder(node: ast.Call, path: tuple[int, ...]) -> ast.expr | None:
    """Return the object of which a call lists what it has: `models` of models.__dict__.items(), getmembers(models)."""
    if last_name(node) == LISTS_MEMBERS and node.args:
        return node.args[0] if path == (1,) else None
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method not in LISTS_OBJECTS or path != ((1,) if method == "items" else ()):
        return None
    table = node.func.value  # type: ignore[attr-defined]
    if isinstance(table, ast.Attribute) and table.attr == ATTRIBUTES:
        return table.value
    is_vars = isinstance(table, ast.Call) and last_name(table) == VARS and len(table.args) == 1
    return table.args[0] if is_vars else None


def _tests(node: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield the calls and comparisons by which the loop around an iteration chooses."""
    loop = scope.source.parents.get(node)
    whole = scope.source.parents.get(loop) if isinstance(loop, ast.comprehension) else loop
    for part in walk(whole) if isinstance(loop, (ast.For, ast.comprehension)) and whole is not None else ():
        if isinstance(part, ast.Compare) or (isinstance(part, ast.Call) and last_name(part) in TESTS_OF_CLASSES):
            yield part
    if any(last_name(part) == "isclass" for part in node.args[1:] if isinstance(part, (ast.Name, ast.Attribute))):
        yield ast.Call(ast.Name("isclass", ast.Load()), [], [])


def _is_let(analysis: Analysis, value: Value, tests: list[ast.expr], scope: Scope) -> bool:
    for test in tests:
        if isinstance(test, ast.Call):
            bases = analysis.evaluate(test.args[1], scope) if len(test.args) > 1 else frozenset()
            wanted = {base.scope for base in bases if isinstance(base, LocalClass)}
            if not isinstance(value, LocalClass) or (wanted and wanted.isdisjoint(analysis.classes.mro(value.scope))):
                return False
        elif isinstance(test, ast.Compare) and not _can_be_named(value, test, scope):
            return False
    return not (isinstance(value, LocalClass) and _is_abstract(analysis, value.scope))


def _can_be_named(value: Value, test: ast.Compare, scope: Scope) -> bool:
    """Return whether a comparison of a name with a text that is put together can hold: `name == text + "Model"`."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq) or not isinstance(value, LocalClass):
        return True
    name = getattr(value.scope.node, "name", "")
    patterns = (pattern_of(_written(side, scope)) for side in (test.left, *test.comparators))
    return all(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in patterns)


def _written(node: ast.expr, scope: Scope) -> ast.expr:
    """Return the text that a variable is set to once, whatever its case is made."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_TEXT:
        node = node.func.value
    bindings = (scope.find(node.id) or (scope, []))[1] if isinstance(node, ast.Name) else []
    is_one = len(bindings) == 1 and bindings[0].kind == "value" and not bindings[0].path
    return _written(bindings[0].value, scope) if is_one and bindings[0].value is not None else node


def _is_abstract(analysis: Analysis, kind: Scope) -> bool:
    """Return whether a class cannot be made: a method of it is abstract."""
    names = {name for base in analysis.classes.mro(kind) for name in base.bindings}
    methods = (analysis.classes.method(kind, name) for name in names)
    marks = (mark for method in methods if method for mark in getattr(method.node, "decorator_list", []))
    return any(getattr(mark, "attr", getattr(mark, "id", "")) == "abstractmethod" for mark in marks)
