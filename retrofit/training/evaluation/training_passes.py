"""Passes over a training loader that may be for a training: by what is kept of the batches, or by what is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from retrofit.analysis.calls import is_method, last_name, returns_of
from retrofit.analysis.flow.operands import computed_from, inputs, operands
from retrofit.analysis.flow.reachability import calls_within, known_scopes, reached_calls
from retrofit.analysis.flow.sources import Origin, closure, origins, sources, yielded
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import ADDS_ALL, ADDS_ONE
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance

from ..data.next_calls import Use
from ..data.shapes import is_about_shape
from ..loops import backward_calls
from ..losses.reductions.axes import axes_of
from ..torch_api.data import LOADERS
from ..torch_api.tensors import EXTREMES, REDUCTIONS

if TYPE_CHECKING:
    from retrofit.training import Project

Entered = tuple[Origin, Optional[ast.Call]]  # with the call by which its function was come to, if that is known
GIVES = frozenset({"__iter__", "__next__", "next"})
SENDS = frozenset({"put", "put_nowait", "send", "submit"})
STEPS = frozenset({"step", "backward"})
PUTTING = ADDS_ONE | ADDS_ALL
QUANTILES = frozenset({"quantile", "percentile"})  # with the share before the axis
OVER_SAMPLES = REDUCTIONS | EXTREMES | QUANTILES | {"bincount", "item"}
ASKS = frozenset({"zero_grad", "state_dict", "train", "eval", "print", "isinstance", "len"})  # of an optimizer


def keeps_for_training(project: Project, use: Use) -> bool:
    """Return whether the training's batches can be those of a pass: it fills a buffer, a list, a replay memory."""
    return use.expression in project.analysis.fact("kept batches", lambda: {*_batches_from(project)})


def is_handed_on(project: Project, use: Use) -> bool:
    """Return whether a function, or a class, hands on the batches that it draws, and others may train with them."""
    functions = (use.scope.enclosing_class() or use.scope).walk() if use.scope.is_function else ()
    starts = [start for scope in functions if scope.is_function for start in _handed(scope)]
    return use.expression in _passed_from(project, starts)


def steps(project: Project, use: Use) -> bool:
    """Return whether a pass steps or goes backward, by something that was not found as a training."""
    return any(last_name(call) in STEPS for call, _ in _calls_in(project, use))


def may_step(project: Project, use: Use) -> bool:
    """Return whether a pass calls something that is not read, and that has an optimizer: `trainer.train_on(batch)`."""
    return any(_is_with_optimizer(project, *place) for place in _calls_in(project, use))


def _is_with_optimizer(project: Project, call: ast.Call, scope: Scope) -> bool:
    analysis = project.analysis
    if last_name(call) in ASKS or analysis.functions_called(call, scope):
        return False
    made = {optimizer.call for optimizer in project.optimizers}
    starts = [Origin(part, scope) for part in operands(call)]
    return any(origin.node in made for origin in origins(analysis, starts, lambda o: _holding(project, o)))


def _calls_in(project: Project, use: Use) -> Iterator[tuple[ast.Call, Scope]]:
    area: ast.AST = use.loop or use.expression
    for outer in use.scope.source.ancestors(use.expression) if use.loop is None else ():
        if isinstance(outer, ast.stmt):
            break
        area = outer
    for call in walk(area):
        if isinstance(call, ast.Call):
            yield from calls_within(project.analysis, call, use.scope)


def _holding(project: Project, origin: Origin) -> list[Origin] | None:
    """Return what an object is made of, which it may use later; None where the usual sources say it."""
    if isinstance(origin.node, ast.Attribute) and not origin.keys:
        return [*sources(project.analysis, origin)] or [origin.to(origin.node.value)]  # a method of it
    if not isinstance(origin.node, ast.Call) or origin.keys:
        return None
    if project.analysis.functions_called(origin.node, origin.scope) and sources(project.analysis, origin):
        return None
    parts = [origin.to(part) for part in operands(origin.node) if part is not origin.node.func]
    values = project.analysis.evaluate(origin.node, origin.scope)
    kinds = [kind for v in values if isinstance(v, Instance) for kind in project.analysis.classes.mro(v.scope)]
    return [*sources(project.analysis, origin), *parts, *(part for kind in kinds for part in _attributes(kind))]


def _attributes(kind: Scope) -> Iterator[Origin]:
    """Yield what the methods of a class set attributes to: self.optimizer = Adam(...)."""
    for method in (scope for scope in kind.children if scope.is_function):
        for node in own_nodes(method.node).of(ast.Assign):
            if isinstance(node.targets[0], ast.Attribute):
                yield Origin(node.value, method)


def _batches_from(project: Project) -> Iterator[ast.AST]:
    """Yield the expressions that batches of the training come from, past what is computed of many samples at once."""
    starts = [
        Origin(loop.iter, frame.scope)
        for path in project.paths
        for loop, frame in path.loops
        if isinstance(loop, (ast.For, ast.AsyncFor))
    ]
    within = project.nodes_in_batches
    for model in project.models:
        for run in model.calls:
            starts += [Origin(part, run.scope) for part in operands(run.call) if run.call in within]
    for call, scope in reached_calls(project.analysis):
        starts += [Origin(part, scope) for part in operands(call) if _is_of_unread(project, call, scope)]
    reached = known_scopes(project.analysis)
    for call, scope in backward_calls(project.analysis):
        if call not in within and scope in reached:  # in no loop that was found: by recursion, by a timer
            yield from (origin.node for origin in computed_from(project.analysis, call, scope, stored=True))
    yield from _passed_from(project, starts)


def _passed_from(project: Project, starts: list[Origin]) -> Iterator[ast.AST]:
    """Yield all that is passed on to some expressions.

    What a call gives is computed from what this call gives the function, and not from what others do.
    """

    def step(item: Entered) -> Iterator[Entered]:
        origin, call = item
        for found in _passed_on(project, origin):
            if found.scope is origin.scope:
                yield found, call
            elif isinstance(origin.node, ast.Call):
                yield found, origin.node
            elif call is None or not _is_parameter(origin) or call in found.scope.source.ancestors(found.node):
                yield found, None

    first: list[Entered] = [(start, None) for start in starts]
    yield from (origin.node for origin, _ in closure(first, step))


def _is_parameter(origin: Origin) -> bool:
    node, bindings = origin.node, origin.scope.bindings
    return isinstance(node, ast.Name) and any(b.kind == "parameter" for b in bindings.get(node.id, ()))


def _handed(scope: Scope) -> Iterator[Origin]:
    """Yield what a function sends: queue.put(batch), and what it gives one by one."""
    yield from _given_one_by_one(scope)
    for node in own_nodes(scope.node).of(ast.Call):
        if last_name(node) in SENDS:
            yield from (Origin(part, scope) for part in operands(node) if part is not node.func)


def _given_one_by_one(scope: Scope) -> Iterator[Origin]:
    """Yield what a function yields, and what a method returns that gives an iterator or its next entry."""
    yield from yielded(scope)
    if is_method(scope) and scope.node.name in GIVES:  # type: ignore[union-attr]
        yield from (Origin(value, scope) for value in returns_of(scope.node))  # type: ignore[arg-type]


def _is_of_unread(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call outside torch may train with what it gets: trainer.fit(kept)."""
    names = project.analysis.called(call, scope)
    return not any(name.startswith("torch.") for name in names) and _is_with_optimizer(project, call, scope)


def _passed_on(project: Project, origin: Origin) -> list[Origin]:
    node, scope = origin.node, origin.scope
    is_split = project.draws.is_used and node in project.draws.nodes | project.draws.calls
    if is_about_shape(node) or is_split:
        return []
    if isinstance(node, ast.Call):
        is_loader = bool(project.analysis.called(node, scope) & LOADERS)  # of all samples, which is sharded itself
        if is_loader or _is_over_samples(project, node, scope):
            return []
        if any(run.call is node for model in project.models for run in model.calls):
            return [origin.to(part, keys=()) for part in operands(node)]  # its layers hand on what any call gave them
    found = [*inputs(project.analysis, origin, stored=not _stores_itself(project, node, scope))]
    if isinstance(node, ast.Call) and origin.keys and not project.analysis.functions_called(node, scope):
        found += [origin.to(part, keys=()) for part in operands(node)]
    return [*found, *_iterated(project, origin)] if origin.keys else found


def _iterated(project: Project, origin: Origin) -> Iterator[Origin]:
    """Yield what an object of the project gives to a loop that goes through it."""
    values = project.analysis.evaluate(origin.node, origin.scope) if isinstance(origin.node, ast.expr) else ()
    for kind in [value.scope for value in values if isinstance(value, Instance)]:
        for method in [project.analysis.classes.method(kind, name) for name in GIVES]:
            yield from _given_one_by_one(method.scope) if method is not None else ()


def _stores_itself(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether the project says what an object does with what it is given: scaler.update(x)."""
    values = project.analysis.evaluate(node, scope) if isinstance(node, ast.expr) else ()
    kinds = [value.scope for value in values if isinstance(value, Instance)]
    return any(project.analysis.classes.method(kind, name) for kind in kinds for name in PUTTING)


def _is_over_samples(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call makes one value of many samples: x.mean(0), and not x.mean(dim=1)."""
    name = last_name(call)
    if name not in OVER_SAMPLES or isinstance(call.func, ast.Name):
        return name in OVER_SAMPLES and not project.analysis.functions_called(call, scope)
    rest = call.args[1:] if project.analysis.called(call, scope) else call.args
    axes, _ = axes_of(call, rest[1:] if name in QUANTILES else rest, scope)
    return axes is None or 0 in axes
