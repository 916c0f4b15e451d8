"""Questions about a syntax tree that several rewrites ask."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_in(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def bound_in(node: ast.AST) -> set[str]:
    """Return the names that a node binds anywhere in it, by an assignment, an import, a definition or a parameter."""
    names = {
        child.id for child in ast.walk(node) if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load)
    }
    names |= {child.name for child in ast.walk(node) if isinstance(child, (*Function, ast.ClassDef))}
    names |= {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}
    names |= {child.name for child in ast.walk(node) if isinstance(child, ast.ExceptHandler) and child.name}
    for child in ast.walk(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in child.names}
    return names


def strings_in(trees: dict[str, ast.Module]) -> set[str]:
    """Return the words of all texts, names of files and of attributes: what may be looked up by its name."""
    words: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                words.add(node.arg)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                words |= set(node.names)
    return words


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield each list of statements of a tree."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def change_blocks(trees: dict[str, ast.Module], change: Callable[[list[ast.stmt]], list[ast.stmt]]) -> None:
    """Replace each list of statements by what `change` makes of it."""
    for tree in trees.values():
        for block in list(blocks(tree)):
            block[:] = change(block)


def change_statements(trees: dict[str, ast.Module], change: Callable[[ast.stmt], list[ast.stmt] | None]) -> None:
    """Replace each statement by the statements that `change` makes of it; None leaves it."""

    def block_of(block: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in block for new in (change(statement) or [statement])]

    change_blocks(trees, block_of)


def name(text: str) -> ast.Name:
    return ast.Name(id=text, ctx=ast.Load())


def target(text: str) -> ast.Name:
    return ast.Name(id=text, ctx=ast.Store())


def assign(text: str, value: ast.expr) -> ast.Assign:
    return ast.Assign(targets=[target(text)], value=value)


def assigned_name(statement: ast.stmt) -> str | None:
    """Return the name of `name = value`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def owns(node: ast.AST, kinds: tuple[type, ...]) -> bool:
    """Return whether a statement holds such a node outside the functions and loops in it."""
    if isinstance(node, kinds):
        return True
    inner = (*SCOPES, ast.For, ast.While)
    return any(owns(child, kinds) for child in ast.iter_child_nodes(node) if not isinstance(child, inner))


def insert_after_imports(tree: ast.Module, statements: list[ast.stmt]) -> None:
    places = [n for n, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom))]
    first = next((n for n, node in enumerate(tree.body) if isinstance(node, SCOPES)), len(tree.body))
    before = [n for n in places if n < first]
    place = before[-1] + 1 if before else min(1, len(tree.body)) if tree.body and is_docstring(tree.body[0]) else 0
    tree.body[place:place] = statements
