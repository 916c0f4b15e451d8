"""Samples of a batch that a training keeps for later ones, where it can keep those of all ranks: queues, banks."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import body_of, given_parameters, returns_of
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.operands import computed_from, inputs
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import variables_at
from retrofit.analysis.nodes import COMPREHENSIONS, children, walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.data.batch_values import BATCH
from retrofit.training.data.carried_state import last_backwards, variables_of_losses, writes_in_batches
from retrofit.training.data.random_draws import draws_in_loop
from retrofit.training.model.gradients import has_gradients
from retrofit.training.torch_api.modules import PARAMETER_CLASSES
from retrofit.training.torch_api.tensors import DETACHES

from ..reductions.coupling import coupled_nodes, obstacle
from ..reductions.lists import LAYERS
from ..writes import Write
from .gathered import reader_of_values
from .kept_batches import keeps_batches
from .values import FIXED, OTHER, PLAIN, SIZE, WHOLE

if TYPE_CHECKING:
    from retrofit.training import Project

DETACHED = DETACHES | {"detach_"}
PLACES = (ast.Name, ast.Attribute)
DISPLAYS = (ast.Tuple, ast.List, ast.Dict)
UNDIVIDED = (ast.Name, ast.Lambda, *COMPREHENSIONS)


@dataclass(frozen=True)
class KeptSamples:
    """What is gathered over the ranks so that each keeps the same: `parameters` of a function, or `rows` of a write.

    Neither where these are rows of all ranks as they are. `sizes`: numbers of these rows, to be counted over the ranks.
    """

    scope: Scope
    node: ast.AST
    parameters: tuple[str, ...] = ()
    rows: tuple[ast.expr, ...] = ()
    sizes: tuple[ast.expr, ...] = ()


@dataclass
class _Parts:
    """What a write reads: rows of this rank's samples, their numbers, and whether there are rows of all ranks."""

    rows: list[ast.expr]
    sizes: list[ast.expr]
    has_whole: bool = False


def kept_samples(project: Project, writes: list[Write]) -> list[KeptSamples]:
    """Return what makes all writes of a state those of the samples of all ranks; empty where that is not certain.

    A function that only keeps samples gets those of all ranks, and does with them what it did. Elsewhere the rows are
    gathered in the write itself.
    """
    if keeps_batches(project) or project.distribution.is_by_hand or any(map(_is_replaced, writes)):
        return []
    found = [_of_write(project, write) for write in writes]
    whole = {kept.scope for kept in found if kept is not None and kept.parameters}
    found += [_of_other(project, write) for write in _other_writes(project, writes) if write.scope not in whole]
    known = [kept for kept in dict.fromkeys(found) if kept is not None]
    return known if None not in found and not _counts_own_rows(project, known) else []


def _is_replaced(write: Write) -> bool:
    """Return whether a state becomes another one: `last = outputs`, whose rows may be paired with the next batch's."""
    node = write.node
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    read = {ast.unparse(part) for part in walk(node.value) if isinstance(part, PLACES)}
    state = write.name.removesuffix(".data")
    return state in {ast.unparse(target).removesuffix(".data") for target in targets} - read


def _counts_own_rows(project: Project, found: list[KeptSamples]) -> bool:
    """Return whether losses also read a number of samples of one rank that is kept: how many are in a queue."""
    reader, of_all = reader_of_values(project), {kept.scope for kept in found if kept.parameters}
    read = variables_of_losses(project)
    counts = (w for variable, w in writes_in_batches(project) if variable in read and w.scope not in of_all)
    return any(reader.value(write.value, write.scope).kind == SIZE for write in counts)


def _of_write(project: Project, write: Write) -> KeptSamples | None:
    scope = write.scope
    parts = _parts_of(project, write)
    rows = parts.rows if parts is not None and (parts.rows or parts.has_whole) else None
    is_detached = write.value is not None and _ends_detached(write.value)
    is_free = is_detached or _comes_after_gradients(project, write)
    if rows is not None and not is_free and not all(_has_no_gradient(project, row, scope) for row in rows):
        rows = None
    parameters = _parameters_of_rows(project, scope)
    is_free = rows is not None or not has_gradients(project.analysis, scope, write.node)
    if parameters and is_free and _only_keeps(project, scope) and not _obstacle(project, body_of(scope.node)[0], scope):
        return KeptSamples(scope, scope.node, parameters)
    if rows is None or parts is None or _obstacle(project, write.node, scope):
        return None
    return KeptSamples(scope, write.node, rows=tuple(rows), sizes=tuple(parts.sizes))


def _other_writes(project: Project, writes: list[Write]) -> list[Write]:
    """Return the writes of the same states that put no samples there: queue = torch.roll(queue, n, 0)."""
    written = writes_in_batches(project)
    states = {variable for variable, write in written if write in writes}
    return [write for variable, write in written if variable in states and write not in writes]


def _of_other(project: Project, write: Write) -> KeptSamples | None:
    parts = _parts_of(project, write)
    return None if parts is None or parts.rows else KeptSamples(write.scope, write.node, sizes=tuple(parts.sizes))


def _obstacle(project: Project, node: ast.AST, scope: Scope) -> str:
    return obstacle(project, node, scope)  # type: ignore[arg-type]


def _comes_after_gradients(project: Project, write: Write) -> bool:
    """Return whether a write comes after the last backward call of a step, which frees what rows were computed by.

    A later loss that needed it would end with an error, in one process too.
    """
    backward, source = last_backwards(project).get(write.scope), write.scope.source
    if not isinstance(backward, ast.Call) or any(keyword.arg == "retain_graph" for keyword in backward.keywords):
        return False
    block = block_of(source, source.statement(backward))
    after = block[block.index(source.statement(backward)) + 1 :]
    return any(statement in after for statement in (write.node, *source.ancestors(write.node)))


def _has_no_gradient(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether no gradient of a later loss goes through the rows that are kept."""
    if _ends_detached(node) or not has_gradients(project.analysis, scope, node):
        return True
    parts = list(walk(node))
    calls = [part for part in parts if isinstance(part, ast.Call)]
    run = {inner for call in calls for inner, _ in calls_within(project.analysis, call, scope)}
    if run & project.batch_values.calls:
        return False
    names = (part for part in parts if isinstance(part, ast.Name))
    return all(_is_of_no_gradient(project, name, scope) for name in names)


def _is_of_no_gradient(project: Project, name: ast.Name, scope: Scope) -> bool:
    """Return whether a tensor is detached where it is read, is computed without gradients, or comes from a loader."""
    outer = scope.source.parents[name]
    if isinstance(outer, ast.Attribute) and outer.attr in DETACHED:
        return True
    if reader_of_values(project).value(name, scope).kind == FIXED:
        return True
    bound = scope.find(name.id)
    bindings = bound[1] if bound is not None and bound[0] is scope else []
    if {binding.kind for binding in bindings} == {"parameter"}:
        return _is_of_samples_alone(project, name, scope)
    return bool(bindings) and all(
        binding.node in project.batch_values.loops
        or not has_gradients(project.analysis, scope, binding.node)
        or (binding.value is not None and _ends_detached(binding.value))
        for binding in bindings
    )


def _is_of_samples_alone(project: Project, name: ast.Name, scope: Scope) -> bool:
    """Return whether a parameter is given what is computed from a batch, and from nothing that is trained."""
    if project.batch_values.sources_of(name, scope) != {BATCH}:
        return False
    parts = computed_from(project.analysis, name, scope)
    places = (o for o in parts if isinstance(o.node, ast.expr))
    return all(project.analysis.named(o.node, o.scope).isdisjoint(PARAMETER_CLASSES) for o in places)  # type: ignore[arg-type]


def _ends_detached(value: ast.expr) -> bool:
    func = value.func if isinstance(value, ast.Call) else value
    return isinstance(func, ast.Attribute) and func.attr in DETACHED


def _parameters_of_rows(project: Project, scope: Scope) -> tuple[str, ...]:
    """Return the parameters of a function that have rows of the batch; none where one has something else of it."""
    if not scope.is_function:
        return ()
    reader, found = reader_of_values(project), []
    for name in given_parameters(scope):
        uses = (n for n in own_nodes(scope.node).of(ast.Name) if n.id == name)
        use = next((node for node in uses if isinstance(node.ctx, ast.Load)), None)
        if name == "self" or use is None:
            continue
        kind = reader.value(use, scope).kind
        if kind == PLAIN and len(scope.bindings[name]) == 1 and not _has_parts(project, use, scope):
            found.append(name)
        elif kind != FIXED or _is_drawn_apart(project, use, scope):
            return ()
    return tuple(found)


def _has_parts(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether something is a list or a dict of tensors, each with a row per sample, and not one of these."""
    return LAYERS in reader_of_values(project).lists.entries(node, scope)


def _only_keeps(project: Project, scope: Scope) -> bool:
    """Return whether a function gives nothing back, runs no model, draws nothing, and has its states for itself.

    What it reads without being given it, but for these, is the same on all ranks, and no sum in it is made theirs.
    """
    if any(not isinstance(value, ast.Constant) for value in returns_of(scope.node)):  # type: ignore[arg-type]
        return False
    nodes = list(own_nodes(scope.node))
    if not coupled_nodes(project).isdisjoint(nodes):
        return False  # of the rows of all ranks it would count each of them once for each rank
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(c in project.batch_values.calls or draws_in_loop(project, c, scope) for c in calls):
        return False
    if any(
        project.analysis.functions_called(call, scope) or project.leads_to_collective(call, scope) for call in calls
    ):
        return False
    places = {node: variables_at(project.analysis, node, scope) for node in nodes if isinstance(node, PLACES)}
    read = set().union(*places.values())
    written = [(variable, write) for variable, write in writes_in_batches(project) if variable in read]
    if any(write.scope is not scope for _, write in written):
        return False
    own = {variable for variable, _ in written}
    names = [node for node in places if isinstance(node, ast.Name) and not own.intersection(places[node])]
    reader = reader_of_values(project)
    return all(scope in dict(places[name]) or reader.value(name, scope).kind == FIXED for name in names)


def _parts_of(project: Project, write: Write) -> _Parts | None:
    """Return what a write reads of this rank's rows; None where what is left is not the same on all ranks."""
    reader, states = reader_of_values(project), {variable for variable, _ in writes_in_batches(project)}
    found = _Parts([], [])
    waiting: list[ast.AST] = [write.node]
    while waiting:
        node = waiting.pop()
        holds_own = any(ast.unparse(part) == write.name for part in walk(node) if isinstance(part, PLACES))
        if holds_own and node in project.batch_values.calls:
            return None  # an output of the model, which this batch's loss is computed from
        if holds_own or not isinstance(node, ast.expr) or isinstance(node, ast.Slice):
            waiting += children(node)
            continue
        places = (part for part in walk(node) if isinstance(part, PLACES))
        if any(states.intersection(variables_at(project.analysis, place, write.scope)) for place in places):
            return None  # of another state, which a rank may keep for itself
        if isinstance(node, DISPLAYS):
            waiting += children(node)
            continue
        outer = write.scope.source.parents[node]
        if isinstance(node, ast.Attribute) and isinstance(outer, ast.Call) and outer.func is node:
            waiting.append(node.value)  # of rows.mean(0) the rows
            continue
        kind = reader.value(node, write.scope).kind
        found.has_whole |= kind == WHOLE
        if kind == OTHER and not _is_undivided(project, node) and not _is_drawn_apart(project, node, write.scope):
            waiting += children(node)  # of the rows of all ranks it is what one process computes
            continue
        if kind not in (PLAIN, SIZE, FIXED, WHOLE) or isinstance(node, ast.Starred):
            return None
        if (kind == PLAIN or isinstance(node, ast.Name)) and _has_parts(project, node, write.scope):
            return None
        if kind in (PLAIN, SIZE):
            (found.rows if kind == PLAIN else found.sizes).append(node)
        elif _is_drawn_apart(project, node, write.scope):
            return None
        elif kind == WHOLE and node not in reader.gathered and not isinstance(node, UNDIVIDED):
            waiting += children(node)  # next to rows of all ranks there may be some of this one
    is_counted = not found.has_whole and has_gradients(project.analysis, write.scope, write.node)  # only in training
    return found if is_counted or not found.sizes else None


def _is_undivided(project: Project, node: ast.expr) -> bool:
    """Return whether rows inside of an expression cannot be gathered there, or are added up over the ranks already."""
    parts = set(walk(node))
    is_run = not parts.isdisjoint(project.batch_values.calls) or not parts.isdisjoint(coupled_nodes(project))
    return (
        is_run or any(isinstance(part, (ast.Lambda, *COMPREHENSIONS)) for part in parts) or isinstance(node, ast.Name)
    )


def _is_drawn_apart(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether each rank draws for itself what is not gathered: slots[random.randrange(4)] = rows."""
    gathered = reader_of_values(project).gathered

    def through(origin: Origin) -> Iterable[Origin]:
        part = origin.node
        is_common = isinstance(part, ast.Call) and project.leads_to_collective(part, origin.scope)
        return () if is_common or part in gathered else inputs(project.analysis, origin)

    found = origins(project.analysis, [Origin(node, scope)], through)
    return any(isinstance(o.node, ast.Call) and draws_in_loop(project, o.node, o.scope) for o in found)
