"""Criteria that are made for batches of one size, `Criterion(batch_size)`: their masks, the number of their pairs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, LocalFunction

from ...data.loaders import TRAIN
from ...data.shards import drops_last

if TYPE_CHECKING:
    from retrofit.training import Project


def shapes_criterion(project: Project, size: ast.expr, scope: Scope) -> tuple[dict[ast.expr, Scope], str]:
    """Return what the criteria are given from which a batch size is read, and why not that of all ranks, "" if it can.

    `self.batch_size` of a criterion is that of all ranks where it is made for their batch.
    """
    given: dict[ast.expr, Scope] = {}
    for node, where, _ in origins(project.analysis, [Origin(size, scope)]):
        is_size = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and (node, where) in project.batch_sizes
        forwards = _forwards(project, node, where) if is_size and node not in project.nodes_in_batches else []
        if forwards:
            given[node] = where  # type: ignore[index]
            sites = [site for forward in forwards for site in project.analysis.callers(forward.node)]
            if not sites or not all(site.call in project.nodes_in_batches for site in sites):
                return given, f"{ast.unparse(node)} shapes a loss that is computed elsewhere, too, of one rank"
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    if given and not all(drops_last(project.analysis, loader) for loader in loaders):
        names = " and ".join(map(ast.unparse, given))
        return given, f"{names} shapes the loss, which needs full batches: give the loader drop_last=True"
    return given, ""


def _forwards(project: Project, node: ast.AST, scope: Scope) -> list[LocalFunction]:
    """Return the forward passes of what is made by a call that is given a batch size as it is."""
    parent = scope.source.parents[node]
    call = scope.source.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return []
    made = [value for value in project.analysis.evaluate(call, scope) if isinstance(value, Instance)]
    methods = [project.analysis.classes.method(value.scope, "forward") for value in made]
    return [method for method in methods if method is not None]
