"""Gradients of a mean over the batch with respect to its samples: those of attacks, of inputs that are optimized.

The gradient of a sample is divided by the number of samples, of which a rank has a part of those of one process.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite, argument_for, last_name
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope, own_calls, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result, Value
from retrofit.training.data.batch_values import BATCH
from retrofit.training.torch_api.modules import GRADIENT_FUNCTIONS
from retrofit.training.torch_api.optimizers import ADAPTIVE
from retrofit.training.torch_api.runtime import PART_OF_MEAN
from retrofit.training.torch_api.tensors import OPERATORS, SHAPE_ATTRIBUTES, SHAPE_METHODS, WITHOUT_HISTORY

from .reductions import kinds
from .reductions.reduction import loss_kind

if TYPE_CHECKING:
    from retrofit.training import Project


WITHOUT_SCALE = frozenset({"sign", "sgn", "sign_", "normalize", "argmax", "argmin", "argsort", "topk", "sort"})
EMPTYING = frozenset({"zero_", "zero_grad", "item"})
HOMOGENEOUS = frozenset({
    "norm", "vector_norm", "abs", "view", "reshape", "flatten", "detach", "detach_", "clone", "sum", "mean", "max",
    "amax", "unsqueeze", "squeeze", "contiguous", "cpu", "cuda", "to", "float", "expand_as", "expand", "clamp",
    "clamp_min", "maximum", "permute", "transpose", "neg", "stack", "cat", "view_as", "where",
})  # fmt: skip
MIXED = float("nan")  # changes in another way; not equal to itself
SMALL = 1e-3  # a number that keeps a divisor from being 0


@dataclass(frozen=True)
class InputGradient:
    """A loss whose gradient with respect to samples is used with its scale.

    `is_alone`: its gradients with respect to weights are not used.
    """

    node: ast.AST  # the call that computes the gradient
    loss: ast.expr
    scope: Scope
    is_alone: bool


def input_gradients(project: Project) -> Iterator[InputGradient]:
    """Yield the means over a batch whose gradients with respect to its samples are used with their scale."""
    for node, scope in project.in_batches.of(ast.Call):
        if project.analysis.called(node, scope) & GRADIENT_FUNCTIONS:
            outputs, given = (argument_for(node, ["outputs", "inputs"], name) for name in ("outputs", "inputs"))
            read: list[ast.expr] = [node] if given is not None and _is_of_samples(project, given, scope) else []
        else:
            is_backward = isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
            outputs = node.func.value if is_backward else None  # type: ignore[attr-defined]
            read = _read_after(project, outputs, scope) if outputs is not None else []
        if outputs is not None and read and _is_mean(project, outputs, scope) and not is_scale_free(read, scope):
            is_alone = node in read or _is_emptied_after(project, node, scope)
            yield InputGradient(node, outputs, scope, is_alone)


def _is_mean(project: Project, node: ast.expr, scope: Scope) -> bool:
    if any(isinstance(part, ast.Call) and PART_OF_MEAN in project.analysis.called(part, scope) for part in walk(node)):
        return False  # it is that of one process already
    parts = loss_kind(project, node, scope).parts
    return kinds.MEAN in parts and not parts & {kinds.SUM, kinds.GLOBAL, kinds.UNKNOWN}


def _is_of_samples(project: Project, node: ast.expr, scope: Scope) -> bool:
    return BATCH in project.batch_values.sources_of(node, scope)


def _read_after(project: Project, loss: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return where the gradients of samples are read, of those that a loss is computed from: `delta.grad`.

    Or, where an optimizer of them makes a step by its size, the call of this step.
    """
    if not isinstance(loss, (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp)):
        return []
    names = _with_history(project.analysis, loss, scope)
    leaves = {binding for name in names for binding in live_bindings(name, scope)[1]}
    nodes = [node for node in own_nodes(scope.node).of(ast.Attribute) if node.attr == "grad"]
    read = [n for n in nodes if isinstance(n.ctx, ast.Load) and _is_of_leaves(project, n.value, scope, leaves)]
    return [*read, *_steps_of(project, leaves, scope)]


def _is_of_leaves(project: Project, node: ast.expr, scope: Scope, leaves: set[Binding]) -> bool:
    """Return whether a variable holds samples that a loss has a gradient for: not what it is set to later."""
    is_leaf = isinstance(node, ast.Name) and not leaves.isdisjoint(live_bindings(node, scope)[1])
    return is_leaf and _is_of_samples(project, node, scope)


def _steps_of(project: Project, leaves: set[Binding], scope: Scope) -> Iterator[ast.expr]:
    """Yield the steps of optimizers of samples, but for those that are as large for any gradient."""
    calls = own_calls(scope.node)
    made: set[Value] = set()
    for call in calls:
        given = getattr(argument_for(call, ["params"], "params"), "elts", [])
        is_own = bool(given) and all(_is_of_leaves(project, part, scope, leaves) for part in given)
        if is_own and not project.analysis.called(call, scope) & ADAPTIVE:
            made |= project.analysis.evaluate(call, scope)
    for call in calls if made else ():
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        if is_step and made & project.analysis.evaluate(call.func.value, scope):  # type: ignore[attr-defined]
            yield call


def _with_history(analysis: Analysis, loss: ast.expr, scope: Scope) -> Iterator[ast.Name]:
    """Yield the names that a loss of a function is computed from there, with a gradient."""

    def onward(origin: Origin) -> list[Origin]:
        node = origin.node.func if isinstance(origin.node, ast.Call) else origin.node
        if isinstance(node, ast.Attribute) and node.attr in WITHOUT_HISTORY | {"grad", "data"}:
            return []
        return [found for found in inputs(analysis, origin) if found.scope is scope]

    for origin in origins(analysis, [Origin(loss, scope)], onward):
        if isinstance(origin.node, ast.Name):
            yield origin.node


def _is_emptied_after(project: Project, backward: ast.Call, scope: Scope) -> bool:
    """Return whether the gradients of the weights are emptied before the next step: by a zero_grad() further down."""
    places = [(backward, scope), *((site.call, site.scope) for site in _sites(project.analysis, scope))]
    for node, where in places:
        own = {other for other in walk(where.source.statement(node))}
        for call in own_calls(where.node):
            is_empty = isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" and call not in own
            if is_empty and call.lineno > node.lineno and not _is_of_tensors(project.analysis, call, where):
                return True
    return False


def _sites(analysis: Analysis, scope: Scope) -> list[CallSite]:
    return analysis.callers(scope.node) if scope.is_function else []  # type: ignore[arg-type]


def _is_of_tensors(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether an optimizer that is emptied has tensors of its own: Adam([delta])."""
    values = analysis.evaluate(call.func.value, scope)  # type: ignore[attr-defined]
    given = [argument_for(value.call, ["params"], "params") for value in values if isinstance(value, Result)]
    return any(isinstance(part, (ast.List, ast.Tuple)) and part.elts for part in given)


def is_scale_free(starts: Collection[ast.expr], scope: Scope) -> bool:
    """Return whether nothing that a function computes from gradients, the expressions `starts`, has their scale."""
    known: dict[str, float] = {}
    for _ in range(2):  # what a loop sets is read in its next round
        for statement in own_nodes(scope.node):  # type: ignore[arg-type]
            if isinstance(statement, ast.stmt) and not _is_free(statement, _Degrees(starts, known)):
                return False
    return True


def _is_free(statement: ast.stmt, degrees: _Degrees) -> bool:
    """Return whether a statement uses nothing with the scale of a gradient, but to set a variable, which is noted."""
    if isinstance(statement, ast.Assign):
        degree = degrees.of(statement.value)
        for target in statement.targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            if degree and not all(isinstance(part, ast.Name) for part in parts):
                return False
            degrees.known.update({p.id: degree or 0.0 for p in parts if isinstance(p, ast.Name) and degree is not None})
        return degree is None or degree == degree
    if isinstance(statement, ast.AugAssign):
        whole = ast.BinOp(_loaded(statement.target), statement.op, statement.value)
        degree = degrees.of(whole)
        if isinstance(statement.target, ast.Name) and degree is not None:
            degrees.known[statement.target.id] = degree
        return not degree or (isinstance(statement.target, ast.Name) and degree == degree)
    values = [getattr(statement, name, None) for name in ("value", "test", "iter", "exc")]
    return all(not degrees.of(value) for value in values if isinstance(value, ast.expr))


def _loaded(target: ast.expr) -> ast.expr:
    return ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target


class _Degrees:
    """The power of a factor of the gradients by which an expression is multiplied, None where none is in it."""

    def __init__(self, starts: Collection[ast.expr], known: dict[str, float]) -> None:
        self.starts, self.known = starts, known

    def of(self, node: ast.expr | None) -> float | None:
        if node is None or isinstance(node, ast.Constant):
            return None
        if node in self.starts:
            return 1.0
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return None if node.attr in SHAPE_ATTRIBUTES else self.of(node.value)
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self.of(node.value)
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand)
        if isinstance(node, ast.BinOp):
            return self.operation(node.op, node.left, node.right)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        inner = [self.of(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        found = [degree for degree in inner if degree is not None]
        return None if not found else 0.0 if isinstance(node, ast.Compare) or not any(found) else _common(found)

    def operation(self, op: ast.operator, left: ast.expr, right: ast.expr) -> float | None:
        first, second = self.of(left), self.of(right)
        if first is None and second is None:
            return None
        if isinstance(op, ast.Mult):
            return (first or 0.0) + (second or 0.0)
        if isinstance(op, ast.Div):
            return (first or 0.0) - (second or 0.0)
        if isinstance(op, ast.Pow):
            is_number = isinstance(right, ast.Constant) and isinstance(right.value, (int, float))
            return (first or 0.0) * right.value if is_number else MIXED  # type: ignore[attr-defined, operator]
        if not isinstance(op, (ast.Add, ast.Sub)):
            return MIXED
        for degree, other in ((first, right), (second, left)):
            if degree is not None and _is_small(other):
                return degree
        return first if (first or 0.0) == (second or 0.0) else MIXED

    def _of_call(self, node: ast.Call) -> float | None:
        name = last_name(node)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        operands = [*([receiver] if receiver is not None else []), *node.args, *(k.value for k in node.keywords)]
        inner = [(part, self.of(part)) for part in operands]
        found = [degree for _, degree in inner if degree is not None]
        if not found or name in EMPTYING | SHAPE_METHODS:
            return None
        if name in WITHOUT_SCALE or not any(found):
            return 0.0
        parts = [part for part, degree in inner if degree is not None or part is not receiver]
        if name in OPERATORS and len(parts) > 1:
            return self.operation(OPERATORS[name], parts[0], parts[1])
        if name == "sqrt":
            return found[0] / 2
        return _common(found) if name in HOMOGENEOUS else MIXED


def _common(found: list[float]) -> float:
    return found[0] if len(set(found)) == 1 else MIXED


def _is_small(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and abs(node.value) <= SMALL
    return any(
        "eps" in name.lower() for name in (getattr(part, "id", getattr(part, "attr", "")) for part in walk(node))
    )
