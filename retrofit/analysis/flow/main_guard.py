"""`if __name__ == "__main__":`, and what is under it."""

from __future__ import annotations

import ast

from ..scopes import Scope
from ..values.inference import Analysis


def is_under_main_of_another(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether `node` is under `if __name__ == "__main__":` of a module that is only imported."""
    if scope.parent is not None or scope.source is analysis.modules.entry:
        return False
    return any(is_main_guard(outer) for outer in scope.source.ancestors(node))


def is_main_guard(node: ast.AST) -> bool:
    """Return whether this is `if __name__ == "__main__":`."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    parts = [node.test.left, *node.test.comparators]
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in parts)
