"""Names of classes by which code only asks what an object is: isinstance(layer, KINDS), type(layer) is Kind."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..files.source import Source
from .inference import Analysis

ASKS = frozenset({"isinstance", "issubclass"})


def kinds_asked_for(analysis: Analysis) -> set[ast.AST]:
    """Return the names that make no object: those of classes in tests, and in tuples that only tests read."""

    def find() -> set[ast.AST]:
        sources = analysis.modules.sources.values()
        names = [(source, n) for source in sources for n in source.nodes if isinstance(n, (ast.Name, ast.Attribute))]
        read = [(source, node) for source, node in names if isinstance(node.ctx, ast.Load)]
        asked = {node for source, node in read if _is_asked_for(source, node)}
        others = {node.id if isinstance(node, ast.Name) else node.attr for _, node in read if node not in asked}
        others |= {n.name for source in sources for n in source.nodes if isinstance(n, ast.alias) and n.asname}
        return asked | {node for source, node in read if _is_of_asked_tuple(source, node, others)}

    return analysis.fact("kinds asked for", find)


def _is_asked_for(source: Source, node: ast.expr) -> bool:
    inner, outer = _around_kinds(source, node)
    if isinstance(outer, ast.Call):
        return getattr(outer.func, "id", "") in ASKS and outer.args[1:2] == [inner]
    return isinstance(outer, ast.Compare) and inner in outer.comparators and _is_type(outer.left)


def _is_of_asked_tuple(source: Source, node: ast.expr, read_elsewhere: Collection[str]) -> bool:
    """Return whether this is an entry of `KINDS = (Linear, Conv)` where nothing but tests reads KINDS."""
    inner, outer = _around_kinds(source, node)
    if not isinstance(outer, ast.Assign) or inner is node or not isinstance(inner, (ast.Tuple, ast.List, ast.Set)):
        return False
    return all(isinstance(t, ast.Name) and t.id not in read_elsewhere for t in outer.targets)


def _around_kinds(source: Source, node: ast.expr) -> tuple[ast.AST, ast.AST]:
    """Return the outermost tuple or union of classes that has a name in it, or the name itself, and what is around."""
    inner: ast.AST = node
    for outer in source.ancestors(node):
        is_union = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.BitOr)
        if not is_union and not isinstance(outer, (ast.Tuple, ast.List, ast.Set)):
            return inner, outer
        inner = outer
    return inner, source.tree


def _is_type(node: ast.expr) -> bool:
    """Return whether this is the class of an object: type(x), x.__class__."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type" and len(node.args) == 1
