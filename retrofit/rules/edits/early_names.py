"""Names that are made before the processes join, for the default of an option too: they are handed out after that."""

from __future__ import annotations

import ast
from collections.abc import Collection

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.training import Project
from retrofit.training.torch_api.launch import PARSES


def is_early(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement of the script runs before the group is there."""
    if project.distribution.joins:
        return False
    source, joining, _ = edit_after_setup(project, None)
    where = project.analysis.scope_at(source, joining)
    if scope is where:
        return place_of(statement) < place_of(joining)
    return bool(_option(statement)) or (scope.parent is None and where.parent is not None)


def broadcast_edits(project: Project, statement: ast.stmt, scope: Scope) -> list[Edit]:
    """Return edits that give all processes what an early statement names, and what that names; none if unclear."""
    source, joining, _ = edit_after_setup(project, None)
    where = project.analysis.scope_at(source, joining)
    space = _namespace(project, joining, where)
    names: set[str] = set()
    lines: list[str] = []
    for node in own_nodes(scope.node):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) or place_of(node) < place_of(
            statement
        ):
            continue
        if (scope is where and place_of(node) >= place_of(joining)) or not (
            node is statement or loaded_names([node]) & names
        ):
            continue
        if _option(node) and space:
            lines.append(f"{space}.{_option(node)} = rd.collectives.broadcast_object({space}.{_option(node)})")
        elif isinstance(node, ast.Assign) and scope.parent is where.parent and _is_text(node.value):
            names |= stored_names([node])
            lines += [f"{name} = rd.collectives.broadcast_object({name})" for name in sorted(stored_names([node]))] * (
                scope is where
            )
        else:
            return []
    return [edit_after_setup(project, line)[2] for line in dict.fromkeys(lines)]


def is_broadcast(project: Project, statement: ast.stmt, scope: Scope, agreeing: Collection[str]) -> bool:
    """Return whether what a statement names, as a variable or for an option, is given to a call of `agreeing` later."""
    names, options = stored_names([statement]), {_option(statement)}
    for node in own_nodes(scope.node).of(ast.stmt):
        if not hasattr(node, "body") and loaded_names([node]) & names:
            names |= stored_names([node])
            options.add(_option(node))
    given = {
        argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
        for node, _ in calls_named(project.analysis, set(agreeing))
        for argument in node.args
    }
    return bool(((names | options) - {""}) & given)


def _is_text(value: ast.expr) -> bool:
    """Return whether this puts a name together, rather than to make something of that name."""
    functions = [ast.unparse(part.func) for part in walk(value) if isinstance(part, ast.Call)]
    return not any(name.rpartition(".")[2][:1].isupper() or name.rpartition(".")[2] == "open" for name in functions)


def _namespace(project: Project, joining: ast.stmt, scope: Scope) -> str:
    """Return the variable that holds the parsed options, where the processes join after they are parsed."""
    if not isinstance(joining, ast.Assign) or not isinstance(joining.targets[0], ast.Name):
        return ""
    return joining.targets[0].id if project.analysis.named(joining.value, scope) & PARSES else ""


def _option(statement: ast.stmt) -> str:
    """Return the attribute that `parser.add_argument("--save-dir", default=...)` gives the result of parsing."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return ""
    given = argument_for(call, [], "dest")
    parts = [part.value for part in ([given] if given is not None else call.args) if isinstance(part, ast.Constant)]
    texts = [part for part in parts if isinstance(part, str)]
    long = [text for text in texts if text.startswith("--")] or texts
    return long[0].lstrip("-").replace("-", "_") if long else ""
