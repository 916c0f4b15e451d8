"""Reads of a loss, or of a term of it, as a number in a training loop: to print, to log or to add it up."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import without_methods
from retrofit.analysis.flow.branches import branches_around, is_in_body
from retrofit.analysis.flow.name_uses import stored_names
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.scopes import own_nodes
from retrofit.analysis.values.inference import Analysis

from ..loops import LOOPS, Frame, exclude_each_other
from ..steps.non_training_branches import trains
from ..torch_api.tensors import COPIES
from .terms import terms_in


def reads_of_loss(analysis: Analysis, loss: ast.expr, frame: Frame) -> Iterator[ast.Name]:
    """Yield `loss` of loss.item(), loss.data.item() and float(loss) in a loop around the backward call.

    Or in a loop within it. `loss` is what backward is called on; of the terms that it is a sum of `.item()` counts.
    """
    names = names_of(loss)
    terms = terms_of(names, frame)
    for node in own_nodes(frame.scope.node).of(ast.Call):
        if len(node.args) == 1 and "float" in analysis.called(node, frame.scope):
            # A term that is not a tensor can be read so too.
            value, known = without_methods(node.args[0], COPIES), names
        elif not node.args and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            value, known = without_methods(node.func.value, COPIES), terms
        else:
            continue
        if isinstance(value, ast.Name) and value.id in known and _is_of_training(value, frame):
            yield value


def names_of(node: ast.expr) -> set[str]:
    """Return the loss in `loss.backward()`, `scaler.scale(loss).backward()` and `(loss := mean(x)).backward()`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.NamedExpr):
        return names_of(node.target)
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return names_of(node.args[0])
    return set()


def terms_of(losses: set[str], frame: Frame) -> set[str]:
    """Return the names of losses and of the terms that they are sums of, each of them a mean over the samples too."""

    def terms(name: str) -> set[str]:
        bindings = [b for b in frame.scope.bindings.get(name, []) if b.kind in ("value", "other") and not b.path]
        values = [b.node.value if isinstance(b.node, ast.AugAssign) else b.value for b in bindings]
        return {term for value in values if value is not None for term in terms_in(value)}

    return set(closure(losses, terms))


def _is_of_training(name: ast.Name, frame: Frame) -> bool:
    """Return whether a loss is that of the training: not one that an evaluation in a loop or aside computes."""
    source = frame.scope.source
    if _runs_at_another_time(name, frame):
        return False
    for branch in branches_around(source, name, frame.loops[0]) if frame.loops else ():
        if branch[0].lineno > getattr(frame.node, "lineno", 0) and name.id in stored_names(branch):
            return trains(branch)
    for outer in source.ancestors(name):
        if outer in frame.loops:
            return True
        if isinstance(outer, LOOPS) and name.id in stored_names([outer]):
            return False
    return False


def _runs_at_another_time(name: ast.Name, frame: Frame) -> bool:
    """Return whether a test lets only one of two places run, the backward call or a name: `phase == "val"`."""
    trains, reads = (dict(_tests_around(frame, node)) for node in (frame.node, name))
    if any(trains.get(test, holds) is not holds for test, holds in reads.items()):
        return True
    needed = [ast.parse(test, mode="eval").body for test, holds in trains.items() if holds]
    given = [ast.parse(test, mode="eval").body for test, holds in reads.items() if holds]
    return any(exclude_each_other(one, other) for one in needed for other in given)


def _tests_around(frame: Frame, node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the tests of the `if`s around a node in a function, as text, with whether they hold there."""
    inner = node
    for outer in frame.scope.source.ancestors(node):
        if outer is frame.scope.node:
            return
        if isinstance(outer, ast.If) and inner is not outer.test:
            yield ast.unparse(outer.test), is_in_body(outer, inner)
        inner = outer
