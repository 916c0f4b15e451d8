"""Prints between the imports of a file, before which the print of the runtime is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS
from retrofit.training import Project
from retrofit.training.files.outputs import PRINT

SETS_ENVIRONMENT = frozenset({"environ", "putenv"})


def first_print(project: Project, source: Source) -> float:
    """Return where the first print is that a module makes while it is imported, which may be between its imports.

    Infinity where there is none, and where the environment is set after it, which is to be done before torch is
    imported.
    """
    prints = (output for output in project.outputs if output.kind == PRINT and output.scope.source is source)
    starts = [source.span(output.call)[0] for output in prints if output.scope is output.scope.module]
    starts += [source.span(node)[0] for node in _other_names(source)]
    first = min(starts, default=float("inf"))
    return float("inf") if _sets_environment_after(source, first) else first


def _other_names(source: Source) -> Iterator[ast.expr]:
    """Yield where a module gives Python's print another name while it is imported: say = print."""
    for statement in source.tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            yield from (node for node in walk(statement.value) if isinstance(node, ast.Name) and node.id == "print")


def _sets_environment_after(source: Source, place: float) -> bool:
    """Return whether a file sets the environment after a place, while it is imported."""
    later = (statement for statement in source.tree.body if source.span(statement)[1] > place)
    at_once = (statement for statement in later if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)))
    nodes = (node for statement in at_once for node in walk(statement))
    return any(isinstance(node, ast.Attribute) and node.attr in SETS_ENVIRONMENT for node in nodes)
