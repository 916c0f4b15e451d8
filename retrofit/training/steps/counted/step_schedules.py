"""Schedules that count batches by a number of their own, of learning rates and of the weights of losses.

N processes make 1/N of the batches in an epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.files.source import Place
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, Result

from ...losses.flow import loss_parts
from ...optimizer.loop_ends import has_loader_length
from ...optimizer.rates import rates_set
from ...optimizer.schedules import lengths, single_process_sizes, sizes_of_steps
from .changed_numbers import changed_by, changes_of_losses, changes_of_rates
from .step_limits import counts_steps, line_at

if TYPE_CHECKING:
    from ... import Project

LONGEST = 80  # characters of a schedule that are quoted


@dataclass(frozen=True)
class StepSchedule:
    """Where a schedule that counts batches is made, or a rate is set by one, and its source text.

    `is_weight`: whether a loss is computed from it. `is_changed`: whether the text is a statement by which each batch
    changes a number.
    """

    source_line: str
    place: Place
    schedule: str
    is_weight: bool = False
    is_changed: bool = False

    @property
    def text(self) -> str:
        """What it means for several processes, in one line."""
        if self.is_changed:
            return (
                f"each batch changes a number of the {'loss' if self.is_weight else 'rate'} ({self.schedule}), and N "
                "processes make 1/N of the batches in an epoch: keep the total batch (RETROFIT_BATCH=global), or let "
                "it change as WORLD_SIZE batches would (factor ** WORLD_SIZE)"
            )
        what, changed = ("weight of a loss", "weight") if self.is_weight else ("schedule", "rate")
        return (
            f"the {what} counts batches ({self.schedule}), of which N processes make 1/N in an epoch, so the {changed} "
            "changes N times later: keep the total batch (RETROFIT_BATCH=global), or divide its numbers by WORLD_SIZE"
        )


def step_schedules(project: Project) -> list[StepSchedule]:
    """Return the schedules that are stepped for each batch and whose length follows neither loader nor batch size."""
    if project.distribution.is_by_hand:
        return []
    changed_rates, changed_losses = list(changes_of_rates(project)), list(changes_of_losses(project))
    changed = {changed_by(statement) for statement, _ in (*changed_rates, *changed_losses)}
    of_rates = [*changed_rates, *_schedules_of_batches(project), *_rates_by_hand(project)]
    weights = (place for place in _weights_of_terms(project) if changed.isdisjoint(map(ast.unparse, walk(place[0]))))
    of_losses = [place for place in (*changed_losses, *weights) if place not in of_rates]
    found = {}
    for node, scope in (*of_rates, *of_losses):
        place = scope.source.place(node)
        text = " ".join(ast.unparse(node).split())
        shown = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
        is_changed = (node, scope) in (*changed_rates, *changed_losses)
        found[place] = StepSchedule(line_at(scope, node), place, shown, (node, scope) in of_losses, is_changed)
    return list(found.values())


def _schedules_of_batches(project: Project) -> Iterator[tuple[ast.expr | ast.stmt, Scope]]:
    """Yield the calls that make schedules of their own length which are stepped for each batch."""
    calls = project.in_batches.of(ast.Call)
    stepped = {builder for node, scope in calls for builder in _stepped(project, node, scope)}
    for node, scope in reached_nodes(project.analysis).of(ast.Call) if stepped else ():
        made_from = list(lengths(project, node, scope)) if node in stepped else []
        if made_from and not any(_follows_batches(project, *place) for place in made_from):
            yield node, scope


def _stepped(project: Project, node: ast.Call, scope: Scope) -> Iterator[ast.Call]:
    """Yield the calls that make what is stepped here, unless by a fraction of an epoch."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return
    if any(_follows_batches(project, argument, scope) for argument in node.args):
        return  # scheduler.step(epoch + batch / len(loader))
    for value in project.analysis.evaluate(node.func.value, scope):
        if isinstance(value, (Result, Instance)) and value.call is not None:
            yield value.call


def _rates_by_hand(project: Project) -> Iterator[tuple[ast.expr | ast.stmt, Scope]]:
    """Yield `group["lr"] = rate` for a rate, or under a test, that counts batches."""
    for node, scope in project.in_batches.of(ast.Assign, ast.Call):
        rates = rates_set(project.analysis, node, scope)
        computed_from = [*((rate, scope) for rate in rates), *(_tests_around(project, node, scope) if rates else ())]
        is_counted = any(_has_counter(project, *place) for place in computed_from)
        if is_counted and not any(_follows_batches(project, *place) for place in computed_from):
            yield node, scope  # type: ignore[misc]


def _weights_of_terms(project: Project) -> Iterator[tuple[ast.expr | ast.stmt, Scope]]:
    """Yield what a loss, or a term of it, is multiplied by that counts batches: `min(1, step / 1000) * kl`."""
    parts = dict.fromkeys(place for path in project.paths for place in loss_parts(project.analysis, path))
    for node, scope in parts:
        if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Mult):
            continue
        for factor in [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]:
            is_of_batch = project.batch_values.sources_of(factor, scope)
            if (
                not is_of_batch
                and _has_counter(project, factor, scope)
                and not _follows_batches(project, factor, scope)
            ):
                yield factor, scope


def _tests_around(project: Project, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the tests that a statement is under, and those of the calls of its function."""
    sites = sites_of(project.analysis, scope)
    for place, where in [(node, scope), *((site.call, site.scope) for site in sites)]:
        for outer in where.source.ancestors(place):
            if outer is where.node:
                break
            if isinstance(outer, ast.If):
                yield outer.test, where


def _has_counter(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is computed from a number that grows by one for every batch."""
    return any(
        isinstance(part, (ast.Name, ast.Attribute)) and counts_steps(project, part, where)
        for origin, where in project.ranks.origins(node, scope)
        for part in walk(origin)
    )


def _follows_batches(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a number is counted in batches of the loader, or in samples and the batch size."""
    return has_loader_length(project, node, scope) or bool(
        single_process_sizes(project, node, scope, sizes_of_steps(project))
    )
