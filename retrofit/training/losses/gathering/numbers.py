"""Tensors without samples: computed from numbers that the script writes, and from the sizes of other tensors."""

from __future__ import annotations

import ast
import builtins
from collections import deque
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, is_followed, origins, sources
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.training.torch_api.randomness import DRAWS, DRAWS_IN_PLACE
from retrofit.training.torch_api.tensors import (
    CONVERTS,
    ENTRYWISE,
    FILLED,
    REDUCTIONS,
    SAME_ENTRIES,
    SHAPE_ATTRIBUTES,
    SHAPE_METHODS,
    TENSOR_CLASSES,
    TRANSPOSES,
)

if TYPE_CHECKING:
    from retrofit.training import Project

OF_NUMBERS = (
    CONVERTS
    | ENTRYWISE
    | FILLED
    | REDUCTIONS
    | TENSOR_CLASSES
    | TRANSPOSES
    | {"outer", "hann_window", "hamming_window"}
)


def is_of_numbers(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the same in every process: a window, a grid, a fixed matrix."""
    ends = []

    def through(origin: Origin) -> list[Origin]:
        node = origin.node
        if _tells_size(node):
            return []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_ENTRIES:
            return [origin.to(node.func.value)]
        assigned = list(sources(project.analysis, origin)) if isinstance(node, ast.Attribute) else []
        found = assigned or [part for part in inputs(project.analysis, origin) if not _is_function(project, part)]
        if not found or isinstance(node, ast.Call):
            ends.append(origin)
        return found

    deque(origins(project.analysis, [Origin(node, scope)], through), maxlen=0)
    return all(_is_number(project, end) for end in ends)


def _is_function(project: Project, origin: Origin) -> bool:
    """Return whether an expression is only what is called: a function, and no method of something computed."""
    call = origin.scope.source.parents.get(origin.node)
    if not isinstance(call, ast.Call) or call.func is not origin.node:
        return False
    is_own = bool(project.analysis.functions_called(call, origin.scope))
    return isinstance(origin.node, ast.Name) or is_imported(origin.node, origin.scope) or is_own


def _tells_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return last_name(node) in SHAPE_METHODS | {"len"}
    return isinstance(node, ast.Attribute) and node.attr in SHAPE_ATTRIBUTES


def _is_number(project: Project, origin: Origin) -> bool:
    """Return whether an expression that leads to no other is a number, or a function that makes numbers of numbers."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.AugAssign):
        return False  # what is put there is looked at, and not what it is added to
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, type(None)))
    if isinstance(node, ast.Call):
        return _gives_numbers(project, node, scope)
    return isinstance(node, (ast.List, ast.Tuple, ast.Slice)) or bool(
        is_followed(node) and project.analysis.named(node, scope)
    )


def _gives_numbers(project: Project, node: ast.Call, scope: Scope) -> bool:
    if project.analysis.functions_called(node, scope):
        return True  # what it returns is looked at
    names = project.analysis.called(node, scope)
    if names & DRAWS or last_name(node) in DRAWS_IN_PLACE:
        return False
    if not names:
        return isinstance(node.func, ast.Attribute) or hasattr(builtins, last_name(node))
    return all(
        name.startswith("math.") or hasattr(builtins, name) or name.rpartition(".")[2] in OF_NUMBERS for name in names
    )
