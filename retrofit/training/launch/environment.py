"""Variables of the environment that a script sets itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display
from retrofit.training.torch_api.launch import ENVIRON, SETS_VARIABLE

Setting = tuple[ast.stmt, str, ast.expr, Scope]


def assignments_to_environ(analysis: Analysis) -> list[Setting]:
    """Return what the code that runs sets in the environment, however it says so: statement, name, value and scope."""
    return analysis.fact("assignments to environ", lambda: list(_assignments(analysis)))


def _assignments(analysis: Analysis) -> Iterator[Setting]:
    assignments = reached_nodes(analysis).of(ast.Assign, ast.AugAssign)
    for node, scope in [*assignments, *calls_named(analysis, SETS_VARIABLE | {f"{ENVIRON}.update"})]:
        for key, value in _set_by(analysis, node, scope):
            for name in _texts(analysis, key, scope) if key is not None else ():
                yield scope.source.statement(node), name, value, scope


def _set_by(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield the pairs of name and value that `os.environ[name] = value`, an update or a setter gives."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and ENVIRON in analysis.named(target.value, scope):
                yield target.slice, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Dict):  # os.environ |= {...}
        if ENVIRON in analysis.named(node.target, scope):
            yield from zip(node.value.keys, node.value.values)
    elif isinstance(node, ast.Call):
        names = analysis.called(node, scope)
        if names & SETS_VARIABLE and len(node.args) == 2:
            yield node.args[0], node.args[1]
        elif f"{ENVIRON}.update" in names:
            yield from ((ast.Constant(keyword.arg), keyword.value) for keyword in node.keywords if keyword.arg)
            for given in node.args:
                if isinstance(given, ast.Dict):
                    yield from zip(given.keys, given.values)
                elif isinstance(given, ast.Call) and "dict" in analysis.called(given, scope):
                    yield from ((ast.Constant(k.arg), k.value) for k in given.keywords if k.arg)


def _texts(analysis: Analysis, key: ast.expr, scope: Scope) -> set[str]:
    if isinstance(key, ast.Constant):
        return {str(key.value)}
    nodes = [value.node for value in analysis.evaluate(key, scope) if isinstance(value, Display)]
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
