"""Batches drawn one at a time, by `next(batches)`: in a loop, or in a function that a loop calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import CallSite, is_method, returns_of
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.calls.arguments import handed_in
from retrofit.analysis.flow.calls.graph import nearest_on_paths
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance

from ..loops import LOOPS, LoopNode, Path
from ..steps.non_training_branches import is_aside

TRAIN, EVALUATION = "train", "evaluation"
PEEK = "peek"  # a single batch, outside any loop


@dataclass(frozen=True)
class Use:
    """One place that draws batches: the expression that is iterated, and whether that trains.

    `call`: the next() that draws a single one; what `loop` goes through has no batches then.
    """

    expression: ast.expr
    scope: Scope
    role: str
    loop: LoopNode | None = None
    call: ast.Call | None = None


def drawn_by_next(analysis: Analysis, call: ast.Call, paths: list[Path]) -> Iterator[Use]:
    """Yield what `next(batches)` draws, for every loop that it is a part of, or that calls the function around it.

    A loop of that function is passed over where the innermost loops of the training get what it draws; so is a loop in
    one of these, over several loaders, of which the loss has what is drawn.
    """
    training_loops = {loop for path in paths for loop, _ in path.loops}
    innermost = {path.loops[0][0] for path in paths}
    source = next(source for source in analysis.modules.sources.values() if call in source.parents)
    scope, drawn = analysis.scope_at(source, call), call.args[0]
    loop = _step_with(analysis, call, paths) or _loop_around(source, call)
    if loop is not None and (loop in training_loops or not _is_returned(analysis, call, scope)):
        yield Use(drawn, scope, _role(source, call, loop, training_loops), loop, call)
        return
    # An object that draws its first batch when it is made is used where its methods are called.
    loops = list(_loops_calling(analysis, call, scope, loop, made=False))
    loops = loops or list(_loops_calling(analysis, call, scope, loop, made=True))
    uses = [
        Use(expression, where, _role(site.scope.source, site.call, outer, training_loops), outer, call)
        for site, outer in loops
        if loop is None or outer in innermost
        for expression, where in _of_receiver(analysis, site, drawn, scope)
    ]
    yield from uses or [Use(drawn, scope, PEEK if loop is None else EVALUATION, loop, call)]


def _step_with(analysis: Analysis, call: ast.Call, paths: list[Path]) -> LoopNode | None:
    """Return the loop of a training around a loop in which each of several loaders gives a batch of the same step."""
    for path in paths:
        loop, frame = path.loops[0]
        outer = list(frame.scope.source.ancestors(call))
        inside = outer[: outer.index(loop)] if loop in outer else []
        if any(isinstance(part, LOOPS) for part in inside) and not any(isinstance(part, FUNCTIONS) for part in inside):
            start = Origin(path.frames[0].node.func.value, path.frames[0].scope)  # type: ignore[attr-defined]
            found = origins(analysis, [start], lambda origin: list(inputs(analysis, origin, stored=True)))
            if any(origin.node is call for origin in found):
                return loop
    return None


def _is_returned(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a function returns what a call gives, by itself or with more: one batch of several loaders."""
    if not scope.is_function:
        return False
    returned = [Origin(value, scope) for value in returns_of(scope.node)]  # type: ignore[arg-type]
    found = origins(analysis, returned, lambda origin: list(inputs(analysis, origin, stored=True)))
    return any(origin.node is call for origin in found)


def _loop_around(source: Source, node: ast.AST) -> LoopNode | None:
    for outer in source.ancestors(node):
        if isinstance(outer, LOOPS):
            return outer
        if isinstance(outer, FUNCTIONS):
            return None
    return None


def _role(source: Source, node: ast.AST, loop: LoopNode, training_loops: set[LoopNode]) -> str:
    return TRAIN if loop in training_loops and not is_aside(source, node, loop) else EVALUATION


def _loops_calling(
    analysis: Analysis, call: ast.Call, scope: Scope, own: LoopNode | None, made: bool
) -> Iterator[tuple[CallSite, LoopNode]]:
    """Yield the calls in loops of a function, or of others of its object and module that call it: `source.next()`.

    `own` is the loop in the function itself. With `made` also those by which an object is made.
    """

    def is_in_loop(node: ast.AST, where: Scope) -> bool:
        return _loop_around(where.source, node) not in (None, own)

    def leads_on(site: CallSite) -> bool:
        if not made and any(isinstance(value, Instance) for value in analysis.evaluate(site.call, site.scope)):
            return False
        is_plain = not isinstance(site.call.func, ast.Attribute)
        return is_plain or _is_of_itself(site) or is_in_loop(site.call, site.scope)

    for found in nearest_on_paths(analysis, call, scope, is_in_loop, leads_on):
        if found is not None:
            site = CallSite(*found)  # type: ignore[arg-type]  # the call itself is in no loop
            yield site, _loop_around(site.scope.source, site.call)  # type: ignore[misc]


def _is_of_itself(site: CallSite) -> bool:
    """Return whether a method is called of the same object: `self.preload()`."""
    function, receiver = site.scope.node, site.call.func.value  # type: ignore[attr-defined]
    if not isinstance(function, FUNCTIONS) or not is_method(site.scope) or not isinstance(receiver, ast.Name):
        return False
    return not isinstance(function, ast.Lambda) and [a.arg for a in function.args.args[:1]] == [receiver.id]


def _of_receiver(analysis: Analysis, site: CallSite, drawn: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield which loaders were given to the object whose method is called, or that is made; one class may have many.

    Of a function that draws from its argument, what this call gives it.
    """
    argument = handed_in(analysis, site.call, site.scope, drawn, scope)
    if argument is not None:
        yield argument, site.scope
        return
    variables = variables_of(analysis, drawn, scope)
    receiver = site.call.func.value if isinstance(site.call.func, ast.Attribute) else None
    values = [*analysis.evaluate(site.call, site.scope), *analysis.evaluate(receiver, site.scope)]
    builders = [value.call for value in values if isinstance(value, Instance)]
    given = [
        (argument, where)
        for call in builders
        if call is not None
        for where in [_scope_of(analysis, call)]
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        if variables_of(analysis, argument, where) & variables
    ]
    yield from given or [(drawn, scope)]


def _scope_of(analysis: Analysis, call: ast.Call) -> Scope:
    source = next(source for source in analysis.modules.sources.values() if call in source.parents)
    return analysis.scope_at(source, call)
