"""The nodes of a syntax tree. Trees are never changed once they are read, so each node keeps its parts.

`ast.walk` looks up the fields of every node each time, and rules walk the same functions some hundred times.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return what `ast.iter_child_nodes` yields, without the contexts of names: all of these are one object."""
    parts: tuple[ast.AST, ...] | None = getattr(node, "own_parts", None)
    if parts is None:
        parts = node.own_parts = tuple(_parts_of(node))  # type: ignore[attr-defined]
    return parts


def _parts_of(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes in it, in the order of `ast.walk`."""
    waiting = deque((node,))
    while waiting:
        node = waiting.popleft()
        waiting.extend(children(node))
        yield node
