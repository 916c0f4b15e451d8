"""Variables of the environment that a script sets itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .analysis import Analysis
from .reach import reached_nodes
from .scopes import Scope


def assignments_to_environ(analysis: Analysis) -> Iterator[tuple[ast.stmt, str, ast.expr, Scope]]:
    """Yield each `os.environ[name] = value` in the code that runs: statement, name, value and scope."""
    for node, scope in reached_nodes(analysis):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
                    continue
                if "os.environ" in analysis.named(target.value, scope):
                    yield node, str(target.slice.value), node.value, scope
