"""Uses of names, read and written, in the order in which Python evaluates them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..nodes import children, walk
from ..scopes import FUNCTIONS


def name_uses(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """Yield the names in nodes as they are evaluated: an assignment's value before its targets, branches in turn.

    The name of `x += 1` comes twice, read (`Load`) and written. What is inside functions and classes is left out.
    """
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from name_uses([node.value] if node.value is not None else [])
            yield from name_uses(targets)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                yield ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            yield from name_uses([node.value, node.target])
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield from name_uses([node.iter, node.target, *node.body, *node.orelse])
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            yield from name_uses([*node.generators, node.elt])
        elif isinstance(node, ast.DictComp):
            yield from name_uses([*node.generators, node.key, node.value])
        elif isinstance(node, ast.comprehension):
            yield from name_uses([node.iter, node.target, *node.ifs])
        elif isinstance(node, FUNCTIONS):
            yield from _free_names(node)
        elif not isinstance(node, ast.ClassDef):
            yield from name_uses(children(node))


def stored_names(nodes: Iterable[ast.AST]) -> set[str]:
    return {name.id for name in name_uses(nodes) if isinstance(name.ctx, (ast.Store, ast.Del))}


def loaded_names(nodes: Iterable[ast.AST]) -> set[str]:
    return {name.id for name in name_uses(nodes) if isinstance(name.ctx, ast.Load)}


def _free_names(function: ast.AST) -> Iterator[ast.Name]:
    """Yield what a function reads from outside: it may be called where it is defined."""
    own = {node.arg for node in walk(function) if isinstance(node, ast.arg)}
    for node in walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            yield node
