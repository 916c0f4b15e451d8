"""Loops that make a step for each entry of a batch of a loader, of which processes may have different numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for, given_parameters, last_name, returns_of
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.output import BAR_METHODS, BARS
from retrofit.training.torch_api.tensors import SPLITS

from ..data.batch_values import BATCH
from ..data.batches import layers
from ..data.loaders import is_split
from ..data.shapes import is_about_shape, measured
from ..data.shards import builders_of
from ..loops import Frame, Path, loops_around
from ..losses.rows.partners_in_loops import first_index
from ..model.gradients import takes_step

if TYPE_CHECKING:
    from .. import Project

COUNTS = frozenset({"range", "trange", "arange"})


def steps_in_batches(project: Project) -> Iterator[tuple[ast.For, ast.expr, Scope]]:
    """Yield the loops over a batch of a training loader with a step in each turn, and what is of the batch.

    A batch may be a list of batches, as a collate_fn makes it of samples that it has sorted: for part in parts.
    """
    drawn = {use.expression for loader in project.loaders for use in loader.uses}
    for path in project.paths:
        for (inner, frame), (outer, around) in zip(path.loops, path.loops[1:]):
            if not isinstance(inner, ast.For) or not isinstance(outer, ast.For):
                continue
            if drawn.isdisjoint(walk(outer.iter)) or is_split(project.analysis, outer.iter, around.scope):
                continue
            names = _handed_on(path, around, frame, _batch_names(outer))
            entries = _gone_through(project, inner, frame.scope, names)
            if entries is not None and takes_step(project.analysis, inner, frame.scope):
                yield inner, entries, frame.scope


def _handed_on(path: Path, outer: Frame, inner: Frame, names: set[str]) -> set[str]:
    """Return the names that the batch, or its parts, have where calls have handed it on: those of parameters."""
    frames = path.frames[path.frames.index(inner) : path.frames.index(outer) + 1]
    for caller, called in zip(frames[:0:-1], frames[-2::-1]):
        if not isinstance(caller.node, ast.Call) or not isinstance(called.scope.node, FUNCTIONS):
            return set()
        given = dict(zip(given_parameters(called.scope), caller.node.args))
        given |= {keyword.arg: keyword.value for keyword in caller.node.keywords if keyword.arg}
        names = {parameter for parameter, value in given.items() if _holds(value, names)}
    return names


def _holds(value: ast.expr, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in walk(value))


def _gone_through(project: Project, loop: ast.For, scope: Scope, names: set[str]) -> ast.expr | None:
    """Return the batch, or its part, that a loop goes through: by its entries, or by the number of its rows."""
    entries = layers(project.analysis, loop.iter, scope)[-1]
    is_zip = isinstance(entries, ast.Call) and "zip" in project.analysis.called(entries, scope)
    parts = entries.args if is_zip else [entries]  # type: ignore[attr-defined]
    for part in (_split(part.value if isinstance(part, ast.Starred) else part) for part in parts):
        if isinstance(part, ast.Name) and part.id in names:
            return part
    cut = next(_slices(loop, names), None)
    if cut is not None:
        return cut
    for origin in computed_from(project.analysis, loop.iter, scope):
        node = origin.node
        if origin.scope is not scope or not is_about_shape(node) or not _counts_rows(origin):
            continue
        is_list = last_name(node) == "len"
        for part in measured(node):
            whole = part.value if isinstance(part, ast.Subscript) else part  # the rows of batch["images"]
            is_batch = isinstance(whole, ast.Name) and whole.id in names
            if is_batch or (not is_list and BATCH in project.batch_values.sources_of(part, scope)):
                return part
    return None


def _split(node: ast.expr) -> ast.expr:
    """Return the tensor of which something is the parts: x of x.split(8), torch.chunk(x, 4)."""
    if not isinstance(node, ast.Call) or last_name(node) not in SPLITS:
        return node
    is_function = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "torch"
    if is_function or not isinstance(node.func, ast.Attribute):
        return node.args[0] if node.args else node
    return node.func.value


def _slices(loop: ast.For, names: set[str]) -> Iterator[ast.Name]:
    """Yield the batch of which each turn takes other rows: x[i : i + 8] in for i in range(0, 64, 8)."""
    counting = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}
    parts = (node for node in walk(loop) if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name))
    for node in parts if last_name(loop.iter) in COUNTS else ():
        first = first_index(node)
        is_cut = isinstance(first, ast.Slice) and any(getattr(part, "id", None) in counting for part in walk(first))
        if is_cut and node.value.id in names:  # type: ignore[attr-defined]
            yield node.value  # type: ignore[misc]


def _counts_rows(origin: Origin) -> bool:
    """Return whether this is the first of the sizes of a tensor: x.size(0), x.shape[0], rows of `rows, _ = x.shape`."""
    node = origin.node
    if isinstance(node, ast.Call) and (node.args or last_name(node) == "len"):
        return last_name(node) == "len" or ast.unparse(node.args[0]) == "0"
    outer = origin.scope.source.parents.get(node)
    is_first = isinstance(outer, ast.Subscript) and outer.value is node and ast.unparse(outer.slice) == "0"
    return is_first or origin.keys[:1] == (0,)


def are_flattened(project: Project, loop: ast.For, batch: ast.expr, scope: Scope) -> bool:
    """Return whether the entries of all batches can be gone through one after the other, as batches of their own.

    The loop over the loader does nothing else with a batch, which is a list that the project's collate_fn makes.
    """
    outer = scope.source.parents[loop]
    if not isinstance(outer, ast.For) or outer.orelse or loop.orelse:
        return False
    if not all(part is loop or _moves_bar(project, part, scope) for part in outer.body):
        return False
    if not isinstance(outer.target, ast.Name) or not isinstance(batch, ast.Name) or loop.iter is not batch:
        return False
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return False
    reads = [node for node in walk(outer) if isinstance(node, ast.Name) and node.id == batch.id]
    ends = (node for node in walk(loop) if isinstance(node, ast.Break))
    if len(reads) != 2 or any(next(loops_around(scope, node), None) is loop for node in ends):
        return False
    loaders = [loader for loader in project.loaders for use in loader.uses if use.expression is outer.iter]
    made = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    return bool(made) and all(_collates_lists(project, *place) for place in made)


def _moves_bar(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement moves a progress bar on: bar.update(1)."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in BAR_METHODS:
        return False
    values = project.analysis.evaluate(call.func.value, scope)
    return any(isinstance(value, Result) and value.builder in BARS for value in values)


def _collates_lists(project: Project, builder: ast.Call, scope: Scope) -> bool:
    """Return whether a loader's collate_fn is a function of the project that returns a list."""
    given = argument_for(builder, [], "collate_fn")
    values = project.analysis.evaluate(given, scope)
    functions = [function for value in values for function, _ in project.analysis.functions_of(value)]
    returned = [Origin(value, function.scope) for function in functions for value in returns_of(function.node)]
    made = [part.node for part in origins(project.analysis, returned) if not isinstance(part.node, ast.Name)]
    return bool(made) and all(isinstance(m, (ast.List, ast.ListComp)) or last_name(m) == "list" for m in made)


def _batch_names(loop: ast.For) -> set[str]:
    """Return the names of the batch, and of its parts: also of `for i, batches in enumerate(loader)`."""
    target = loop.target
    is_numbered = any(isinstance(part, ast.Call) and last_name(part) == "enumerate" for part in walk(loop.iter))
    if isinstance(target, ast.Tuple) and is_numbered and len(target.elts) == 2:
        target = target.elts[1]
    return {part.id for part in walk(target) if isinstance(part, ast.Name)}
