"""Names that a process makes by its own clock or its own dice: `time.strftime(...)`, `uuid.uuid4()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.files import DATES, LOADS_STATE, UNIQUE_NAMES

if TYPE_CHECKING:
    from .. import Project


def makes_name(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call makes a text of the time, or draws a unique one, or its result is put into a text."""
    names = analysis.called(call, scope)
    if names & UNIQUE_NAMES:
        return True
    if not names & DATES:
        return False
    around = list(expressions_around(call, scope))
    made_of = {name for part in around if isinstance(part, ast.Call) for name in analysis.called(part, scope)}
    is_duration = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) for part in around)
    return any(_is_text(part) for part in around) and not is_duration and not made_of & UNIQUE_NAMES


def expressions_around(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """Yield the expressions around a node, of the same statement."""
    return takewhile(lambda outer: not isinstance(outer, ast.stmt), scope.source.ancestors(node))


def read_back(analysis: Analysis) -> set[ast.AST]:
    """Return what the paths are made of from which a state is loaded: rank 0 saves it, and all have to find it."""

    def find() -> set[ast.AST]:
        calls = calls_named(analysis, LOADS_STATE)
        paths = [(call.args[0], scope) for call, scope in calls if call.args]
        return {origin.node for path, scope in paths for origin in computed_from(analysis, path, scope)}

    return analysis.fact("paths that are read back", find)


def named_by_import(project: Project) -> set[ast.AST]:
    """Return the calls by which modules of the project name, while they are imported, what all processes read later."""
    analysis = project.analysis

    def find() -> set[ast.AST]:
        named = calls_named(analysis, DATES | UNIQUE_NAMES)
        return {
            call
            for call, scope in named
            if call in read_back(analysis) and makes_name(analysis, call, scope) and is_imported(project, scope)
        }

    return analysis.fact("names made by imports", find)


def is_imported(project: Project, scope: Scope) -> bool:
    """Return whether a scope is run while a module is imported: at its top, in a class, in a function called there."""
    waiting, seen = [scope], set[Scope]()
    while waiting:
        where = waiting.pop()
        if where in seen:
            continue
        seen.add(where)
        if isinstance(where.node, FUNCTIONS):
            waiting += [site.scope for site in project.analysis.callers(where.node)]
        elif where.parent is None:
            if where.source is not project.entry:
                return True
        else:
            waiting.append(where.parent)
    return False


def _is_text(node: ast.AST) -> bool:
    """Return whether an expression is a text made of other values: f"{x}", "%d" % x, "{}".format(x), str(x)."""
    if isinstance(node, ast.Call):
        method = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "format" else None
        return last_name(node) == "str" or (isinstance(method, ast.Constant) and isinstance(method.value, str))
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    return isinstance(node, ast.JoinedStr)
