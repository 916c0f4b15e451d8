"""Measurements on data that the training does not learn from: the loops, their sums, and the uses of these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display

from ..data.loaders import EVALUATION, Loader
from ..distributed.distribution import Distribution, leads_to_collective
from ..loops import LoopNode
from ..model.models import Model

COPYING = re.compile(r"copy|ema|average", re.IGNORECASE)  # in the names of what makes another model of a model


@dataclass(frozen=True)
class Measurement:
    """A loop that runs a model in training over a loader, and the names of what it adds up and of what it collects."""

    loader: Loader
    loop: LoopNode
    scope: Scope
    sums: frozenset[str]  # numbers, and objects that add up: total, meter
    lists: frozenset[str]


@dataclass(frozen=True)
class Known:
    """The names in a function that hold what is computed from some values."""

    scope: Scope
    names: frozenset[str]

    def holds(self, node: ast.AST) -> bool:
        """Return whether an expression is computed from one of the names."""
        return any(name_in(part) in self.names for part in walk(node))


def find_measurements(analysis: Analysis, loaders: list[Loader], models: list[Model]) -> Iterator[Measurement]:
    """Yield the loops that measure a model in training on a loader which nothing trains from."""
    variables = {variable for model in models for variable in ({model.variable} | upstream(analysis, model.variable))}
    variables |= _copies(analysis, variables)
    measured: dict[LoopNode, tuple[frozenset[str], frozenset[str]] | None] = {}  # of a loop that many loaders pass
    for loader in loaders:
        if loader.roles != {EVALUATION}:
            continue
        for use in loader.uses:
            if use.loop is None:
                continue
            if use.loop not in measured:
                runs = _runs(analysis, use.loop, use.scope, variables)
                measured[use.loop] = _measured(analysis, use.loop, use.scope) if runs else None
            found = measured[use.loop]
            if found is not None:
                yield Measurement(loader, use.loop, use.scope, *found)


def _copies(analysis: Analysis, variables: set[Variable]) -> set[Variable]:
    """Return the variables of copies and averages of the models: ema = copy.deepcopy(model), AveragedModel(model)."""
    found: set[Variable] = set()
    for node, scope in reached_nodes(analysis).of(ast.Assign):
        if not isinstance(node.value, ast.Call):
            continue
        copied = node.value.args if COPYING.search(last_name(node.value)) else []
        if any(variables_of(analysis, argument, scope) & variables for argument in copied):
            found |= {variable for target in node.targets for variable in variables_of(analysis, target, scope)}
    return found


def _measured(analysis: Analysis, loop: LoopNode, scope: Scope) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of what a loop adds up, and of the lists that it makes longer."""
    sums: set[str] = set()
    lists: set[str] = set()
    for statement in loop.body:
        for node in walk(statement):
            if isinstance(node, ast.AugAssign):
                (lists if _is_list(analysis, node.target, scope) else sums).add(name_in(node.target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in GROWS_LIST:
                    lists.add(name_in(node.func.value))
                elif _adds_up(analysis, node, scope):
                    sums.add(name_in(node.func.value))
    return frozenset(sums - {""}), frozenset(lists - {""})


def _adds_up(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a method adds numbers to its own object: meter.update(loss.item(), len(labels))."""
    return any(
        isinstance(node, ast.AugAssign)
        and name_in(node.target).startswith("self.")
        and not _is_list(analysis, node.target, function.scope)
        for function in analysis.functions_called(call, scope)
        for node in own_nodes(function.node)
    )


def _is_list(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Display) and isinstance(value.node, (ast.List, ast.ListComp)) for value in values)


def _runs(analysis: Analysis, loop: LoopNode, scope: Scope, variables: set[Variable]) -> bool:
    calls = (node for node in walk(loop) if isinstance(node, ast.Call))
    return any(variables_of(analysis, call.func, scope) & variables for call in calls)


def name_in(node: ast.AST) -> str:
    """Return `total` of total, total[0], and `self.total` of self.total; "" for everything else."""
    if isinstance(node, ast.Subscript):
        return name_in(node.value)
    if isinstance(node, ast.Name):
        return node.id
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return ast.unparse(node) if is_own else ""


def spread(scope: Scope, names: Iterable[str]) -> Known:
    """Return the names in a function that are computed from these names."""
    known = frozenset(names)
    while True:
        more = {name for name, read in _names_set(scope) if not read.isdisjoint(known)}
        if more <= known:
            return Known(scope, known)
        known |= more


def _names_set(scope: Scope) -> list[tuple[str, frozenset[str]]]:
    """Return each name that a function sets, with the names that decide about its value."""
    known = vars(scope.node)  # as that of `own_nodes`, the list stays with the node
    if "names_set" not in known:
        pairs = (pair for node in own_nodes(scope.node) for pair in _assignments(node))
        known["names_set"] = [(name, frozenset(map(name_in, walk(value)))) for name, value in pairs]
    return known["names_set"]


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that a statement sets, with the expression that decides about its value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else []
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            if len(parts) != len(values) or len(parts) == 1:
                values = [node.value] * len(parts)
            yield from ((name, value) for part, value in zip(parts, values) if (name := name_in(part)))
    elif isinstance(node, ast.AugAssign):
        yield name_in(node.target), node.value
    elif isinstance(node, ast.If):  # what is set under a test depends on it
        for statement in (*node.body, *node.orelse):
            for part in walk(statement):
                yield from ((name, node.test) for name, _ in _assignments(part) if not isinstance(part, ast.If))


def users(analysis: Analysis, scope: Scope, names: Iterable[str]) -> Iterator[Known]:
    """Yield who knows these values of a function: itself, and the functions that it returns them to."""

    def returned_to(known: Known) -> Iterator[Known]:
        node = known.scope.node
        if isinstance(node, FUNCTIONS) and any(known.holds(value) for value in returns_of(node)):
            for site in analysis.callers(node):
                statement = site.scope.source.statement(site.call)
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                parts = [part for target in targets for part in walk(target)]
                yield spread(site.scope, {name for part in parts if (name := name_in(part))})

    return closure([spread(scope, names)], returned_to)


def is_collected(analysis: Analysis, distribution: Distribution, known: Known) -> bool:
    """Return whether a call that every process takes part in is given some of these values."""
    given = (node for node in own_nodes(known.scope.node).of(ast.Call) if known.holds(node))
    return any(leads_to_collective(analysis, distribution, call, known.scope) for call in given)
