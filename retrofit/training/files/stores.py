"""Files that stay open while they are filled: databases, arrays on a disk, videos, pages, tables of several sheets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.files import DATABASES, STORES

CHANGES = re.compile(r"\s*(create|insert|update|delete|replace|drop|alter)\b", re.IGNORECASE)
CREATES = re.compile(r"\s*create\s+table\b", re.IGNORECASE)
CREATES_ALL = "create_all"  # of the tables that classes describe
TAKEN = frozenset({"to_sql", CREATES_ALL})  # methods that are given the database
COMMITS = TAKEN | {"commit", "executemany", "begin"}
USES = COMMITS | {"execute", "executescript"}
STATEMENTS = frozenset({"insert", "update", "delete"})  # functions and methods that give one


def opens_store(analysis: Analysis, name: str, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call opens a file of this kind to write to it."""
    if name in DATABASES:
        texts, names = _asked(analysis, call, scope)
        return bool(names & (COMMITS | STATEMENTS)) or any(map(CHANGES.match, texts))
    if name not in STORES:
        return False
    parameters, modes = STORES[name]
    given = argument_for(call, parameters, parameters[-1]) if modes else None
    mode = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
    return not modes or mode[:1] in set(modes) or mode == "r+"


def creates_tables(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a database that is new has the tables that the script asks for."""
    texts, names = _asked(analysis, call, scope)
    return CREATES_ALL in names or any(map(CREATES.match, texts))


def _asked(analysis: Analysis, call: ast.Call, scope: Scope) -> tuple[list[str], set[str]]:
    """Return the statements of SQL that a database gets, and the names of what is called for it.

    Where its uses cannot be followed, all texts of the file count as statements.
    """
    uses_of = analysis.fact("uses of databases", lambda: _uses_of_databases(analysis))
    if call not in uses_of or scope.source in uses_of:
        nodes: list[ast.AST] = list(scope.source.nodes)
        names = {last_name(node) for node in nodes if _is_use(node)}
    else:
        given = [(use.args[0], where) for use, where in uses_of[call] if use.args]
        nodes = [origin.node for part, where in given for origin in computed_from(analysis, part, where)]
        names = {last_name(use) for use, _ in uses_of[call]}
        names |= {last_name(node) for node in nodes if isinstance(node, ast.Call)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return texts, names


def _uses_of_databases(analysis: Analysis) -> dict[ast.AST | Source, list[tuple[ast.Call, Scope]]]:
    """Return the calls that run statements, by the call that opens their database; by the file where none is found."""
    opening = {call for call, _ in calls_named(analysis, DATABASES.keys())}
    found: dict[ast.AST | Source, list[tuple[ast.Call, Scope]]] = {}
    for node, scope in reached_nodes(analysis) if opening else ():
        if _is_use(node):
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            given = [*node.args, *(keyword.value for keyword in node.keywords)]  # frame.to_sql("runs", database)
            holders = given if node.func.attr in TAKEN else [node.func.value]
            origins = (origin.node for part in holders for origin in computed_from(analysis, part, scope))
            holder: ast.AST | Source
            for holder in opening.intersection(origins) or [scope.source]:
                found.setdefault(holder, []).append((node, scope))
    return found


def _is_use(node: ast.AST) -> bool:
    """Return whether a call runs a statement, or begins to write: `env.begin(write=True)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in USES:
        return False
    return node.func.attr != "begin" or any(keyword.arg == "write" for keyword in node.keywords)


def is_only_filled(call: ast.Call, scope: Scope) -> bool:
    """Return whether nothing is read from the object that a call opens, or from what its methods give.

    An object that takes every call and does nothing can then be in its place.
    """
    held = holder_of(scope, call)
    waiting, seen = [held], set()
    while waiting:
        name = waiting.pop()
        if name is None:
            return False
        if name in seen:
            continue
        seen.add(name)
        for use in uses_of_name(scope, name):
            is_filled, more = _fills(scope, use)
            if not is_filled:
                return False
            waiting += more
    return True


def holder_of(scope: Scope, node: ast.expr) -> str | None:
    """Return the name or the attribute of an object that a value is kept in, "" where it is not kept at all."""
    parent = scope.source.parents[node]
    if isinstance(parent, ast.Expr):
        return ""
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target: ast.expr | None = parent.targets[0]
    elif isinstance(parent, ast.withitem):
        target = parent.optional_vars
    else:
        return None
    is_plain = isinstance(target, ast.Name) or ast.unparse(target or node).startswith("self.")
    return ast.unparse(target) if target is not None and is_plain else None


def uses_of_name(scope: Scope, name: str) -> Iterator[ast.expr]:
    """Yield where a name is read, in the function that sets it and in those in it, or in the class of an attribute."""
    owner = scope.enclosing_class() if name.startswith("self.") else scope
    for node in walk((owner or scope).node) if name else ():
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        if is_read and isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == name:
            yield node


def _fills(scope: Scope, use: ast.expr) -> tuple[bool, list[str | None]]:
    """Return whether a use reads nothing from an object, and the names that get what its methods give."""
    parents = scope.source.parents
    parent = parents[use]
    if isinstance(parent, ast.Subscript) and parent.value is use:
        if isinstance(parent.ctx, ast.Load):
            return _fills(scope, parent)
        return not isinstance(parents[parent], ast.AugAssign), []
    while isinstance(parent, ast.Attribute) and isinstance(parents[parent], ast.Attribute):  # kept.attrs.put(...)
        parent = parents[parent]
    if isinstance(parent, ast.Attribute) and isinstance(parents[parent], ast.Call):
        call = parents[parent]
        held = holder_of(scope, call) if call.func is parent else None  # type: ignore[attr-defined,arg-type]
        return held is not None, [held] if held else []
    if isinstance(parent, (ast.Call, ast.keyword)):  # `table.to_excel(writer)`
        call = parent if isinstance(parent, ast.Call) else parents[parent]
        return isinstance(parents[call], ast.Expr) and not _is_of_script(call, scope), []
    return isinstance(parent, (ast.withitem, ast.Delete, ast.Compare)) or _is_asked(parent, use), []


def _is_of_script(call: ast.AST, scope: Scope) -> bool:
    """Return whether a call runs a function of this file."""
    name = getattr(getattr(call, "func", None), "id", "")
    return any(isinstance(node, FUNCTIONS) and getattr(node, "name", "") == name for node in scope.source.nodes)


def _is_asked(parent: ast.AST, use: ast.expr) -> bool:
    """Return whether an object is asked for only: `if video:`, `if not video:`."""
    return isinstance(parent, ast.UnaryOp) or (isinstance(parent, ast.If) and parent.test is use)
