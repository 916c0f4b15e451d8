"""Values that each process makes in its own way before it trains: orders of sets, generators that nothing seeds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import COMPREHENSIONS, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.data.seeds import is_drawn
from retrofit.training.data.workers import run_elsewhere
from retrofit.training.files.guards import runs_on_one
from retrofit.training.torch_api.data import SAMPLER_BASES
from retrofit.training.torch_api.output import PRINTS
from retrofit.training.torch_api.randomness import GENERATOR_SEEDS, OWN_GENERATORS, RESEEDS, SEEDS, SYSTEM_DRAWS
from retrofit.training.torch_api.runtime import FROM_MAIN, SAME_RANDOM_STATE

from .text_sets import is_any_order, is_set, keeps_ties

if TYPE_CHECKING:
    from retrofit.training import Project

LISTS = frozenset({"list", "tuple"})
IN_ORDER = LISTS | {"enumerate", "iter", "zip", "map", "dict.fromkeys", "join"}
ORDER, GENERATOR, HASH, SEED, SAMPLER_SEED = "order", "generator", "hash", "seed", "seed in a sampler"
DRAW, GENERATOR_SEED, RESEED = "draw of the system", "seed of a generator", "new seed of a generator"


@dataclass(frozen=True)
class OwnValue:
    """A value that differs by process. `kind` is one of the constants above; an order is that of the set `node`.

    `is_repeated`: it is made in a loop, where sharing it each time would take long.
    """

    kind: str
    node: ast.expr
    scope: Scope

    @property
    def is_repeated(self) -> bool:
        inner: ast.AST = self.node
        for outer in self.scope.source.ancestors(self.node):
            if outer is self.scope.node:
                return False
            is_again = isinstance(outer, ast.While) or (
                isinstance(outer, (ast.For, ast.comprehension)) and inner is not outer.iter
            )
            if is_again or (isinstance(outer, COMPREHENSIONS) and inner is not outer.generators[0]):
                return True
            inner = outer
        return False


def own_values(project: Project) -> Iterator[OwnValue]:
    """Yield what every process makes for itself, outside the training loops and of what rank 0 prepares or writes."""
    apart = project.nodes_in_loops | _prepared(project)
    written = {output.scope.source.statement(output.call) for output in project.outputs}
    for node, scope in reached_nodes(project.analysis).of(ast.For, ast.comprehension, ast.Call):
        found = [] if node in apart else list(_found(project.analysis, node, scope))
        if found and _is_in_sampler(project.analysis, scope):
            yield from (OwnValue(SAMPLER_SEED, own.node, scope) for own in found if _seeds_all_again(own))
            found = [own for own in found if own.kind != SEED]
        if not found or scope in run_elsewhere(project.analysis):
            continue
        statement = scope.source.statement(node)
        holds = written & {part for part in walk(statement) if isinstance(part, ast.stmt)}
        is_alone = runs_on_one(project.analysis, scope, statement) or project.runs_in_turn(scope, statement)
        if not holds and not is_alone:
            yield from (own for own in found if not _is_agreed(project.analysis, own))


def _is_in_sampler(analysis: Analysis, scope: Scope) -> bool:
    owner = scope.enclosing_class()
    return owner is not None and bool(analysis.classes.bases(owner) & SAMPLER_BASES)


def _seeds_all_again(own: OwnValue) -> bool:
    """Return whether a sampler seeds the common stream, and not in one process only, as a conversion has it."""
    tests = [outer.test for outer in own.scope.source.ancestors(own.node) if isinstance(outer, ast.If)]
    parts = (part for test in tests for part in walk(test))
    return own.kind == SEED and not any(last_name(part) == "get_world_size" for part in parts)


def _prepared(project: Project) -> set[ast.AST]:
    """Return what rank 0 runs first, in which the processes must not meet."""
    places = [(statement, p.scope) for p in project.preparations for statement in p.statements]
    return {node for node, _ in nodes_run(project.analysis, places)}


def _is_agreed(analysis: Analysis, own: OwnValue) -> bool:
    """Return whether rank 0's value is handed out already, or is all that is shown: not that of a seed, which stays."""
    names = FROM_MAIN if own.kind in (SEED, RESEED) else FROM_MAIN | PRINTS
    around = (outer for outer in own.scope.source.ancestors(own.node) if isinstance(outer, ast.Call))
    return any(analysis.called(outer, own.scope) & names for outer in around)


def _found(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[OwnValue]:
    if isinstance(node, (ast.For, ast.comprehension)):
        if is_set(analysis, node.iter, scope) and not is_any_order(analysis, node, scope):
            yield OwnValue(ORDER, node.iter, scope)
    elif isinstance(node, ast.Call):
        names = analysis.called(node, scope)
        if names & IN_ORDER or last_name(node) in ("join", "fromkeys", "Counter", "update") or keeps_ties(node):
            given = [part for part in node.args if is_set(analysis, part, scope)]
            if given and not is_any_order(analysis, node, scope):
                yield OwnValue(ORDER, node if names & LISTS else given[0], scope)
        elif names & OWN_GENERATORS and not _is_given(node):
            yield OwnValue(GENERATOR, node, scope)
        elif names & SYSTEM_DRAWS:
            yield OwnValue(DRAW, node, scope)
        elif names & (OWN_GENERATORS | GENERATOR_SEEDS):
            if not _is_given(node):
                yield OwnValue(RESEED, node, scope)
            elif node.args and is_drawn(analysis, node, scope, shared=True):
                yield OwnValue(GENERATOR_SEED, node.args[0], scope)
        elif names == {"hash"} and getattr(scope.node, "name", "") != "__hash__":
            yield OwnValue(HASH, node, scope)
        elif _is_own_seed(analysis, node, scope) and not _is_shared_after(analysis, node, scope):
            yield OwnValue(SEED, node, scope)


def _is_own_seed(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call seeds a common stream by what only this process has: nothing, the clock, its number."""
    names = analysis.called(call, scope)
    if names & RESEEDS:
        return True
    return bool(names & SEEDS.keys()) and (not _is_given(call) or is_drawn(analysis, call, scope, shared=True))


def _is_shared_after(analysis: Analysis, seed: ast.Call, scope: Scope) -> bool:
    """Return whether the processes take rank 0's random numbers after a seed, in the same block."""
    statement = scope.source.statement(seed)
    block = block_of(scope.source, statement)
    later = [part for after in block[block.index(statement) :] for part in walk(after)]
    return any(isinstance(part, ast.Call) and analysis.called(part, scope) & SAME_RANDOM_STATE for part in later)


def _is_given(call: ast.Call) -> bool:
    """Return whether a call gets something to begin with, and not None."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(not (isinstance(part, ast.Constant) and part.value is None) for part in given)
