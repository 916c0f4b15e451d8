"""Other ways to import the same things."""

from __future__ import annotations

import ast

from .syntax import bound_in

LIBRARIES = ("torch", "torchvision", "numpy", "os", "random", "argparse", "math", "time", "json")


class _Replaced(ast.NodeTransformer):
    """Put dotted names in the place of names."""

    def __init__(self, dotted: dict[str, str]) -> None:
        self.dotted = dotted

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.dotted and isinstance(node.ctx, ast.Load):
            return ast.parse(self.dotted[node.id], mode="eval").body
        return node


def _is_free(tree: ast.Module, word: str) -> bool:
    """Return whether nothing but one import binds a name in a file."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    count = sum((alias.asname or alias.name) == word for node in imports for alias in node.names)
    rest = ast.Module(body=[node for node in tree.body if node not in imports], type_ignores=[])
    return count == 1 and word not in bound_in(rest)


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]


def import_the_module(trees: dict[str, ast.Module]) -> None:
    """`from torch.utils.data import DataLoader` becomes `import torch.utils.data`, and each use is in full."""
    for tree in trees.values():
        for node in _top_level(tree):
            if not isinstance(node, ast.ImportFrom) or node.level or (node.module or "").split(".")[0] != "torch":
                continue
            names = [alias for alias in node.names if alias.name != "*"]
            if len(names) != len(node.names) or not all(_is_free(tree, a.asname or a.name) for a in names):
                continue
            _Replaced({a.asname or a.name: f"{node.module}.{a.name}" for a in names}).visit(tree)
            submodules = [a.name for a in names if a.name in ("nn", "optim", "utils") or a.name == "functional"]
            modules = {f"{node.module}.{word}" for word in submodules} or {node.module}
            tree.body[tree.body.index(node)] = ast.Import(
                names=[ast.alias(name=str(m)) for m in sorted(map(str, modules))]
            )


def write_names_in_full(trees: dict[str, ast.Module]) -> None:
    """`import torch.nn as nn` becomes `import torch.nn`, and each `nn` becomes `torch.nn`."""
    for tree in trees.values():
        for node in _top_level(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname and alias.name.split(".")[0] in LIBRARIES and _is_free(tree, alias.asname):
                        _Replaced({alias.asname: alias.name}).visit(tree)
                        alias.asname = None


def import_submodules_from(trees: dict[str, ast.Module]) -> None:
    """`import torch.nn as nn` becomes `from torch import nn`."""
    for tree in trees.values():
        for node in _top_level(tree):
            if isinstance(node, ast.Import) and len(node.names) == 1 and node.names[0].asname:
                package, _, word = node.names[0].name.rpartition(".")
                if package:
                    alias = ast.alias(name=word, asname=node.names[0].asname)
                    alias.asname = None if alias.asname == word else alias.asname
                    tree.body[tree.body.index(node)] = ast.ImportFrom(module=package, names=[alias], level=0)


def import_under_other_names(trees: dict[str, ast.Module]) -> None:
    """`import torch` becomes `import torch as torch_library`, `from a import B` `from a import B as B_library`."""
    for tree in trees.values():
        dotted = {  # `import torch.nn` binds `torch`
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if "." in alias.name and not alias.asname
        }
        for node in _top_level(tree):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] not in LIBRARIES):
                continue
            for alias in node.names:  # type: ignore[attr-defined]
                word = alias.asname or alias.name
                top = alias.name.split(".")[0] in LIBRARIES or isinstance(node, ast.ImportFrom)
                if top and word != "*" and "." not in word and word not in dotted and _is_free(tree, word):
                    alias.asname = f"{word}_library"
                    _Replaced({word: alias.asname}).visit(tree)


def import_in_try(trees: dict[str, ast.Module]) -> None:
    """Put each import of torch into `try ... except ImportError`."""
    for tree in trees.values():
        for place, node in enumerate(tree.body):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(word.split(".")[0] in ("torch", "torchvision") for word in names):
                handler = ast.ExceptHandler(type=ast.Name(id="ImportError", ctx=ast.Load()), body=[ast.Raise()])
                tree.body[place] = ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[])


REWRITES = [
    import_the_module,
    write_names_in_full,
    import_submodules_from,
    import_under_other_names,
    import_in_try,
]
