"""Other names for variables, parameters, functions and classes."""

from __future__ import annotations

import ast
from collections import Counter

from .syntax import SCOPES, bound_in, functions, strings_in


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.names.get(node.arg, node.arg)
        return node


def rename_local_variables(trees: dict[str, ast.Module]) -> None:
    for tree in trees.values():
        for function in functions(tree):
            if any(isinstance(node, SCOPES) for node in ast.walk(function) if node is not function):
                continue
            shared = {word for node in ast.walk(function) if isinstance(node, ast.Global) for word in node.names}
            parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
            local = {
                node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            local |= {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
            imported = {
                alias.asname or alias.name
                for node in ast.walk(function)
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in node.names
            }
            names = {word: f"{word}_value" for word in local - shared - parameters - imported}
            for statement in function.body:
                _Renamed(names).visit(statement)
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name:
                    node.name = names.get(node.name, node.name)


def rename_parameters(trees: dict[str, ast.Module]) -> None:
    """Rename the parameters that no call gives by name."""
    taken = strings_in(trees)
    for tree in trees.values():
        for function in functions(tree):
            if function.args.kwarg or any(isinstance(n, SCOPES) for n in ast.walk(function) if n is not function):
                continue
            names = {
                node.arg: f"given_{node.arg}"
                for node in [*function.args.posonlyargs, *function.args.args]
                if node.arg not in taken | {"self", "cls"}
            }
            for child in [function.args, *function.body]:
                _Renamed(names).visit(child)


def rename_functions(trees: dict[str, ast.Module]) -> None:
    _rename_definitions(trees, ast.FunctionDef, lambda word: f"do_{word}")


def rename_classes(trees: dict[str, ast.Module]) -> None:
    _rename_definitions(trees, ast.ClassDef, lambda word: f"{word}Type")


def _rename_definitions(trees: dict[str, ast.Module], kind: type, new_name) -> None:  # type: ignore[no-untyped-def]
    defined = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, kind))  # type: ignore[attr-defined]
    taken = strings_in(trees) | {"main"}
    for word in [word for word, count in defined.items() if count == 1 and word not in taken]:
        if sum(word in bound_in(tree) for tree in trees.values()) > 1 + sum(map(_imports(word), trees.values())):
            continue
        if any(_rebinds(tree, word) for tree in trees.values()):
            continue
        for tree in trees.values():
            _Renamed({word: new_name(word)}).visit(tree)
            for node in ast.walk(tree):
                if isinstance(node, kind) and node.name == word:  # type: ignore[attr-defined]
                    node.name = new_name(word)  # type: ignore[attr-defined]
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        alias.name = new_name(word) if alias.name == word else alias.name


def _imports(word: str):  # type: ignore[no-untyped-def]
    def imports(tree: ast.Module) -> bool:
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return any(alias.name == word and not alias.asname for node in nodes for alias in node.names)

    return imports


def _rebinds(tree: ast.Module, word: str) -> bool:
    """Return whether the name means something else, too, in a file."""
    return any(
        (isinstance(node, ast.Name) and node.id == word and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.arg) and node.arg == word)
        for node in ast.walk(tree)
    )


REWRITES = [rename_local_variables, rename_parameters, rename_functions, rename_classes]
