"""Random numbers that a training draws for a batch, in a number that does not follow that of its samples.

`alpha = torch.rand(1)`, `noise = torch.randn(8, 3)`: one process draws them once for the batch. Each of several draws
its own, for its part of the batch: others on each rank, and together so many times as many.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.calls.graph import nodes_in, nodes_run
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.draws import DISTRIBUTIONS, DRAWS_FOR_BATCH, ORDERS, SAMPLES, of_common_stream
from retrofit.training.torch_api.modules import DROPOUT, DROPOUT_FUNCTIONS, GUMBEL
from retrofit.training.torch_api.randomness import DRAWS, DRAWS_IN_PLACE, NUMPY_DRAWS, PYTHON_DRAWS, SHUFFLES
from retrofit.training.torch_api.runtime import OWN_BATCH_SIZES, OWN_SAMPLES
from retrofit.training.torch_api.tensors import NEW

from ..data.random_draws import draws_in_loop
from ..losses.gathering.values import ROWS
from ..losses.terms import loss_expressions
from .drawn_choices import is_for_each, onward, read
from .mixed_by_libraries import collated

if TYPE_CHECKING:
    from retrofit.training import Project


@answered_once
def draws_per_batch(project: Project) -> list[tuple[ast.Call, Scope]]:
    """Return the draws that the loss of a batch is computed from, and that are not one for each of its samples.

    Those of a step, and those of the function by which a loader puts a batch together.
    """
    return list(_draws_per_batch(project))


def _draws_per_batch(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    if project.distribution.is_by_hand:
        return  # what each rank is to draw is written there
    seen: set[ast.AST] = set()
    for node, scope in (*project.in_batches, *_before_steps(project)):
        if not isinstance(node, ast.Call) or node in seen:
            continue
        seen.add(node)
        given = _given_to_layer(project, node, scope)
        if given is None and not draws_in_loop(project, node, scope):
            continue
        if project.analysis.called(node, scope) & SHUFFLES or not _is_trained_on(project, node, scope):
            continue
        if is_for_each(project, node, scope):
            continue
        given = given_to_draw(node) if given is None else given
        follows = any(_follows_number(project, part, scope) for part in given)
        if not follows and not _is_taken_apart(project, node, scope):
            yield node, scope
    for node, scope in collated(project):
        if project.analysis.called(node, scope) & DRAWS:
            yield node, scope


def _before_steps(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield what is run for a batch with which a loop inside makes several steps."""
    for path in project.paths:
        for loop, frame in path.loops[1:]:
            targets = walk(loop.target) if isinstance(loop, ast.For) else ()
            names = {part.id for part in targets if isinstance(part, ast.Name)}
            body = [(part, frame.scope) for part in loop.body]
            read = (part for root, _ in body for part in walk(root) if isinstance(part, ast.Name) and part.id in names)
            if any(project.batch_values.sources_of(name, frame.scope) for name in read):
                yield from nodes_run(project.analysis, body)


def _is_taken_apart(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether each rank takes its part of what rank 0 draws: rd.data.own_draw(torch.randint(...), 8)."""
    around = (outer for outer in scope.source.ancestors(call) if isinstance(outer, ast.Call))
    return any(project.analysis.called(outer, scope) & OWN_SAMPLES for outer in around)


def rows_per_batch(project: Project) -> set[ast.AST]:
    """Return those of `draws_per_batch` that give rows, each of which is used as a sample is: torch.randn(8, 3)."""
    return {call for call, scope in draws_per_batch(project) if _gives_rows(project, call, scope)}


def _gives_rows(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a draw gives more than one number, or one row of them; an order is for the batch as it is."""
    names = project.analysis.called(call, scope)
    if names & PYTHON_DRAWS or {of_common_stream(name) for name in names} & ORDERS:
        return False
    sizes = [keyword.value for keyword in call.keywords if keyword.arg in ("size", "shape")]
    sizes += [argument for argument in call.args if isinstance(argument, (ast.Tuple, ast.List))]
    if names & NUMPY_DRAWS and not sizes:
        return bool(call.args) and last_name(call) in ("rand", "randn", "random_sample")
    given = next(iter([*sizes, *call.args]), None)
    first = given.elts[0] if isinstance(given, (ast.Tuple, ast.List)) and given.elts else given
    return not (isinstance(first, ast.Constant) and first.value == 1)


def given_to_draw(call: ast.Call) -> list[ast.expr]:
    """Return what a draw gets its shape from: its arguments, or the tensor that it fills."""
    filled = [call.func.value] if isinstance(call.func, ast.Attribute) and call.func.attr in DRAWS_IN_PLACE else []
    return [*filled, *call.args, *(keyword.value for keyword in call.keywords)]


def _given_to_layer(project: Project, call: ast.Call, scope: Scope) -> list[ast.expr] | None:
    """Return what such a call draws for, [] where it draws once for a batch in any case; None for other calls."""
    names = project.analysis.called(call, scope)
    made = [value for value in project.analysis.evaluate(call.func, scope) if isinstance(value, Result)]
    builders = {value.builder: value.call for value in made}
    if _drops_batch(names, call) or any(_drops_batch({name}, builder) for name, builder in builders.items()):
        return []
    if any(name.startswith(DISTRIBUTIONS) and name.rpartition(".")[2] in SAMPLES for name in names):
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        return [*receiver, *call.args, *(keyword.value for keyword in call.keywords)]
    is_on = not _is_off(call) and not any(_is_off(builder) for builder in builders.values())
    if is_on and (names & (DROPOUT_FUNCTIONS | GUMBEL) or builders.keys() & DROPOUT):
        given = next(
            (argument_for(call, [name], name) for name in ("input", "logits") if call.args or call.keywords), None
        )
        return [given] if given is not None else None
    return None


def _drops_batch(names: set[str], call: ast.Call) -> bool:
    """Return whether this drops, or is made to drop, all samples of a batch together: StochasticDepth(p, "batch")."""
    if names.isdisjoint(DRAWS_FOR_BATCH):
        return False
    texts = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(part, ast.Constant) and part.value == "batch" for part in texts)


def _is_off(call: ast.Call) -> bool:
    """Return whether a layer or a function is told to drop nothing: p=0.0, training=False."""
    rate, training = argument_for(call, ["input", "p"], "p"), argument_for(call, ["input", "p", "training"], "training")
    if isinstance(training, ast.Constant) and training.value is False:
        return True
    return isinstance(rate, ast.Constant) and rate.value == 0


def _follows_number(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an argument of a draw follows the samples of a batch: not its device, or the size of one row."""
    from ..losses.gathering.gathered import reader_of_values  # which reads draws

    if isinstance(node, ast.Call) and last_name(node) in NEW:  # x.new_empty(1, n), of its sizes alone
        return any(_follows_number(project, part, scope) for part in node.args)
    if isinstance(node, ast.Call) and last_name(node).endswith("_like") and node.args:
        return _follows_number(project, node.args[0], scope)
    if not follows_batch(project, node, scope):
        return False
    reader = reader_of_values(project)
    if isinstance(node, ast.Subscript) and _is_of_first(node.slice):
        return reader.value(node.value, scope).kind not in ROWS
    return reader.value(node, scope).kind != "fixed"


def _is_of_first(index: ast.expr) -> bool:
    """Return whether an index takes rows whose number is written: x[0], x[:1]."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if isinstance(first, ast.Slice):
        return isinstance(first.upper, ast.Constant) and first.step is None
    return isinstance(first, ast.Constant) and type(first.value) is int


def follows_batch(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is computed from a batch, from its shape, or from a rank's part of a batch size.

    A function that is not called is not: random.choice([lambda out, y: ..., ...]).
    """
    start = [Origin(node, scope)]
    found = origins(
        project.analysis, start, lambda o: [] if isinstance(o.node, ast.Lambda) else inputs(project.analysis, o)
    )
    parts = [(part, o.scope) for o in found for part in nodes_in(o.node) if isinstance(part, ast.expr)]
    calls = [(part, where) for part, where in parts if isinstance(part, ast.Call)]
    is_of_rank = any(project.analysis.called(*place) & OWN_BATCH_SIZES for place in calls)
    return is_of_rank or any(p in project.batch_sizes or project.batch_values.sources_of(*p) for p in parts)


def _is_trained_on(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether the loss is computed from what a call gives, or from the tensor that it fills."""
    used, filled = losses_from(project)
    is_in_place = isinstance(call.func, ast.Attribute) and call.func.attr in DRAWS_IN_PLACE
    receiver = call.func.value if is_in_place else None  # type: ignore[attr-defined]
    while isinstance(receiver, ast.Attribute) and receiver.attr == "data":
        receiver = receiver.value
    return call in used or (receiver is not None and (ast.unparse(receiver), scope) in filled)


def losses_from(project: Project) -> tuple[set[ast.AST], set[tuple[str, Scope]]]:
    """Return the calls, and the variables as they are written, that the losses are computed from, looked for once."""
    return project.analysis.fact("what the losses are computed from", lambda: _find_used(project))


def _find_used(project: Project) -> tuple[set[ast.AST], set[tuple[str, Scope]]]:
    calls: set[ast.AST] = set()
    names: set[tuple[str, Scope]] = set()
    starts = [Origin(*place) for path in project.paths for place in loss_expressions(path)]
    while starts:
        found = origins(project.analysis, starts, partial(onward, project))
        parts = [(part, o.scope) for o in found for part in read(project, o.node, o.scope)]
        seen = {(ast.unparse(part), scope) for part, scope in parts if isinstance(part, (ast.Name, ast.Attribute))}
        calls.update(part for part, _ in parts if isinstance(part, ast.Call))
        starts = [Origin(index, scope) for index, scope in _places_set(project, seen - names)]
        names |= seen
    return calls, names


def _places_set(project: Project, names: set[tuple[str, Scope]]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what chooses the entries of variables that are set: `k` of mask[:k] = 1."""
    for node, scope in project.in_batches:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Subscript) and (ast.unparse(target.value), scope) in names:
                yield from ((part, scope) for part in walk(target.slice) if isinstance(part, (ast.Name, ast.Call)))
