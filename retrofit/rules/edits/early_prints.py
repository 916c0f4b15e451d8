"""Prints between the imports of a file, before which the print of the runtime is imported."""

from __future__ import annotations

import ast

from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS

SETS_ENVIRONMENT = frozenset({"environ", "putenv"})


def sets_environment_after(source: Source, place: float) -> bool:
    """Return whether a file sets the environment after a place, while it is imported: to be done before torch is."""
    later = (statement for statement in source.tree.body if source.span(statement)[1] > place)
    at_once = (statement for statement in later if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)))
    nodes = (node for statement in at_once for node in walk(statement))
    return any(isinstance(node, ast.Attribute) and node.attr in SETS_ENVIRONMENT for node in nodes)
