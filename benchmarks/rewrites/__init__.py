"""Harmless rewrites: other ways to write the same training, by which what `retrofit convert` does must not change.

Each is a function that changes the syntax trees of a project's files in place, `{file name: tree}`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from . import assignments, calls, control_flow, expressions, imports, names, structure

Rewrite = Callable[[dict[str, ast.Module]], None]
REWRITES: dict[str, Rewrite] = {
    function.__name__: function
    for module in (names, imports, assignments, expressions, calls, control_flow, structure)
    for function in module.REWRITES
}


def rewritten(texts: dict[str, str], rewrite: Rewrite) -> dict[str, str]:
    """Return the files of a project after one rewrite, those alone that it changes."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    rewrite(trees)
    results = {name: ast.unparse(ast.fix_missing_locations(tree)) + "\n" for name, tree in trees.items()}
    return {name: text for name, text in results.items() if text != ast.unparse(ast.parse(texts[name])) + "\n"}
