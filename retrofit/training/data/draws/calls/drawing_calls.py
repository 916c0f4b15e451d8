"""Functions and objects of a project that draw a batch by themselves, of as many samples as they are told."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from, inputs
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.sources import Origin, functions_run, origins
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.randomness import DRAWS

from ....loops import Path
from ..filled import changed_by
from ..sized_draws import names_of
from ..slices.cut_batches import is_of_rollout
from ..slices.sample_rows import NAMED_AS_BATCH
from ..without_batch import follows_loop
from .samplers import sizes_of_sampler

if TYPE_CHECKING:
    from .... import Project

Place = tuple[ast.Call, Scope]
Found = tuple[ast.Call, Scope, tuple[tuple[ast.expr, Scope], ...]]


def drawing_call(project: Project, path: Path) -> Found | None:
    """Return the one call of a training loop that draws the samples of a batch, and where it is told how many."""
    loop, outer = path.loops[0]
    calls = [
        (node, scope, sizes)
        for node, scope in _followed(project, path)
        if isinstance(node, ast.Call) and scope is outer.scope and loop in scope.source.ancestors(node)
        if (sizes := _sizes(project, node, scope))
    ]
    found = list(dict.fromkeys(calls))
    if len(found) != 1 or is_of_rollout(project):
        return None
    ((call, scope, sizes),) = found
    given, in_loops = [*call.args, *(k.value for k in call.keywords)], project.nodes_in_loops
    follows = any(follows_loop(project, part, scope, in_loops) for part in given)  # it cuts its samples by that
    return None if follows else (call, scope, sizes)


def _followed(project: Project, path: Path) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield what the loss is computed from."""
    frame = path.frames[0]
    start = Origin(frame.node.func.value, frame.scope)  # type: ignore[attr-defined]
    for origin in origins(project.analysis, [start], lambda origin: list(inputs(project.analysis, origin))):
        yield origin.node, origin.scope


def _sizes(project: Project, call: ast.Call, scope: Scope) -> tuple[tuple[ast.expr, Scope], ...]:
    """Return where a call is told how many samples to draw: in its arguments, or where its object was made."""
    size = _size(project, call, scope)
    return ((size, scope),) if size is not None else sizes_of_sampler(project, call, scope)


def _size(project: Project, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the argument that says how many samples a function draws, None for what draws none, or not for certain."""
    functions = functions_run(project.analysis, call, scope)
    models = {one.call for model in project.models for one in model.calls}
    if len(functions) != 1 or call in models or any(isinstance(part, ast.Starred) for part in call.args):
        return None
    (function,) = functions
    inside = list(calls_within(project.analysis, call, scope))[1:]
    draws = [place for place in inside if names_of(project.analysis, *place) & DRAWS]
    names = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
    names = names[1:] if names[:1] == ["self"] else names
    moves = [name for name in names if _moves_on(function, name)]
    within = {one: calls_within(project.analysis, one, where) for one, where in inside}
    leading = {one for one, places in within.items() if any(place in draws for place in places)}
    if not (draws or moves) or any(one in models for one, _ in inside) or _reads_filled(project, function, inside):
        return None
    given = {**dict(zip(names, call.args)), **{k.arg: k.value for k in call.keywords if k.arg}}
    is_size = [n for n in given if n in moves or NAMED_AS_BATCH.search(n) or _counts(function, n, leading)]
    size = given[is_size[0]] if len(is_size) == 1 else None
    if not isinstance(size, (ast.Constant, ast.Name, ast.Attribute)):
        return None
    return None if moves and _counts_steps(project, call, scope, size) else size


def _counts_steps(project: Project, call: ast.Call, scope: Scope, size: ast.expr) -> bool:
    """Return whether a loop around a call has as many steps as its size makes of the data: range(n // size)."""
    loops = [outer for outer in scope.source.ancestors(call) if isinstance(outer, ast.For)]
    counted = (origin.node for loop in loops for origin in computed_from(project.analysis, loop.iter, scope))
    read = (node for node in counted if isinstance(node, (ast.Name, ast.Attribute)))
    return any(ast.unparse(node) == ast.unparse(size) for node in read)


def _moves_on(function: LocalFunction, name: str) -> bool:
    """Return whether a method moves on by a parameter in what its object keeps: self.position += size."""
    return any(
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and isinstance(node.target, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in own_nodes(function.node)
    )


def _counts(function: LocalFunction, name: str, draws: Collection[ast.Call]) -> bool:
    """Return whether a function makes as many turns with a draw as a parameter says: for _ in range(n)."""
    for node in own_nodes(function.node):
        gone_through = node.iter if isinstance(node, (ast.For, ast.comprehension)) else None
        if isinstance(gone_through, ast.Call) and last_name(gone_through) == "range" and len(gone_through.args) == 1:
            count = gone_through.args[0]
            body = node if isinstance(node, ast.For) else function.scope.source.parents[node]
            if isinstance(count, ast.Name) and count.id == name:
                return any(part in draws for part in walk(body))
    return False


def _reads_filled(project: Project, function: LocalFunction, inside: Collection[Place]) -> bool:
    """Return whether a function, or what it calls, reads what the rest of the training fills: a replay buffer."""
    scopes = {
        function.scope,
        *(f.scope for call, where in inside for f in functions_run(project.analysis, call, where)),
    }
    filled = changed_by(project, [(node, scope) for node, scope in project.in_loops if scope not in scopes])
    return any(
        variables_of(project.analysis, part, scope) & filled
        for scope in scopes
        for part in own_nodes(scope.node)
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load)
    )
