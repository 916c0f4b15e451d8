"""Edits that let all processes decide together how a loss is computed, by the count of all their samples."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import Rule
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.divisions import total_in
from retrofit.training.losses.reductions.coupling import deciding_tests

Place = tuple[ast.expr, Scope]


def tests_together(
    project: Project, places: Iterable[Place], rule: Rule, done: Iterable[Place] = ()
) -> Iterator[Finding]:
    """Yield the tests that decide about what is made a sum or a count of all processes in some places.

    `done`: places of which another rule makes the tests those of all processes.
    """
    known = {count for place in done for count in _counts(project, place)}
    counts = {count: scope for place in places for count, scope in _counts(project, place).items()}
    for count, scope in counts.items():
        if count not in known:
            edits = surround(scope.source, count, "rd.loss.batch_count(", ")")
            yield found(rule, scope.source, count, "processes would decide by their own count", edits)


def _counts(project: Project, place: Place) -> dict[ast.expr, Scope]:
    tests = [(total_in(project, *test), test[1]) for test in deciding_tests(project, *place)]
    return {count: scope for count, scope in tests if count is not None}
