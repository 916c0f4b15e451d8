"""Facts about one read of a value: when it is evaluated, what its value hangs on, and what changes that."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import COMPREHENSIONS, children, walk
from retrofit.analysis.python_api import LISTS_OBJECTS
from retrofit.analysis.scopes import FUNCTIONS
from retrofit.training.torch_api.tensors import READS, SAME_TENSOR, SUMS_AND_MEANS

Expressions = Iterator[tuple[ast.AST, ast.AST]]


def _around(source: Source, node: ast.AST) -> Expressions:
    """Yield (outer, inner) for the expressions around a node up to its statement, from the inside."""
    inner = node
    for outer in source.ancestors(node):
        yield outer, inner
        if isinstance(outer, ast.stmt):
            return
        inner = outer


def is_always_evaluated(source: Source, node: ast.AST) -> bool:
    """Return whether a node is evaluated exactly once whenever its statement is."""
    return not any(_may_be_left_out(outer, inner) for outer, inner in _around(source, node))


def _may_be_left_out(outer: ast.AST, inner: ast.AST) -> bool:
    if isinstance(outer, ast.IfExp):
        return inner is not outer.test
    if isinstance(outer, ast.BoolOp):
        return inner is not outer.values[0]
    if isinstance(outer, ast.Compare):
        return inner in outer.comparators[1:]
    if isinstance(outer, ast.comprehension):
        return inner is not outer.iter
    if isinstance(outer, COMPREHENSIONS):
        return inner is not outer.generators[0]
    return isinstance(outer, (ast.While, ast.Lambda))


def binding_expression(source: Source, node: ast.expr) -> ast.expr | None:
    """Return the outermost comprehension around a node that gives one of its names a value: `v` in `[v for v in x]`.

    The node itself where none does; None where a function or `:=` in its statement does.
    """
    names, found = loaded(node), node
    for outer, _ in _around(source, node):
        if isinstance(outer, FUNCTIONS) and names & {part.arg for part in walk(outer) if isinstance(part, ast.arg)}:
            return None
        if isinstance(outer, COMPREHENSIONS):
            bound = {name for part in outer.generators for name in stored([part.target])}
            if names & bound:
                found, names = outer, loaded(outer)
    statement = source.statement(node)
    named = (part.target.id for part in walk(statement) if isinstance(part, ast.NamedExpr))
    return None if names & set(named) else found


def loaded(node: ast.AST) -> set[str]:
    """Return the names that an expression reads."""
    return {part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def is_plain(node: ast.expr) -> bool:
    """Return whether an expression only looks something up: `loss`, `outputs.loss`, `losses["total"]`."""
    parts = [part for part in walk(node) if isinstance(part, ast.expr)]
    return all(isinstance(part, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant)) for part in parts)


def only_computes(node: ast.expr) -> bool:
    """Return whether an expression does nothing but arithmetic with what it looks up: `(loss_a + loss_b) / 2`."""
    if isinstance(node, ast.BinOp):
        return only_computes(node.left) and only_computes(node.right)
    return only_computes(node.operand) if isinstance(node, ast.UnaryOp) else is_plain(node)


def changes(statements: Iterable[ast.stmt], value: ast.expr) -> bool:
    """Return whether statements can give a value's names another value, or change the object that is looked into."""
    names, looks_into = loaded(value), not isinstance(value, ast.Name)
    for statement in statements:
        for node in walk(statement):
            if names & stored([node]):
                return True
            if isinstance(node, ast.Call) and _changes_object(node, names, looks_into):
                return True
            is_part = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
            if looks_into and is_part and _root(node) in names:
                return True
    return False


def _changes_object(call: ast.Call, names: set[str], looks_into: bool) -> bool:
    """Return whether a call may change an object: `loss.div_(2)`; what is looked into, any method and function may."""
    if isinstance(call.func, ast.Attribute) and _root(call.func) in names:
        method = call.func.attr
        return method.endswith("_") and not method.endswith("__") if not looks_into else method not in READING
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    is_known = isinstance(call.func, ast.Name) and call.func.id in READING
    return looks_into and not is_known and any(isinstance(part, ast.Name) and part.id in names for part in given)


READING = SAME_TENSOR | READS | SUMS_AND_MEANS | LISTS_OBJECTS | {
    "detach", "backward", "keys", "get", "print", "str", "repr", "len", "format", "round", "int",
}  # fmt: skip


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that nodes give a value."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Starred)) and not isinstance(node.ctx, ast.Load):
            found |= stored(children(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            found.add(node.name or "")
    return found
