"""Values that each process makes in its own way before it trains: orders of sets, generators that nothing seeds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.keys import Key
from retrofit.analysis.flow.reachability import reached_of
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result
from retrofit.training.data.seeds import is_drawn
from retrofit.training.data.workers import run_elsewhere
from retrofit.training.files.guards import runs_on_one
from retrofit.training.torch_api.data import SAMPLER_BASES
from retrofit.training.torch_api.modules import CHILDREN, MODULES, PARAMETERS
from retrofit.training.torch_api.output import PRINTS
from retrofit.training.torch_api.randomness import GENERATOR_SEEDS, OWN_GENERATORS, RESEEDS, SEEDS, SYSTEM_DRAWS
from retrofit.training.torch_api.runtime import FROM_MAIN, SAME_RANDOM_STATE

if TYPE_CHECKING:
    from retrofit.training import Project

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SETS = frozenset({"set", "frozenset"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
LISTS = frozenset({"list", "tuple"})
IN_ORDER = LISTS | {"enumerate", "iter", "zip", "map", "dict.fromkeys", "join"}
NO_ORDER = SETS | {"len", "sum", "min", "max", "any", "all", "isinstance"}
NUMBERS = frozenset({"int", "range", "item", "float", "len", "ord", "bool", "arange", "randint", "randperm"})
# Functions of numpy that give entries of their argument; the others give numbers.
OF_ITS_ARGUMENT = frozenset({"choice", "permutation", "unique", "sort", "array", "asarray", "concatenate", "setdiff1d"})
PARTS_OF_MODELS = PARAMETERS | CHILDREN | MODULES | {"buffers", "named_buffers"}
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
    apart = {node for node, _ in project.in_loops} | _prepared(project)
    written = {output.scope.source.statement(output.call) for output in project.outputs}
    for node, scope in reached_of(project.analysis, ast.For, ast.comprehension, ast.Call):
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
        if is_set(analysis, node.iter, scope) and not _is_any_order(analysis, node, scope):
            yield OwnValue(ORDER, node.iter, scope)
    elif isinstance(node, ast.Call):
        names = analysis.called(node, scope)
        if names & IN_ORDER or last_name(node) in ("join", "fromkeys", "Counter", "update") or _keeps_ties(node):
            given = [part for part in node.args if is_set(analysis, part, scope)]
            if given and not _is_any_order(analysis, node, scope):
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


def is_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a set, of what may be texts: their order follows the seed of a process."""
    known: Memory[bool] = analysis.fact("sets", lambda: Memory(False))  # words = words - {"the"}
    return known.once((node, scope), lambda: _is_set(analysis, node, scope))


def _is_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.BinOp):
        is_operator = isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor))
        sides = (node.left, node.right)
        is_any = is_operator and any(is_set(analysis, part, scope) for part in sides)
        are_others = (_has_numbers(analysis, part, scope) or _are_objects(analysis, part, scope) for part in sides)
        return is_any and not any(are_others)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS:
        return is_set(analysis, node.func.value, scope)
    values = analysis.evaluate(node, scope)
    return bool(values) and all(_is_of_texts(analysis, value) for value in values)


def _is_of_texts(analysis: Analysis, value: object) -> bool:
    if isinstance(value, Result):
        is_other = any(
            _has_numbers(analysis, part, value.scope) or _are_objects(analysis, part, value.scope)
            for part in value.call.args
        )
        return value.builder in SETS and not is_other
    if isinstance(value, Display) and isinstance(value.node, ast.BinOp):
        return is_set(analysis, value.node, value.scope)
    if not isinstance(value, Display) or not isinstance(value.node, (ast.Set, ast.SetComp)):
        return False
    parts = value.node.elts if isinstance(value.node, ast.Set) else [value.node.elt]
    return not all(_is_of_numbers(part) for part in parts) and not _are_objects(analysis, value.node, value.scope)


def _are_objects(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this holds parameters or layers, or their addresses: nothing can hand these to another process."""

    def through(origin: Origin) -> list[Origin] | None:
        call = origin.node
        is_filter = isinstance(call, ast.Call) and last_name(call) == "filter" and len(call.args) == 2
        return [origin.to(call.args[1])] if is_filter else None  # type: ignore[union-attr]

    return any(_is_part_of_model(o) for o in origins(analysis, [Origin(node, scope, (Key.ELEMENT,))], through))


def _is_part_of_model(origin: Origin) -> bool:
    call, name = origin.node, last_name(origin.node)
    if not isinstance(call, ast.Call):
        return False
    if name == "map":
        return bool(call.args) and last_name(call.args[0]) == "id"
    is_name = name.startswith("named_") and origin.keys[1:2] == (0,)
    return name == "id" or (isinstance(call.func, ast.Attribute) and name in PARTS_OF_MODELS and not is_name)


def _has_numbers(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether these are numbers, which every process puts in the same order."""
    known: Memory[bool] = analysis.fact("numbers", lambda: Memory(True))  # rest = list(set(rest) - chosen)
    return known.once((node, scope), lambda: _are_numbers(analysis, node, scope))


def _are_numbers(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.BinOp):
        return any(_has_numbers(analysis, part, scope) for part in (node.left, node.right))
    if isinstance(node, ast.Call):
        names = analysis.called(node, scope)
        if any(name.startswith("numpy.") for name in names):
            given = node.args[:1] if last_name(node) in OF_ITS_ARGUMENT else []
            return all(_has_numbers(analysis, part, scope) for part in given)
        if names & {"list", "tuple", "sorted", *SETS} and node.args:
            return _has_numbers(analysis, node.args[0], scope)
    if isinstance(node, ast.Name):
        values = analysis.evaluate(node, scope)
        made = [v.call if isinstance(v, Result) else getattr(v, "node", None) for v in values]
        places = [(m, getattr(v, "scope", scope)) for m, v in zip(made, values) if isinstance(m, ast.expr)]
        return bool(places) and len(places) == len(values) and all(_has_numbers(analysis, *place) for place in places)
    return _is_of_numbers(node)


def _is_of_numbers(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_is_of_numbers(part) for part in node.elts)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        (first, *_) = node.generators
        is_counted = last_name(first.iter) == "range" and ast.unparse(first.target) == ast.unparse(node.elt)
        return is_counted or _is_of_numbers(node.elt)
    return isinstance(node, ast.Call) and last_name(node) in NUMBERS


def _is_any_order(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether the order does not matter: `sorted(list(words))`, `{word.lower() for word in words}`."""
    if isinstance(node, ast.For):
        return all(_is_the_same(analysis, statement, scope) for statement in node.body)
    if isinstance(node, ast.Call) and _fills_set(analysis, node, scope):
        return True
    outer = scope.source.parents[node]
    if isinstance(node, ast.comprehension):
        if isinstance(outer, ast.SetComp):
            return True
        outer = scope.source.parents[outer]
    if not isinstance(outer, ast.Call):
        return False
    is_sorted = last_name(outer) == "sorted" and not _keeps_ties(outer)
    return is_sorted or last_name(outer) in NO_ORDER or _fills_set(analysis, outer, scope)


def _keeps_ties(call: ast.Call) -> bool:
    """Return whether what is sorted stays in its order where a key does not tell: sorted(words, key=len)."""
    return last_name(call) == "sorted" and any(keyword.arg == "key" for keyword in call.keywords)


def _is_the_same(analysis: Analysis, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement in a loop does the same in any order: it fills a set, counts, shows or asserts."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value) in ("print", "info") or _fills_set(analysis, statement.value, scope)
    if isinstance(statement, ast.AugAssign):
        return _is_of_numbers(statement.value) or _is_any_set(analysis, statement.target, scope)
    return isinstance(statement, (ast.Assert, ast.Raise, ast.Pass))


def _fills_set(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call puts something into a set, or takes it out: not `vocabulary.add(word)` of an own class."""
    is_change = isinstance(call.func, ast.Attribute) and call.func.attr in ("add", "discard", "update")
    return is_change and _is_any_set(analysis, call.func.value, scope)  # type: ignore[attr-defined]


def _is_any_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    values = analysis.evaluate(node, scope)
    return bool(values) and all(
        (isinstance(value, Result) and value.builder in SETS)
        or (isinstance(value, Display) and isinstance(value.node, (ast.Set, ast.SetComp)))
        for value in values
    )
