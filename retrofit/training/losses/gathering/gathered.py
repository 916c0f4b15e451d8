"""The rows that a training gathers over the ranks, so that a loss which compares samples is that of one process."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite
from retrofit.analysis.flow.calls.graph import calls_in, functions_reached
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.sources import Origin
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.runtime import BATCH_ROWS, GATHER_BATCH, GLOBAL_REDUCTIONS

from ..comparisons.comparisons import comparisons
from ..reductions.coupling import coupled_otherwise, obstacle
from ..reductions.reduction import plain_reader
from .layers import is_other_layer, runs_model
from .seeds import seeds
from .spread import NotProven, Spread
from .values import FIXED, ROWS, SIZE, WHOLE, ValueReader

if TYPE_CHECKING:
    from retrofit.training import Project

Place = tuple[ast.expr, Scope]
MOST_TRIED = 40  # operations that are gathered for one after the other


@dataclass(frozen=True)
class Gathering:
    """What is gathered: `rows`, with whether they have views one after the other, and `sizes` that are counted.

    `reasons`: why nothing is for an operation that compares samples.
    """

    rows: dict[ast.expr, tuple[Scope, bool]] = field(default_factory=dict)
    sizes: dict[ast.expr, Scope] = field(default_factory=dict)
    reasons: dict[ast.expr, str] = field(default_factory=dict)
    reader: ValueReader | None = None  # with all that is gathered


def gathering(project: Project) -> Gathering:
    """Return what has to be gathered for the comparisons of samples, if all that follows is that of one process."""
    from .kept_batches import has_only_kept_batches

    return Gathering() if has_only_kept_batches(project) else gathering_of_parts(project)


def gathering_of_parts(project: Project) -> Gathering:
    """Return what has to be gathered where each rank has a part of a batch, and not batches as the script made them."""
    return project.analysis.fact("gathering", lambda: _find(project))


def reader_of_values(project: Project) -> ValueReader:
    """Return what tells rows and sizes of a batch from what is the same on all ranks, with all that is gathered."""
    return reader_with(project, gathering(project))


def reader_with(project: Project, found: Gathering) -> ValueReader:
    """Return what reads values where that is gathered which was found."""
    return found.reader or project.analysis.fact("reader of gathered rows", lambda: _reader_of_gathered(project))


def is_given_whole_rows(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call is given rows that are gathered before, so that gathering them again would repeat them."""
    reader = reader_of_values(project)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    kinds = {reader.value(part, scope).kind for part in given}
    return WHOLE in kinds and kinds <= {WHOLE, FIXED}


def _reader_of_gathered(project: Project) -> ValueReader:
    """Return what reads values in a script that gathers rows itself."""
    nodes = project.in_batches.of(ast.Call)
    gathered = {node for node, scope in nodes if project.analysis.called(node, scope) & {BATCH_ROWS, GATHER_BATCH}}
    return ValueReader(project, plain_reader(project).samples.lists, gathered)


def is_of_whole_rows(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether an expression is computed from the rows of all ranks, so that each rank has the same of it."""
    if not isinstance(node, ast.expr):
        return False
    is_gathered = gathering(project).reader is not None or project.calls_any([BATCH_ROWS])
    return is_gathered and reader_of_values(project).value(node, scope).kind == WHOLE


@dataclass(frozen=True)
class Meeting:
    """An operation in which the samples of a batch meet, and what it is given of them."""

    node: ast.expr
    scope: Scope
    parts: tuple[ast.expr, ...]


def _find(project: Project) -> Gathering:
    if project.distribution.is_by_hand:
        return Gathering()
    pairs = [Meeting(pair.node, pair.scope, (pair.left, pair.right)) for pair in comparisons(project)]
    # Where sums are those of all ranks already, those of whole rows would count each sample once for each rank.
    others = [] if project.calls_any(GLOBAL_REDUCTIONS) else coupled_otherwise(project)
    coupled = [Meeting(*place, _operands(place[0])) for place in others]
    # Sums over the batch that cannot be those of all ranks by themselves are listed, where their rows stay.
    for meetings in dict.fromkeys([(*pairs, *coupled), tuple(pairs)]):
        try:
            return _gathered(_proven(project, meetings)) if meetings else Gathering()
        except NotProven:
            pass
    return _of_some(project, [*pairs, *coupled])


def _of_some(project: Project, meetings: list[Meeting]) -> Gathering:
    """Return what is gathered for those meetings for which it can be, as where an option chooses one of many losses."""
    accepted: list[Meeting] = []
    reasons: dict[ast.expr, str] = {}
    spread = None
    for met in meetings[:MOST_TRIED]:
        try:
            spread = _proven(project, [*accepted, met])
            accepted.append(met)
        except NotProven as error:
            reasons[met.node] = str(error)
    reasons |= {met.node: "there are too many places of this kind" for met in meetings[MOST_TRIED:]}
    return replace(_gathered(spread) if spread is not None else Gathering(), reasons=reasons)


def _gathered(spread: Spread) -> Gathering:
    return Gathering(spread.rows, spread.sizes, reader=spread.reader)


def _proven(project: Project, meetings: Collection[Meeting]) -> Spread:
    """Return what has to be gathered, early or late. Raises NotProven."""
    try:
        return _spread(project, meetings, is_early=True)
    except NotProven as error:
        try:
            return _spread(project, meetings, is_early=False)
        except NotProven:
            raise error from None


def _operands(node: ast.expr) -> tuple[ast.expr, ...]:
    """Return what an operation is given."""
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return ()
    receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return (*receiver, *node.args, *(keyword.value for keyword in node.keywords))


def _spread(project: Project, meetings: Collection[Meeting], is_early: bool) -> Spread:
    """Return what has to be gathered. Raises NotProven. `is_early`: where rows come out of the model."""
    spread = Spread(project, plain_reader(project))
    entries = dict.fromkeys(place for met in meetings for place in _entries(project, spread, met.node, met.scope))
    known = {met.node: met for met in meetings}
    for node, scope in entries:
        if node in known:
            for part in known[node].parts:
                if spread.reader.value(part, scope).kind not in (FIXED, SIZE):
                    places = list(seeds(spread.reader, part, scope)) if is_early else [Origin(part, scope)]
                    for place in places:
                        spread.gather(place.node, place.scope)  # type: ignore[arg-type]
        else:
            assert isinstance(node, ast.Call)
            _gather_arguments(spread, node, scope)
    spread.run()
    spread.drop_repeats()
    for met in meetings:
        found = {spread.reader.value(part, met.scope).kind for part in met.parts}
        if WHOLE not in found or not found <= {WHOLE, FIXED}:
            raise NotProven(f"of {ast.unparse(met.node)} one side would be of one rank's samples")
    for node, (scope, _) in spread.rows.items():
        reason = obstacle(project, node, scope)
        if reason:
            raise NotProven(reason)
        if _is_of_itself(project, node, scope):
            raise NotProven(f"{ast.unparse(node)} would be gathered again in each turn of a loop")
    return spread


def _is_of_itself(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is given, in a later turn of a loop, what is computed from it: h = layer(h)."""
    parts = computed_from(project.analysis, node, scope)
    return any(part.node is not node and node in walk(part.node) for part in parts if part.scope is scope)


def _gather_arguments(spread: Spread, call: ast.Call, scope: Scope) -> None:
    for given in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if spread.reader.value(given, scope).kind in ROWS:
            spread.gather(given, scope)
        else:
            spread.require(given, scope)


def _entries(project: Project, spread: Spread, node: ast.expr, scope: Scope) -> Iterator[Place]:
    """Yield where a comparison is entered: the outermost calls of functions that run no model, or it itself."""
    sites = _callers(project, scope)
    seen: set[ast.AST] = set()
    waiting: list[tuple[ast.expr, Scope, list[CallSite]]] = [(node, scope, sites)]
    while waiting:
        node, scope, sites = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if not _can_be_left(project, spread, scope, sites):
            yield node, scope
            continue
        for site in sites:
            waiting.append((site.call, site.scope, _callers(project, site.scope)))


def _callers(project: Project, scope: Scope) -> list[CallSite]:
    in_batches = project.nodes_in_batches
    sites = project.analysis.callers(scope.node) if scope.is_function else []  # type: ignore[arg-type]
    return [site for site in sites if site.call in in_batches]


def _can_be_left(project: Project, spread: Spread, scope: Scope, sites: list[CallSite]) -> bool:
    """Return whether all that a function computes is computed from what it is given, and no model is run in it."""
    if not sites or any(node in project.batch_values.loops for node in own_nodes(scope.node)):
        return False
    if any(site.is_open for site in sites):
        return False  # one by one they are seen in the function
    models = project.batch_values.calls
    if any(runs_model(project, site.call, site.scope) for site in sites):
        return False
    function = LocalFunction(scope.node, scope)  # type: ignore[arg-type]
    for inner in [function, *functions_reached(project.analysis, calls_in(function))]:
        for call, where in calls_in(inner):
            if call in models or is_other_layer(project.analysis, call, where):
                return False
    given = [(part, site.scope) for site in sites for part in [*site.call.args, *(k.value for k in site.call.keywords)]]
    return any(spread.reader.value(part, where).kind in ROWS for part, where in given)
