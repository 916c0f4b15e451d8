"""Expressions that a training loss is computed by, through names, sums, functions and modules, from its backward."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.keys import Keys
from retrofit.analysis.flow.sources import Origin, Part, entries, functions_run, origins, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.runtime import DISTRIBUTE_CRITERION
from retrofit.training.torch_api.tensors import JOINS, NONLINEAR, READS, SUMS_OF_SEVERAL

from ..loops import Path
from .terms import terms_at

JOINING = JOINS | SUMS_OF_SEVERAL  # functions of several losses
SCALING = {"scale", "scale_loss", "mean", "float"}
KNOWN = {"torch", "numpy", "math", "retrofit"}
KEEPING = JOINING | SCALING | {"list", "tuple", "iter", "next", "enumerate", "zip", "reversed", "dict", "deque"}
KEEPING |= {"get", "pop", "values"}  # an entry of a dict or of a list
NUMBERS = READS - {"numpy"}
SUMMING = (ast.Add, ast.Sub, ast.Mult)
Found = tuple[dict[tuple[Part, Scope], bool], dict[Part, set[Keys]]]


def loss_parts(analysis: Analysis, path: Path) -> dict[tuple[Part, Scope], bool]:
    """Return the expressions that the loss of a backward call is made of, and the `loss /= n` on the way.

    Each with whether the loss is linear in it: not in what it takes the root of. What loss functions of torch are
    given is not part of it: neither the model's output nor the targets.
    """
    return _known_parts(analysis, path)[0]


def entries_of_losses(analysis: Analysis, path: Path) -> dict[Part, set[Keys]]:
    """Return the same expressions, each with what of it the loss is made of: entries, () for the value itself."""
    return _known_parts(analysis, path)[1]


def _known_parts(analysis: Analysis, path: Path) -> Found:
    frame = path.frames[0]  # many paths lead to one call
    known: dict[tuple[ast.AST, Scope], Found] = analysis.fact("loss parts", dict)
    key = frame.node, frame.scope
    if key not in known:
        known[key] = _loss_parts(analysis, path)
    return known[key]


def _loss_parts(analysis: Analysis, path: Path) -> Found:
    frame = path.frames[0]
    call = frame.node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    flow = _Flow(analysis, path)
    parts = dict.fromkeys(origins(analysis, [Origin(call.func.value, frame.scope)], flow.operands))
    inside = [inner for part in parts if flow.bends(part) for inner in flow.inside(part)]
    bent = {(p.node, p.scope) for p in origins(analysis, inside, lambda p: flow.operands(p) if p in parts else ())}
    keys: dict[Part, set[Keys]] = {}
    for part in parts:
        keys.setdefault(part.node, set()).add(part.keys)
    return {(part.node, part.scope): (part.node, part.scope) not in bent for part in parts}, keys


class _Flow:
    def __init__(self, analysis: Analysis, path: Path) -> None:
        self.analysis, self.path = analysis, path

    @cached_property
    def of_steps(self) -> set[ast.AST]:
        """Return what is run for each batch."""
        return {
            node for loop, frame in self.path.loops[:1] for node, _ in nodes_run(self.analysis, [(loop, frame.scope)])
        }

    def operands(self, origin: Origin) -> Iterable[Origin] | None:
        """Return the losses that an operation adds up, scales or puts together; None for what is not an operation."""
        node = origin.node
        if isinstance(node, ast.AugAssign):
            return [origin.to(node.value)] if isinstance(node.op, SUMMING) else []
        if isinstance(node, ast.BinOp):
            parts = (node.left, node.right)[: 1 + isinstance(node.op, SUMMING)]
            return [origin.to(part, keys=()) for part in parts]  # a number has no entries
        if isinstance(node, ast.UnaryOp):
            return [origin.to(node.operand, keys=())]
        if isinstance(node, ast.Call):
            return self._of_call(node, origin)
        return list(entries(origin)) or None

    def inside(self, origin: Origin) -> Iterable[Origin]:
        """Return what an expression is made of, one step before."""
        found = self.operands(origin)
        return sources(self.analysis, origin) if found is None else found

    def _of_call(self, node: ast.Call, origin: Origin) -> list[Origin] | None:
        scope, keys = origin.scope, origin.keys
        if functions_run(self.analysis, node, scope):
            return None
        if last_name(node) in NUMBERS and node not in self.of_steps:
            return []  # a figure of an epoch, by which a later one weighs its losses
        if terms_at(self.analysis, node, scope) or self._is_distributed_criterion(node, scope):
            return []
        if any(sources(self.analysis, origin)):
            return None
        found = []
        if isinstance(node.func, ast.Attribute) and not self.analysis.named(node.func.value, scope) & {"torch"}:
            found.append(origin.to(node.func.value))  # loss.mean()
        for given in node.args[:1]:  # sum(losses), torch.stack(losses), scaler.scale(loss)
            found.append(origin.to(given, keys=(None, *keys) if last_name(node) in JOINING else keys))
        return found

    def bends(self, origin: Origin) -> bool:
        """Return whether the result of an operation may not be linear in the losses: loss ** 2, torch.sqrt(loss)."""
        node, scope = origin.node, origin.scope
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Pow)
        if not isinstance(node, ast.Call) or functions_run(self.analysis, node, scope):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in NONLINEAR:
            return True
        if not node.args:
            return False
        names = self.analysis.called(node, scope)
        return last_name(node) not in KEEPING and not any(name.partition(".")[0] in KNOWN for name in names)

    def _is_distributed_criterion(self, node: ast.Call, scope: Scope) -> bool:
        values = self.analysis.evaluate(node.func, scope)
        return any(isinstance(value, Result) and value.builder == DISTRIBUTE_CRITERION for value in values)
