"""Numbers of steps that a script computes from its samples: of its loops, and what figures of an epoch are divided by.

`for step in range(len(dataset) // batch_size)`, `total / (len(dataset) // batch_size + 1)`: several processes make a
part of these steps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.runtime import OWN_BATCHES, SIZES_OF_RANKS
from retrofit.training.torch_api.tensors import FILLED

from ... import Project
from ...data.draws.slices.layout import layout_functions
from ...data.shards import is_same
from ...losses.reductions.samples import is_name_of_size
from ...optimizer.loop_ends import range_end
from ...optimizer.schedules import (
    COUNTS_STEPS,
    DIVISION,
    Place,
    counts_batches,
    is_of_samples,
    single_process_sizes,
    sizes_of_steps,
)
from ..figures import followed

COUNTING = (ast.BinOp, ast.AugAssign, ast.Assign)  # what can divide a figure, or make a list of figures


@dataclass(frozen=True)
class StepCount:
    """A number of steps of one process; `sizes`: the batch sizes in it, none where an evaluation has the same."""

    number: ast.expr
    scope: Scope
    sizes: tuple[Place, ...]


@answered_once
def step_counts(project: Project) -> list[StepCount]:
    """Return the numbers of steps of a training: of its loops, of what figures are divided by, of lists of figures."""
    return list(_step_counts(project))


def _step_counts(project: Project) -> Iterator[StepCount]:
    sizes = sizes_of_steps(project)
    drawn = {size for draw in project.draws.batches.values() for size in draw.sizes}
    if project.distribution.is_by_hand or not any(counts_batches(project, *p, sizes) for p in _divisions(project)):
        return
    batches = set(project.in_batches)
    both = followed(project)[0].both
    nodes = reached_nodes(project.analysis).of(*COUNTING)
    of_figures = ((node, scope, number_at(project, node, scope, batches)) for node, scope in nodes)
    for node, scope, number in (*_of_loops(project), *of_figures):
        found = single_process_sizes(project, number, scope, sizes, of_samples=True) if number is not None else []
        found = [place for place in found if place not in drawn]  # these become the batch of all ranks
        if number is not None and found and not is_of_rank(project, number, scope):
            found += [place for size in found for place in _in_dividend(project, *size)]
            is_shared = bool(both.intersection(scope.source.ancestors(node)))
            is_shared |= not counted_by_evaluations(project).isdisjoint(size for size, _ in found)
            yield StepCount(number, scope, () if is_shared else tuple(found))


def is_of_rank(project: Project, number: ast.expr, scope: Scope) -> bool:
    """Return whether a number of batches is made that of a rank where it is read."""
    return isinstance(number, ast.Call) and OWN_BATCHES in project.analysis.called(number, scope)


def counted_by_evaluations(project: Project) -> set[ast.AST]:
    """Return what the numbers of batches are computed from that loops draw which only evaluate."""

    def found() -> set[ast.AST]:
        training = {loop for path in project.paths for loop, _ in path.loops}
        models = {call.call for model in project.models for call in model.calls}
        loops = [place for place in reached_nodes(project.analysis).of(ast.For) if training.isdisjoint(walk(place[0]))]
        ends = [(range_end(project, loop.iter, scope), scope) for loop, scope in loops if models & set(walk(loop))]
        origins = [place for end, scope in ends if end is not None for place in project.ranks.origins(end, scope)]
        return {part for node, _ in origins for part in walk(node)}

    return project.analysis.fact("counted by evaluations", found)


@answered_once
def unknown_step_counts(project: Project) -> list[tuple[ast.expr, Scope]]:
    """Return what figures of an epoch are divided by: samples by a size that is not known to be of the training."""
    return list(_unknown_step_counts(project))


def _unknown_step_counts(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    if project.distribution.is_by_hand:
        return
    sizes, batches = sizes_of_steps(project), set(project.in_batches)
    nodes = reached_nodes(project.analysis).of(*COUNTING)
    laid_out = layout_functions(project)  # they compute how long sequences are
    divisions = (place for place in _divisions(project) if place[1] not in laid_out)
    by_size = {place[0] for place in divisions if _is_by_some_size(project, *place, sizes)}
    for node, scope in nodes if by_size else ():
        number = number_at(project, node, scope, batches)
        origins = project.ranks.origins(number, scope) if number is not None else []
        if not any(part in by_size for origin, _ in origins for part in walk(origin)):
            continue
        if number is None or is_of_rank(project, number, scope):
            continue
        if not single_process_sizes(project, number, scope, sizes, of_samples=True):
            yield number, scope


def _is_by_some_size(project: Project, node: ast.BinOp, scope: Scope, sizes: list[Place]) -> bool:
    """Return whether samples are divided by something that is named as a batch size, which none of `sizes` is."""
    called = project.analysis.called(node.right, scope) if isinstance(node.right, ast.Call) else set()
    if not isinstance(node.op, DIVISION) or called & SIZES_OF_RANKS:
        return False
    name = node.right.slice if isinstance(node.right, ast.Subscript) else node.right  # config["batch_size"]
    text = str(name.value) if isinstance(name, ast.Constant) else last_name(name)
    if not is_name_of_size(text) or not is_of_samples(project, node.left, scope):
        return False
    return not counts_batches(project, node, scope, sizes)


def _of_loops(project: Project) -> Iterator[tuple[ast.AST, Scope, ast.expr | None]]:
    """Yield how many steps a loop of the training makes: `for step in range(len(dataset) // batch_size)`."""
    for loop, scope in dict.fromkeys((loop, frame.scope) for path in project.paths for loop, frame in path.loops):
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            yield loop, scope, range_end(project, loop.iter, scope)


def _divisions(project: Project) -> list[tuple[ast.BinOp, Scope]]:
    return [place for place in reached_nodes(project.analysis).of(ast.BinOp) if isinstance(place[0].op, COUNTS_STEPS)]


def number_at(project: Project, node: ast.AST, scope: Scope, batches: set[tuple[ast.AST, Scope]]) -> ast.expr | None:
    """Return what a figure of the training is divided by, or how long a list of them is made."""
    divided = _divided(node)
    if divided is None:
        size = _size_of_list(node)
        return size if size is not None and _is_filled(node, scope, batches) else None
    is_figure = not isinstance(divided[1], ast.Constant) and _is_of_batches(project, divided[0], scope, batches)
    return divided[1] if is_figure else None


def _in_dividend(project: Project, size: ast.expr, scope: Scope) -> Iterator[Place]:
    """Yield where a batch size is in what it divides, too: (samples + batch_size - 1) // batch_size."""
    outer = scope.source.parents[size]
    inner = walk(outer.left) if isinstance(outer, ast.BinOp) and outer.right is size else ()
    for part in inner:
        if isinstance(part, (ast.Name, ast.Attribute)) and is_same(project.analysis, (part, scope), (size, scope)):
            yield part, scope


def _divided(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, DIVISION):
        return node.left, node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, DIVISION):
        return node.target, node.value
    return None


def _is_of_batches(project: Project, node: ast.expr, scope: Scope, batches: set[tuple[ast.AST, Scope]]) -> bool:
    """Return whether a number is computed from what is computed for the batches of the training."""
    return any((origin.node, origin.scope) in batches for origin in computed_from(project.analysis, node, scope, True))


def _size_of_list(node: ast.AST) -> ast.expr | None:
    """Return n of `losses = np.zeros(n)`."""
    made = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
    return made.args[0] if made is not None and last_name(made) in FILLED and made.args else None


def _is_filled(node: ast.AST, scope: Scope, batches: set[tuple[ast.AST, Scope]]) -> bool:
    """Return whether each batch sets an entry of a list that an assignment makes: `losses[step] = loss.item()`."""
    names = {ast.unparse(target) for target in node.targets} if isinstance(node, ast.Assign) else set()
    return any(
        isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) in names
        for part, where in batches
        if where is scope
    )
