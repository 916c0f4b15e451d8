"""Batches that a loop takes apart: `x, y = batch[0], batch[1]`, `x, y = (part.to(device) for part in batch)`.

A list of samples is not one of them: it has as many entries as samples.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from retrofit.analysis.calls import CallSite, given_parameters, last_name
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis

from .. import Project

MOST_CALLS = 3  # within one another, through which a batch is followed
OF_TENSORS = frozenset({"shape", "size", "dim", "ndim", "view", "reshape", "mean", "sum"})


def has_parts(analysis: Analysis, drawn: ast.expr, scope: Scope, models: Container[ast.AST]) -> bool:
    """Return whether what a loop draws is taken apart in it, and nothing uses it as one tensor or a list of samples."""
    target = _target(drawn, scope)
    if target is None:
        return False
    found = list(_uses(analysis, target, scope, models, MOST_CALLS))
    return bool(found) and all(found)


def has_entry_per_row(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a comprehension has an entry for each row of what the script draws: [data[i] for i in rows]."""
    if not isinstance(node, ast.ListComp) or len(node.generators) > 1 or node.generators[0].ifs:
        return False

    def through(origin: Origin) -> list[Origin] | None:
        if not isinstance(origin.node, ast.Subscript) or origin.keys:
            return None
        return [*sources(project.analysis, origin), origin.to(origin.node.slice)]  # data[rows], in their order

    found = origins(project.analysis, [Origin(node.generators[0].iter, scope)], through)
    return any(origin.node in project.draws.nodes and not origin.keys for origin in found)


def is_gone_through(drawn: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is in what a loop, or a comprehension, goes through."""
    inner: ast.AST = drawn
    for outer in scope.source.ancestors(drawn):
        if isinstance(outer, (ast.For, ast.AsyncFor, ast.comprehension)):
            return outer.iter is inner
        if isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def _target(drawn: ast.expr, scope: Scope) -> str | None:
    """Return the name of what a loop draws: `batch` of for i, batch in enumerate(loader)."""
    for outer in scope.source.ancestors(drawn):
        if isinstance(outer, (ast.For, ast.AsyncFor)):
            target = outer.target
            if isinstance(target, ast.Tuple) and len(target.elts) == 2 and "enumerate" in ast.unparse(outer.iter):
                target = target.elts[1]
            return target.id if isinstance(target, ast.Name) else None
        if isinstance(outer, ast.stmt):
            return None
    return None


def _uses(analysis: Analysis, name: str, scope: Scope, models: Container[ast.AST], depth: int) -> Iterator[bool]:
    """Yield True for each place that takes a variable apart, False where it is one tensor, or a list of samples."""
    parents = scope.source.parents
    for node in own_nodes(scope.node).of(ast.Name):
        if node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        outer = parents[node]
        if isinstance(outer, (ast.comprehension, ast.For, ast.Starred)):
            yield not _gives_samples(outer, scope)
        elif isinstance(outer, ast.Subscript) and node is outer.value:
            yield not isinstance(outer.slice, (ast.Name, ast.Tuple, ast.Compare))
        elif isinstance(outer, ast.Assign) and any(
            isinstance(target, (ast.Tuple, ast.List)) for target in outer.targets
        ):
            yield True
        elif isinstance(outer, ast.BinOp) or (isinstance(outer, ast.Attribute) and outer.attr in OF_TENSORS):
            yield False
        elif isinstance(outer, ast.Attribute) and outer.attr in ("items", "values"):
            yield True
        elif isinstance(outer, ast.Call) and node in outer.args:
            yield from _given(analysis, outer, node, scope, models, depth)


def _gives_samples(outer: ast.comprehension | ast.For | ast.Starred, scope: Scope) -> bool:
    """Return whether the entries that are gone through are samples: each is taken apart, into inputs and targets."""
    parents = scope.source.parents
    if isinstance(outer, ast.Starred):  # inputs, targets = zip(*batch)
        call = parents[outer]
        made = parents[call]
        is_apart = isinstance(made, ast.Assign) and any(isinstance(t, (ast.Tuple, ast.List)) for t in made.targets)
        return is_apart and isinstance(call, ast.Call) and last_name(call) == "zip" and len(call.args) == 1
    if not isinstance(outer.target, ast.Name):
        return True
    whole = outer if isinstance(outer, ast.For) else parents[outer]
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == outer.target.id
        and isinstance(node.slice, ast.Constant)
        for node in walk(whole)
    )  # fmt: skip


def _given(
    analysis: Analysis, call: ast.Call, node: ast.Name, scope: Scope, models: Container[ast.AST], depth: int
) -> Iterator[bool]:
    """Yield how a function uses a variable that it is given."""
    if call in models:
        yield False
        return
    for function in analysis.functions_called(call, scope) if depth else ():
        names, site = given_parameters(function.scope), CallSite(call, scope)
        for name in names:
            given = site.argument(names, name)
            if given is not None and given[0] is node:
                yield from _uses(analysis, name, function.scope, models, depth - 1)
