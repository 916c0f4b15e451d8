"""Names of classes by which code only asks what an object is: isinstance(layer, KINDS), type(layer) is Kind."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from .inference import Analysis

ASKS = frozenset({"isinstance", "issubclass"})
DISPLAYS = (ast.Tuple, ast.List, ast.Set)


def kinds_asked_for(analysis: Analysis) -> set[ast.AST]:
    """Return the names that make no object: those of classes in tests, and in tuples that only tests read."""

    def find() -> set[ast.AST]:
        sources = analysis.modules.sources.values()
        asked = {name for source in sources for test in source.nodes.of(ast.Call, ast.Compare) for name in _asked(test)}
        names = [node for source in sources for node in source.nodes.of(ast.Name, ast.Attribute)]
        read = (node for node in names if isinstance(node.ctx, ast.Load) and node not in asked)
        others = {node.id if isinstance(node, ast.Name) else node.attr for node in read}
        others |= {n.name for source in sources for n in source.nodes.of(ast.alias) if n.asname}
        assigned = [node for source in sources for node in source.nodes.of(ast.Assign)]
        tuples = (node for node in assigned if isinstance(node.value, DISPLAYS))
        return asked.union(*(_kinds_in(node.value) for node in tuples if _is_asked_of(node.targets, others)))

    return analysis.fact("kinds asked for", find)


def _asked(test: ast.Call | ast.Compare) -> Iterator[ast.expr]:
    """Yield the names of the classes that a test asks for."""
    if isinstance(test, ast.Call):
        kinds = test.args[1:2] if getattr(test.func, "id", "") in ASKS else []
    else:
        kinds = test.comparators if _is_type(test.left) else []
    for part in kinds:
        yield from _kinds_in(part)


def _is_asked_of(targets: list[ast.expr], read_elsewhere: Collection[str]) -> bool:
    """Return whether nothing but tests reads KINDS, of `KINDS = (Linear, Conv)`."""
    return all(isinstance(target, ast.Name) and target.id not in read_elsewhere for target in targets)


def _kinds_in(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the names in a tuple or a union of classes, or the name itself."""
    if isinstance(node, DISPLAYS):
        for part in node.elts:
            yield from _kinds_in(part)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from (*_kinds_in(node.left), *_kinds_in(node.right))
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield node


def _is_type(node: ast.expr) -> bool:
    """Return whether this is the class of an object: type(x), x.__class__."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type" and len(node.args) == 1
