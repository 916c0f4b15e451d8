"""Expressions that a training loss is computed by, through names, sums, functions and modules, from its backward."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import Union

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.bindings import class_of_own, given_for
from retrofit.analysis.scopes import Binding, Scope, own_nodes
from retrofit.analysis.values.containers import entries_at, put_into
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction, Result
from retrofit.training.torch_api.runtime import DISTRIBUTE_CRITERION
from retrofit.training.torch_api.tensors import JOINS, NONLINEAR, SUMS_OF_SEVERAL

from ..loops import Path
from .terms import terms_at

Part = Union[ast.expr, ast.AugAssign]
Keys = tuple[object, ...]  # into tuples and dicts, outermost first; None: any
MOST_STEPS = 400
MOST_KEYS = 4
JOINING = JOINS | SUMS_OF_SEVERAL  # functions of several losses
SCALING = {"scale", "scale_loss", "mean", "float"}
KNOWN = {"torch", "numpy", "math", "retrofit"}
SUMMING = (ast.Add, ast.Sub, ast.Mult)


def loss_parts(analysis: Analysis, path: Path) -> dict[tuple[Part, Scope], bool]:
    """Return the expressions that the loss of a backward call is made of, and the `loss /= n` on the way.

    Each with whether the loss is linear in it: not in what it takes the root of. What loss functions of torch are
    given is not part of it: neither the model's output nor the targets.
    """
    frame = path.frames[0]
    call = frame.node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    flow = _Flow(analysis)
    flow.visit(call.func.value, frame.scope)
    return flow.found


class _Flow:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.seen: set[tuple[ast.AST, Scope, Keys, bool]] = set()
        self.found: dict[tuple[Part, Scope], bool] = {}

    def visit(self, node: ast.expr, scope: Scope) -> None:
        waiting: deque[tuple[ast.expr, Scope, Keys, bool]] = deque([(node, scope, (), True)])
        while waiting and len(self.seen) < MOST_STEPS:
            step = waiting.popleft()  # what is near first: the way may lead on into the model
            if step in self.seen:
                continue
            self.seen.add(step)
            part, where, keys, linear = step
            self.found[part, where] = linear and self.found.get((part, where), True)
            linear = linear and not _is_nonlinear(part) and not self._is_unknown(part, where)
            sources = self._sources(part, where, keys)
            waiting += [(inner, outer, path[:MOST_KEYS], linear) for inner, outer, path in sources]

    def _sources(self, node: ast.expr, scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        if isinstance(node, ast.Name):
            owner, bindings = scope.find(node.id) or (scope, [])
            yield from self._bound(bindings, owner, keys)
            yield from self._put_in(node, owner, keys)
        elif isinstance(node, ast.Attribute):
            yield from self._of_attribute(node, scope, keys)
        elif isinstance(node, ast.BinOp):
            yield node.left, scope, keys
            if isinstance(node.op, SUMMING):
                yield node.right, scope, keys
        elif isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            yield node.value, scope, (key, *keys)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
            yield from ((part, scope, keys[1:]) for part in entries_at(node, keys[0] if keys else None))
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, scope, keys)
        elif isinstance(node, ast.IfExp):
            yield from ((part, scope, keys) for part in (node.body, node.orelse))
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            yield node.elt, scope, keys[1:]
        elif isinstance(node, ast.UnaryOp):
            yield node.operand, scope, keys

    def _bound(self, bindings: list[Binding], scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        for binding in bindings:
            if isinstance(binding.node, ast.AugAssign):
                yield from self._changed(binding.node, scope, keys)
            elif binding.kind == "parameter":
                yield from ((*place, keys) for place in given_for(self.analysis, binding.name, scope))
            elif binding.value is not None:
                element: Keys = (None,) if binding.kind == "item" else ()
                yield binding.value, scope, (*element, *binding.path, *keys)

    def _changed(self, node: ast.AugAssign, scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        self.found.setdefault((node, scope), True)
        if isinstance(node.op, SUMMING):
            yield node.value, scope, keys

    def _put_in(self, node: ast.Name, scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        """Yield what is put into a list or a dict: losses.append(loss), losses["box"] = loss."""
        for key, value in put_into(node.id, scope) if keys else ():
            if keys[0] is None or not isinstance(key, ast.Constant) or key.value == keys[0]:
                yield value, scope, keys[1:]

    def _of_attribute(self, node: ast.Attribute, scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        owner = class_of_own(node, scope)
        if owner is None:
            return
        for binding, where in self.analysis.classes.attribute_bindings(owner, node.attr):
            yield from self._bound([binding], where, keys)
        text = ast.unparse(node)
        for where in owner.walk():
            for part in own_nodes(where.node):
                if isinstance(part, ast.AugAssign) and ast.unparse(part.target) == text:
                    yield from self._changed(part, where, keys)

    def _of_call(self, node: ast.Call, scope: Scope, keys: Keys) -> Iterator[tuple[ast.expr, Scope, Keys]]:
        functions = functions_run(self.analysis, node, scope)
        for function in functions:
            yield from ((value, function.scope, keys) for value in returns_of(function.node))
        if functions or terms_at(self.analysis, node, scope) or self._is_distributed_criterion(node, scope):
            return
        if isinstance(node.func, ast.Attribute) and not self.analysis.named(node.func.value, scope) & {"torch"}:
            is_view = node.func.attr in ("values", "items")
            yield node.func.value, scope, (None, *keys) if is_view else keys  # losses.values(), loss.mean()
        if node.args:  # sum(losses), torch.stack(losses), scaler.scale(loss)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield node.args[0], scope, (None, *keys) if name in JOINING else keys

    def _is_distributed_criterion(self, node: ast.Call, scope: Scope) -> bool:
        values = self.analysis.evaluate(node.func, scope)
        return any(isinstance(value, Result) and value.builder == DISTRIBUTE_CRITERION for value in values)

    def _is_unknown(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether it is unknown if the result of this call grows with what it is given."""
        if not isinstance(node, ast.Call) or not node.args or functions_run(self.analysis, node, scope):
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        names = self.analysis.called(node, scope)
        return name not in JOINING | SCALING and not any(full.partition(".")[0] in KNOWN for full in names)


def _is_nonlinear(node: ast.expr) -> bool:
    """Return whether this is a function of a loss that is not linear: loss ** 2, torch.sqrt(loss), loss.exp()."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Pow)
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name in NONLINEAR


def functions_run(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is: no constructor."""
    found: list[LocalFunction | None] = []
    for value in analysis.evaluate(node.func, scope):
        inner = (
            analysis.evaluate(value.call.args[0], value.scope)
            if isinstance(value, Result) and value.is_partial
            else [value]
        )
        for function in inner:
            if isinstance(function, LocalFunction):
                found.append(function)
            elif isinstance(function, Instance):
                found += [analysis.classes.method(function.scope, name) for name in ("__call__", "forward")]
    return [function for function in found if function]
