"""Rows of a batch that a loss takes by their place in it: each sample and the next one, the halves of the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.tensors import JOINS, SPLITS, VIEWS

from ...model.gradients import has_gradients
from ...model.indirect.library_calls import losses_computed_from
from ...optimizer.loop_ends import range_end
from ..gathering.gathered import reader_of_values
from ..gathering.values import FIXED, ONE_ROW, PLAIN, RESHAPED, SIZE, SOME_ROWS, ValueReader
from ..reductions.axes import axes_of
from ..reductions.lists import LAYERS, SAMPLES
from .partners_in_loops import counting_loops, first_index, is_one_of_samples, meets_other_rows

if TYPE_CHECKING:
    from retrofit.training import Project

MOVES = {"to", "cuda"}
PLACES = {"arange", "argsort", "range"}  # functions that give places in a batch


def rows_by_place(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the rows of a batch that a loss takes by their place, outside the model: other samples on each rank."""
    for node, scope in taken_by_place(project, reader_of_values(project)):
        if has_gradients(project.analysis, scope, node):
            yield node, scope


def taken_by_place(project: Project, reader: ValueReader) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the rows that are taken by their place, of a batch and of what is computed from it, outside the model."""
    in_models = {function.node for function in _run_by_models(project)}
    computing = losses_computed_from(project.analysis, project.paths)
    seen: set[ast.AST] = set()
    for node, scope in project.in_batches:
        if node not in computing or node in seen or scope.node in in_models:
            continue
        seen.add(node)
        of: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            reason = reader.value(node, scope).reason
            is_chosen = reason == SOME_ROWS and not _is_gone_through(node, scope)
            is_chosen = is_chosen and not _is_list(project, reader, node.value, scope)
            of = node.value if is_chosen and _is_by_place(project, reader, node, scope) else None
            of = node.value if reason == ONE_ROW and is_one_of_samples(reader, node.value, scope) else of
        elif isinstance(node, ast.Call) and last_name(node) in SPLITS:
            of = _taken_apart(project, node, scope)
        elif isinstance(node, ast.Call) and last_name(node) in VIEWS:
            of = _reshaped(reader, node, scope)
        if of is not None and reader.value(of, scope).kind == PLAIN:
            yield node, scope  # type: ignore[misc]


def _is_gone_through(node: ast.expr, scope: Scope) -> bool:
    """Return whether something is a list of parts: for output in outputs[1:], a, b = batch[:-1], cat(views[1:])."""
    whole, outer = node, scope.source.parents[node]
    while isinstance(outer, ast.IfExp) and outer.test is not whole:
        whole, outer = outer, scope.source.parents[outer]
    if isinstance(outer, ast.Assign):
        return isinstance(outer.targets[0], (ast.Tuple, ast.List))
    if isinstance(outer, ast.Starred):
        return True
    if isinstance(outer, ast.Call) and last_name(outer) in JOINS | {"zip"}:
        return whole in outer.args
    return isinstance(outer, (ast.For, ast.comprehension)) and outer.iter is whole


def _is_list(project: Project, reader: ValueReader, node: ast.expr, scope: Scope) -> bool:
    """Return whether something is a list that a data set gives, as torch.cat(views) shows: views[:2] are two views."""
    if reader.lists.entries(node, scope) == {LAYERS}:
        return True
    ends = _ends(project, node, scope)
    if any(isinstance(end, ast.ListComp) and last_name(end.elt) in MOVES for end in ends):
        return True  # one sample after the other is moved to no device
    return SAMPLES not in reader.lists.entries(node, scope) and not ends.isdisjoint(_joined(project))


def _joined(project: Project) -> set[object]:
    """Return where that comes from which the training, or its models, give to functions that take lists alone."""

    def compute() -> set[object]:
        found: set[object] = set()
        for node, scope in project.in_batches.of(ast.Call):
            if last_name(node) not in JOINS or not node.args:
                continue
            if any(name.startswith("torch.") for name in project.analysis.called(node, scope)):
                found |= _ends(project, node.args[0], scope)
        return found

    return project.analysis.fact("lists that are joined", compute)


def _ends(project: Project, node: ast.expr, scope: Scope) -> set[object]:
    """Return the values that an expression is, of a name that a loop gives a value the variable."""
    found: set[object] = set()
    for origin in origins(project.analysis, [Origin(node, scope)], _of_slice):
        name = origin.node
        bound = origin.scope.find(name.id) if isinstance(name, ast.Name) else None
        if bound is not None and any(binding.kind == "item" for binding in bound[1]):
            found.add((bound[0], name.id))  # type: ignore[union-attr]
        if isinstance(name, (ast.ListComp, ast.Call)):
            found.add(name)
    return found


def _of_slice(origin: Origin) -> list[Origin] | None:
    node = origin.node
    is_slice = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return [origin.to(node.value)] if is_slice else None  # type: ignore[union-attr]


def _taken_apart(project: Project, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the rows whose parts get several names, in `first, second = outputs.chunk(2)`."""
    outer = scope.source.parents[call]
    is_function = any(name.startswith("torch.") for name in project.analysis.called(call, scope))
    given = call.args if is_function or not isinstance(call.func, ast.Attribute) else [call.func.value, *call.args]
    is_several = isinstance(outer, ast.Assign) and isinstance(outer.targets[0], (ast.Tuple, ast.List))
    return given[0] if given and is_several and (axes_of(call, given[2:], scope)[0] or (0,)) == (0,) else None


def _reshaped(reader: ValueReader, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the rows that get several axes by numbers of the script: outputs.view(2, -1, 4)."""
    sizes = call.args[0].elts if call.args and isinstance(call.args[0], (ast.Tuple, ast.List)) else call.args
    if not sizes or not isinstance(call.func, ast.Attribute) or reader.value(call, scope).reason != RESHAPED:
        return None
    is_one = isinstance(sizes[0], ast.Constant) and sizes[0].value == 1
    return call.func.value if not is_one and reader.value(sizes[0], scope).kind == FIXED else None


def _run_by_models(project: Project) -> list[LocalFunction]:
    calls = [(call.call, call.scope) for model in project.models for call in model.calls]
    return [*functions_reached(project.analysis, calls)]


def _is_of_fixed_loop(
    project: Project, reader: ValueReader, first: ast.expr, scope: Scope, loops: set[ast.AST]
) -> bool:
    """Return whether slices are cut by numbers of the script alone: x[i : i + 8] in for i in range(0, 64, 8)."""
    if not isinstance(first, ast.Slice) or any(not isinstance(loop, ast.For) for loop in loops):
        return False
    ends = [range_end(project, loop.iter, scope) for loop in loops]  # type: ignore[attr-defined]
    bounds = [part for part in (*ends, first.lower, first.upper) if part is not None]
    return None not in ends and all(reader.value(part, scope).kind == FIXED for part in bounds)


def _is_by_place(project: Project, reader: ValueReader, node: ast.Subscript, scope: Scope) -> bool:
    first = first_index(node)
    loops = counting_loops(project, first, scope)
    if loops:  # one part of the batch after the other, as far as the loop goes
        is_cut = _is_of_fixed_loop(project, reader, first, scope, loops)
        return is_cut or meets_other_rows(project, reader, node, scope)
    if isinstance(first, ast.Slice):
        if first.lower is not None or first.step is not None or first.upper is None:
            return first.lower is not None or first.step is not None
        return reader.value(first.upper, scope).kind != SIZE  # x[: len(y)] has what y has
    if first is not node.slice:
        return False  # an entry of each row: x[torch.arange(len(x)), y]
    parts = computed_from(project.analysis, first, scope)
    return any(isinstance(part.node, ast.Call) and last_name(part.node) in PLACES for part in parts)
