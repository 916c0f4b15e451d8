"""Choices that a training makes at random, one for each batch: of a branch, of a loss, of how often something is done.

One process draws one for the batch. Each of several draws its own, for its part of the batch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import Places, children
from retrofit.analysis.scopes import Scope, own_calls
from retrofit.analysis.values.kinds import Item, name_of
from retrofit.training.torch_api.draws import ORDERS
from retrofit.training.torch_api.randomness import PICKS
from retrofit.training.torch_api.runtime import FROM_MAIN

from ..data import shapes
from ..data.random_draws import draws_in_loop
from ..figures.together import gives_the_same

if TYPE_CHECKING:
    from retrofit.training import Project

BRANCHES = (ast.If, ast.While, ast.IfExp)
MATCH = tuple(getattr(ast, name) for name in ("Match",) if hasattr(ast, name))  # Python 3.9 has no such class
CHOOSING = (*BRANCHES, *MATCH, ast.BoolOp, ast.For, ast.Call)
GIVES_TURNS = frozenset({"range"}.union(name.rpartition(".")[2] for name in ORDERS | PICKS))  # for i in permutation(3)


@answered_once
def drawn_choices(project: Project) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions, drawn at random, by which the training on a batch chooses what it does.

    Not those in a loop over the samples, of which each has a choice of its own on any number of processes.
    """
    return list(_drawn_choices(project))


def _drawn_choices(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    seen: set[ast.AST] = set()
    for node, scope in run_for_batches(project).of(*CHOOSING):
        if node in seen:
            continue
        seen.add(node)
        for chosen in (*_chosen_by(node), *_chosen_objects(project, node, scope)):
            if _is_drawn(project, chosen, scope) and not is_for_each(project, node, scope):
                yield chosen, scope


def is_for_each(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a node may be run for each sample of a batch: not for each position that these have."""
    from ..losses.reductions.reduction import plain_reader

    is_in_loop = bool(project.batch_values.loops_around(node, scope))
    return is_in_loop and plain_reader(project).samples.may_be_within(node, scope)


def run_for_batches(project: Project) -> Places[Scope]:
    """Return the nodes that are run for a batch, those around the steps of its parts or tasks too."""
    loops = {(loop, frame.scope) for path in project.paths for loop, frame in path.loops}
    bodies = [(part, scope) for loop, scope in loops if loop in project.batch_values.loops for part in loop.body]
    return Places(dict.fromkeys([*project.in_batches, *nodes_run(project.analysis, bodies)]))


def _chosen_by(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a node that decide what is run, of those that can be a number or a function."""
    if isinstance(node, BRANCHES):
        yield node.test
    elif isinstance(node, MATCH):
        yield node.subject  # type: ignore[attr-defined]
    elif isinstance(node, ast.BoolOp) and not isinstance(node.values[-1], ast.Compare):
        yield from node.values[:-1]  # use_mixup() and mix(images)
    elif isinstance(node, ast.For) and last_name(node.iter) in GIVES_TURNS:
        yield node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Subscript, ast.Call)):
        yield node.func  # random.choice(losses)(outputs, labels)


def _chosen_objects(project: Project, node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """Yield the object of a method that is one of several: random.choice(losses).compute(outputs)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    owner = node.func.value
    values = project.analysis.evaluate(owner, scope)
    is_picked = any(name_of(value.base if isinstance(value, Item) else value) in PICKS for value in values)
    if is_picked or (isinstance(owner, ast.Subscript) and project.analysis.functions_called(node, scope)):
        yield owner


def _is_drawn(project: Project, node: ast.expr, scope: Scope) -> bool:
    if not project.analysis.fact("has draws", lambda: _has_draws(project)):
        return False
    calls = list(_calls_read(project, node, scope))
    if not any(draws_in_loop(project, *call) for call in calls):
        return False
    is_same = any(gives_the_same(project.analysis.called(*call)) for call in calls)
    return not is_same and not project.batch_values.sources_of(node, scope)


def _has_draws(project: Project) -> bool:
    """Return whether anything draws in the training at all: a search for each choice is long."""
    scopes = project.analysis.scopes()
    return any(draws_in_loop(project, call, scope) for scope in scopes for call in own_calls(scope.node))


def _calls_read(project: Project, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls in what an expression is computed from, each once."""
    seen: set[tuple[ast.AST, Scope]] = set()
    for origin in origins(project.analysis, [Origin(node, scope)], partial(onward, project)):
        parts = read(project, origin.node, origin.scope, seen)
        yield from ((part, origin.scope) for part in parts if isinstance(part, ast.Call))


def onward(project: Project, origin: Origin) -> list[Origin]:
    """Return what an expression is computed from; how large something is does not depend on its numbers."""
    is_end = shapes.is_about_shape(origin.node) or _is_of_main(project, origin.node, origin.scope)
    return [] if is_end else [*inputs(project.analysis, origin)]


def read(
    project: Project, node: ast.AST, scope: Scope, seen: set[tuple[ast.AST, Scope]] | None = None
) -> Iterator[ast.AST]:
    """Yield the nodes in an expression that tell of more than a shape, and of what rank 0 has given to all.

    But for those that have been `seen` in others.
    """
    seen = set() if seen is None else seen
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if (part, scope) not in seen and not shapes.is_about_shape(part):
            seen.add((part, scope))
            yield part
            waiting += () if _is_of_main(project, part, scope) else reversed(children(part))


def _is_of_main(project: Project, node: ast.AST, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and bool(project.analysis.called(node, scope) & FROM_MAIN)
