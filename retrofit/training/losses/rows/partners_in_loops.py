"""Rows of a batch that a loop takes at several places in each of its turns: outputs[i] and outputs[i + 1]."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope

from ..reductions.lists import DRAWN, SAMPLES

if TYPE_CHECKING:
    from retrofit.training import Project

    from ..gathering.values import ValueReader


def first_index(node: ast.Subscript) -> ast.expr:
    """Return the index of the first axis."""
    return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice


def counting_loops(project: Project, node: ast.AST, scope: Scope) -> set[ast.AST]:
    """Return the loops within a batch that count by a name in an index."""
    return {
        binding.node
        for part in walk(node)
        if isinstance(part, ast.Name)
        for binding, _ in bindings_of(project.analysis, part, scope)
        if binding.kind == "item" and binding.node not in project.batch_values.loops
    }


def meets_other_rows(project: Project, reader: ValueReader, node: ast.Subscript, scope: Scope) -> bool:
    """Return whether this is the row of another sample than the one that a turn of a loop is about."""
    loops = counting_loops(project, first_index(node), scope)
    if len(loops) != 1 or not _is_row(reader, node, scope):
        return False
    (loop,) = loops
    rows = [part for part in walk(_body(loop, scope)) if isinstance(part, ast.Subscript)]
    of_loop = [row for row in rows if counting_loops(project, first_index(row), scope) == {loop}]
    places = {ast.unparse(first_index(row)): first_index(row) for row in of_loop if _is_row(reader, row, scope)}
    is_about_all = last_name(loop.iter) == "enumerate"  # type: ignore[attr-defined]
    if not isinstance(first_index(node), ast.Name):
        return is_about_all or len(places) > 1
    return len(places) > 1 and all(isinstance(place, ast.Name) for place in places.values())


def is_one_of_samples(reader: ValueReader, node: ast.expr, scope: Scope) -> bool:
    """Return whether the entries of an expression are samples, and not outputs of layers, or what is not known."""
    return isinstance(node, (ast.Name, ast.Attribute)) and reader.lists.entries(node, scope) == {SAMPLES}


def _is_row(reader: ValueReader, node: ast.Subscript, scope: Scope) -> bool:
    entries = reader.lists.entries(node.value, scope)
    return not isinstance(first_index(node), ast.Slice) and bool(entries) and entries <= {SAMPLES, DRAWN}


def _body(loop: ast.AST, scope: Scope) -> ast.AST:
    return scope.source.parents[loop] if isinstance(loop, ast.comprehension) else loop
