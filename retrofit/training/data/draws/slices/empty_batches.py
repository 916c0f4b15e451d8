"""Tests whether a batch that is cut from the data has samples: it has some on all ranks, or on none."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.scopes import Scope
from retrofit.training import Project
from retrofit.training.torch_api.runtime import OWN_SAMPLES

from ..draw import PARTS, SLICE

OF_NONE = {"0", "[]", "()"}


def asks_for_samples(project: Project, test: ast.AST, scope: Scope) -> bool:
    """Return whether a test asks for nothing but whether a batch is empty: `if not batch`, `len(batch) == 0`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return asks_for_samples(project, test.operand, scope)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_with_none = ast.unparse(test.comparators[0]) in OF_NONE
        is_known = isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Gt))
        return is_with_none and is_known and asks_for_samples(project, test.left, scope)
    if isinstance(test, ast.Call) and last_name(test) == "len" and len(test.args) == 1:
        test = test.args[0]
    return isinstance(test, ast.Name) and _is_cut(project, test, scope)


def _is_cut(project: Project, name: ast.Name, scope: Scope) -> bool:
    owner, bindings = live_bindings(name, scope)
    known = {node for node, draw in project.draws.batches.items() if draw.kind in (SLICE, PARTS)}
    given = [None if binding.path or binding.kind != "value" else binding.value for binding in bindings]
    return bool(given) and all(
        value in known or (isinstance(value, ast.Call) and bool(project.analysis.called(value, owner) & OWN_SAMPLES))
        for value in given
    )
