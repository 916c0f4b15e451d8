"""Batch sizes in the shapes of what the steps of a training make, or of what is made for them before."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Union

from retrofit.analysis.calls import given_parameters, last_name
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.flow.calls.parameters import given_for
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.training import Project
from retrofit.training.data.draws.draw import CALL
from retrofit.training.data.draws.slices.layout import layout_functions
from retrofit.training.data.sized.made_before import made_before, of_losses, repeats_list
from retrofit.training.data.sized.resized_views import resized_tensors
from retrofit.training.losses.gathering.gathered import gathering, is_of_whole_rows
from retrofit.training.losses.rows.carried_rows import sizes_of_states
from retrofit.training.model.gradients import has_gradients
from retrofit.training.torch_api.draws import COUNTED, DISTRIBUTIONS, SAMPLES, of_common_stream
from retrofit.training.torch_api.runtime import OWN_SAMPLES
from retrofit.training.torch_api.tensors import DRAWN, FILLED, NEW, REPEATS, TENSOR_CLASSES, VIEWS

Made = Union[ast.Call, ast.BinOp]
SPLIT = {"own_batch_size", "micro_batch", "batch_of_ranks", "whole_batch_size", "samples_per_step"}
SHAPED = VIEWS | REPEATS | FILLED | DRAWN | NEW | TENSOR_CLASSES | {"repeat", "fill", "range"}


@dataclass(frozen=True)
class WrittenSize:
    """A batch size, as large as it is written, in the shape of something: `size` of torch.ones(size, 2).

    `where`: the scope of the size, which a call of the function may give. `is_kept`: the rows are there before the
    batches, or an evaluation has as many, so that the size stays.
    """

    made: Made
    scope: Scope
    size: ast.expr
    where: Scope
    is_kept: bool


def written_sizes(project: Project) -> Iterator[WrittenSize]:
    """Yield the batch sizes that are taken for the size of the batch in hand, each once."""
    known = {size for draw in project.draws.batches.values() for size, _ in draw.sizes}  # of all ranks, by RF115
    known |= {*gathering(project).sizes, *_of_steps(project)}  # the former over all ranks, by RF303
    known |= {*sizes_of_states(project)}  # by RF210
    before = {(node, scope): is_in_model for node, scope, is_in_model in made_before(project)}
    settled = {*layout_functions(project), *_drawing(project)}
    resized = set(resized_tensors(project))
    for node, scope in dict.fromkeys([*_made_in_batches(project), *before]):
        given = _given(node) if scope not in settled and node not in resized else []
        for size, where in [place for part in given for place in _sizes_of(project, part, scope)]:
            if size in known or is_of_whole_rows(project, size, where):
                continue
            known.add(size)  # a variable may be read several times
            if _is_split(where.source.parents[size]):
                continue
            is_set_before = (node, scope) not in before and size not in project.nodes_in_batches
            is_kept = is_set_before or before.get((node, scope)) or _is_evaluated(project, node, scope, before)
            yield WrittenSize(node, scope, size, where, bool(is_kept))


def _made_in_batches(project: Project) -> Iterator[tuple[Made, Scope]]:
    for node, scope in project.in_batches.of(ast.Call, ast.BinOp):
        if not _is_shaped(project, node, scope):
            continue
        if node in of_losses(project) or not _is_apart(project, scope):
            yield node, scope


def _is_apart(project: Project, scope: Scope) -> bool:
    """Return whether a function has nothing of the batch, and gives nothing to a loss: it makes pictures of noise."""
    known: dict[Scope, bool] = project.analysis.fact("functions apart from the batch", dict)
    if scope not in known:
        sites = project.analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) else []
        given = [
            (part, site.scope) for site in sites for part in (*site.call.args, *(k.value for k in site.call.keywords))
        ]
        has_batch = any(project.batch_values.sources_of(part, where) for part, where in given)
        known[scope] = bool(sites) and not has_batch and not _calls_for_losses(project, scope)
    return known[scope]


def _drawing(project: Project) -> Iterator[Scope]:
    """Yield the functions that make a batch of as many samples as they are told: of all ranks, where RF115 says so."""
    drawn = [(draw.node, draw.scope) for draw in project.draws.batches.values() if draw.kind == CALL]
    for node, scope in project.in_batches.of(ast.Call):
        if project.analysis.called(node, scope) & OWN_SAMPLES:
            drawn += [(part, scope) for part in node.args]  # it is split already
    calls = [(node, scope) for node, scope in drawn if isinstance(node, ast.Call)]
    yield from (function.scope for function in functions_reached(project.analysis, calls))


def _is_shaped(project: Project, node: Made, scope: Scope) -> bool:
    """Return whether something is given the shape of what it makes: a call, or the product `[0] * batch_size`.

    Also by a distribution, `noise.sample((8,))`, but for noise of what is only shown.
    """
    if not isinstance(node, ast.Call):
        return repeats_list(node)
    names = project.analysis.called(node, scope)
    if not COUNTED.keys().isdisjoint(map(of_common_stream, names)):
        return True  # as many entries as it is told: random.choices(steps, k=batch_size)
    is_sample = any(name.startswith(DISTRIBUTIONS) and name.rpartition(".")[2] in SAMPLES for name in names)
    return (is_sample or last_name(node) in SHAPED) and not _is_only_shown(project, node, scope)


def _is_only_shown(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call draws, without gradients, what no loss is computed from: noise for pictures."""
    is_drawn = last_name(call) in DRAWN and call not in of_losses(project)
    return is_drawn and not has_gradients(project.analysis, scope, call)


def _is_evaluated(project: Project, node: Made, scope: Scope, before: Container[tuple[Made, Scope]]) -> bool:
    """Return whether an evaluation, whose batches stay whole, uses the variable that is set to what is made before."""
    if (node, scope) not in before:
        return False
    statement = scope.source.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {ast.unparse(target) for target in targets}
    loops = [evaluation.loop for evaluation in project.evaluations]
    return any(
        isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in names
        for loop in loops
        if node not in walk(loop)
        for part in walk(loop)
    )


def _sizes_of(project: Project, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the batch sizes in an expression, as large as they are written: `batch // parts`, and not `batch`.

    Also what the steps alone give for a parameter in it, noise(batch_size), where there is noise(16), and what a
    variable is set to in a step, where it can be another number: `groups = 1 if whole else batch_size`.
    """
    either = [place for place in _either(project, node, scope) if place in project.batch_sizes]
    if (node, scope) in project.batch_sizes:
        yield from _told(project, node, scope)  # type: ignore[arg-type]
    elif either:
        yield from either
    elif isinstance(node, ast.Name) and isinstance(scope.node, FUNCTIONS) and node.id in given_parameters(scope):
        calls = _calls_for_losses(project, scope) or project.nodes_in_batches
        for given, where, _ in given_for(project.analysis, node.id, scope, (), calls):
            if given in project.nodes_in_batches and (given, where) in project.batch_sizes:
                yield given, where
    else:
        for part in ast.iter_child_nodes(node):
            yield from _sizes_of(project, part, scope)


def _given_for_losses(project: Project, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]] | None:
    """Return the sizes that a function is told for what losses are computed from, where it is called for others, too.

    An evaluation between the steps draws noise by the same function, and as much of it as it has labels. None for a
    size that the function is not told, or for losses alone.
    """
    if not isinstance(node, ast.Name) or not isinstance(scope.node, FUNCTIONS):
        return None
    if node.id not in given_parameters(scope) or len(scope.bindings.get(node.id, [])) > 1:
        return None
    trained = _calls_for_losses(project, scope)
    if not trained or len(trained) == len(project.analysis.callers(scope.node)):
        return None
    given = [(value, where) for value, where, _ in given_for(project.analysis, node.id, scope, (), trained)]
    left = [(value, where) for value, where in given if not _is_split(value)]
    if not all(place in project.batch_sizes for place in left):
        return None
    return [size for place in left for size in _told(project, *place)]


def _calls_for_losses(project: Project, scope: Scope) -> set[ast.Call]:
    """Return the calls of a function that losses are computed from."""
    return {site.call for site in project.analysis.callers(scope.node)} & of_losses(project).keys()  # type: ignore[arg-type]


def _told(project: Project, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return where a size is written that is that of a rank: in a function, or where that is told it."""
    given = _given_for_losses(project, node, scope)
    return [(node, scope)] if given is None else given


def _is_split(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in SPLIT


def _either(project: Project, node: ast.AST, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what a variable is set to, each side of a condition by itself."""
    bindings = bindings_of(project.analysis, node, scope) if isinstance(node, ast.Name) else []
    waiting = [(binding.value, where) for binding, where in bindings if binding.kind == "value" and not binding.path]
    found: list[tuple[ast.expr, Scope]] = []
    while waiting:
        value, where = waiting.pop()
        if isinstance(value, ast.IfExp):
            waiting += [(value.body, where), (value.orelse, where)]
        elif value is not None:
            found.append((value, where))
    return found


def _given(node: Made) -> list[ast.expr]:
    """Return what the shape of something is written in: arguments, the factors of `[0] * batch_size`."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _of_steps(project: Project) -> Iterator[ast.expr]:
    """Yield what the number of steps of a loop is divided by, `range(len(data) // batch_size)`: no size of a batch."""
    for loop in (loop for path in project.paths for loop, _ in path.loops if isinstance(loop, ast.For)):
        for part in walk(loop.iter):
            if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.FloorDiv)):
                yield from (inner for inner in walk(part.right) if isinstance(inner, ast.expr))
