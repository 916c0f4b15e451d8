"""RF306 lr-of-one-process: the learning rate stays while the batch grows with the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import argument_for
from retrofit.project.edits import surround
from retrofit.project.rates import follows_optimizer, sets_rate
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope
from retrofit.project.source import Source
from retrofit.project.values import Display

from .finding import Finding, found

CODE = "RF306"
NAME = "lr-of-one-process"
WHY = "N processes with a batch each take steps on N times the samples, for which the old rate is too small."
HELP = "lr=rd.scaled_lr(lr); --lr_scale none leaves it, and with --batch global it stays by itself"
BAD = """\
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
GOOD = """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
"""
SCALING = {"retrofit.distributed.scaled_lr", "retrofit.distributed.scale_lr"}
SCHEDULERS = {"OneCycleLR": ("max_lr",), "CyclicLR": ("base_lr", "max_lr")}


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # what a batch size and a rate stand for is settled in the script
    seen: set[ast.expr] = set()
    for source, node, scope in _rates(project):
        if node not in seen and not _is_scaled(project, node, scope):
            seen.add(node)
            edits = surround(source, node, "rd.scaled_lr(", ")")
            yield found(CODE, source, node, "the learning rate does not follow the batch of all processes", HELP, edits)


def _rates(project: Project) -> Iterator[tuple[Source, ast.expr, Scope]]:
    for optimizer in project.optimizers:
        rate = argument_for(optimizer.call, ["params", "lr"], "lr")
        if rate is not None:
            yield optimizer.scope.source, rate, optimizer.scope
        yield from _groups(project, optimizer.parameters, optimizer.scope)
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Assign) and _is_by_hand(project, node, scope):
            yield scope.source, node.value, scope
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for argument in SCHEDULERS.get(name, ()):
                positions = ["optimizer", *SCHEDULERS[name]]
                rate = argument_for(node, positions, argument)
                if rate is not None:
                    yield scope.source, rate, scope


def _is_scaled(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a rate follows the batch of all processes already."""
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    is_called = any(project.analysis.called(call, scope) & SCALING for call in calls)
    return is_called or bool(project.analysis.named(node, scope) & SCALING)


def _groups(project: Project, node: ast.expr | None, scope: Scope) -> Iterator[tuple[Source, ast.expr, Scope]]:
    """Yield the rates in a list of parameter groups, also one that was made before."""
    if node is None:
        return
    candidates: list[tuple[ast.expr, Scope]] = [(node, scope)]
    for value in project.analysis.evaluate(node, scope):
        if isinstance(value, Display):
            candidates.append((value.node, value.scope))
    for candidate, where in candidates:
        for part in ast.walk(candidate):
            if isinstance(part, ast.Dict):
                for key, rate in zip(part.keys, part.values):
                    if isinstance(key, ast.Constant) and key.value == "lr":
                        yield where.source, rate, where


def _is_by_hand(project: Project, node: ast.Assign, scope: Scope) -> bool:
    return sets_rate(node, scope) and not follows_optimizer(project.analysis, node.value, scope)
