"""Losses that couple the samples of a batch: which sums and means have to be those of all ranks, and which can be."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.branches import exits_before
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.nodes import COMPREHENSIONS, children, walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.data.batch_values import BATCH, CHOSEN, GRADIENT, UNEVEN
from retrofit.training.data.carried_state import Write, carried_writes
from retrofit.training.data.random_draws import is_drawn
from retrofit.training.loops import LOOPS
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.modules import only_in_training
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS

from ..criteria.ignored_labels import counts_labels
from ..divisions import total_in
from ..rows.chosen_elements import is_mean_of_chosen, values_of_mean
from ..rows.uneven_rows import has_own_lengths
from ..terms import is_of_all, terms_at
from .kinds import MEAN, SUM
from .reduction import backward_kind, plain_reader, reader_of

if TYPE_CHECKING:
    from retrofit.training import Project

    from .reader import LossReader

OF_NUMPY = {"rd.loss.batch_mean": "rd.reduce_loss"}  # which takes numbers, without gradients
FUNCTION_OF = {SUM: "rd.loss.batch_sum", MEAN: "rd.loss.batch_mean"}
IN_MODEL = "it is in the model, which an evaluation runs too"
ONE_BY_ONE = "it is computed for one sample after the other elsewhere"
MAYBE_ONE_BY_ONE = "it may be computed for one sample after the other"
ABOUT_SHAPES = SHAPE_METHODS | {"len", "isinstance", "is_tensor", "hasattr"}


@dataclass(frozen=True)
class Coupling:
    """A sum or mean over the batch that a loss is not linear in, and the function that makes it one of all ranks.

    `function`: "" where that is not possible in its place, for `reason`. `learns`: its gradients count.
    """

    node: ast.expr
    scope: Scope
    function: str
    reason: str = ""
    learns: bool = True


def couplings(project: Project) -> list[Coupling]:
    """Return what couples the samples in the training losses, in source order."""

    def found() -> list[Coupling]:
        shared = {evaluation.loop for evaluation in project.evaluations if not evaluation.reason}
        own = (each for each in _find(project) if not _is_within(each, shared) and not _is_before(project, each))
        return sorted(own, key=_order)

    return project.analysis.fact("couplings", found)


def _is_within(coupling: Coupling, loops: Collection[ast.AST]) -> bool:
    """Return whether a sum is over the batches of an evaluation, which makes it that of all ranks after its loop."""
    return any(outer in loops for outer in coupling.scope.source.ancestors(coupling.node))


def coupled_otherwise(project: Project) -> list[tuple[ast.expr, Scope]]:
    """Return what couples the samples in the losses as they are written and is not just a sum or mean over it."""
    reader = plain_reader(project)
    found: dict[ast.expr, Scope] = {}
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        assert isinstance(call, ast.Call)
        if not is_of_all(project.analysis, project.distribution, path):
            found |= {node: where for node, where in backward_kind(project, call, scope, reader).coupled}
    return [
        (node, scope)
        for node, scope in sorted(found.items(), key=lambda place: (place[0].lineno, place[0].col_offset))
        if node not in reader.in_models
        and not any(counts_labels(project, term) for term in terms_at(project.analysis, node, scope))
        and not _function_of(reader, node)
    ]


def _is_before(project: Project, coupling: Coupling) -> bool:
    """Return whether a sum or mean is computed outside the steps: of the data, by which a scaler is set."""
    steps = project.nodes_in_batches
    chains = [(coupling.node, coupling.scope), *call_chains(project.analysis, coupling.node, coupling.scope)]
    if any(place in steps for place, _ in chains):
        return False
    return any(scope is scope.module for _, scope in chains) or _is_unused(project, coupling.scope)


def _is_unused(project: Project, scope: Scope) -> bool:
    """Return whether a function is a method, of a class without bases, that nothing in the project names."""
    owner, name = scope.parent, getattr(scope.node, "name", "__")
    if owner is None or not isinstance(owner.node, ast.ClassDef) or owner.node.bases or name.startswith("__"):
        return False
    nodes = (node for source in project.sources for node in source.nodes)
    return not any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def is_brought_together(project: Project, scope: Scope) -> bool:
    """Return whether a script that is distributed by hand adds up over the processes where its loss is computed."""
    if not project.distribution.is_by_hand:
        return False
    calls = own_nodes(scope.node).of(ast.Call)
    return any(project.leads_to_collective(call, scope) for call in calls)


def coupled_nodes(project: Project) -> set[ast.AST]:
    """Return the sums and means that are made those of all ranks."""
    return {coupling.node for coupling in couplings(project) if coupling.function}


def _order(coupling: Coupling) -> tuple[str, int, int]:
    return coupling.scope.source.name, coupling.node.lineno, coupling.node.col_offset


def _find(project: Project) -> Iterator[Coupling]:
    from ..gathering.kept_batches import has_only_kept_batches

    reader = reader_of(project)
    seen: set[ast.AST] = set()
    for path in [] if has_only_kept_batches(project) else project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        assert isinstance(call, ast.Call)
        if is_of_all(project.analysis, project.distribution, path):
            continue
        for node, where in backward_kind(project, call, scope).coupled:
            if node not in seen:
                seen.add(node)
                if any(counts_labels(project, term) for term in terms_at(project.analysis, node, where)):
                    continue  # a mean over the elements that count, which is another matter
                yield _coupling(project, node, where)
    for write in carried_writes(project):
        leaves = reader.kind(write.value, write.scope).leaves if has_statistics_alone(project, write) else ()
        for node, where in leaves:
            if node not in seen:
                seen.add(node)
                yield _coupling(project, node, where)


def _coupling(project: Project, node: ast.expr, scope: Scope) -> Coupling:
    function = _function_of(reader_of(project), node)
    if isinstance(node, ast.Call) and any(name.startswith("numpy.") for name in project.analysis.called(node, scope)):
        function = OF_NUMPY.get(function, "")
    reason = "" if function else "it is not a plain sum or mean"
    if node in reader_of(project).in_models and not (_is_added_to_state(node, scope) or only_in_training(node, scope)):
        reason = IN_MODEL
    reason = reason or obstacle(project, node, scope, together=True)
    learns = has_gradients(project.analysis, scope, node)
    values = values_of_mean(project.analysis, node, scope)
    if values is not None and UNEVEN in project.batch_values.sources_of(values, scope):
        is_weighed = learns and is_mean_of_chosen(project, node, scope)  # by rd.loss.chosen_mean
        reason = reason or ("" if is_weighed else "processes choose different numbers of elements for it")
    return Coupling(node, scope, "" if reason else function, reason, learns)


def _is_added_to_state(node: ast.expr, scope: Scope) -> bool:
    """Return whether a sum is added to what an object keeps: `self.total += x.sum(0)`."""
    statement = scope.source.statement(node)
    return isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Attribute)


def _function_of(reader: LossReader, node: ast.expr) -> str:
    """Return the function that makes a sum or a mean one of all ranks, "" for what is neither."""
    hows = reader.reductions.get(node, set())
    return FUNCTION_OF.get(next(iter(hows)), "") if len(hows) == 1 else ""


def has_statistics_alone(project: Project, write: Write) -> bool:
    """Return whether a state gets sums and means over the batch, which can be those of all ranks, and no samples.

    It gets them as a whole, or at a place that is the same on all ranks.
    """
    kind = reader_of(project).kind(write.value, write.scope)
    if kind.has_rows or not kind.leaves or any(_is_own_place(project, *place) for place in _places(write)):
        return False
    reader = reader_of(project)
    leaves = kind.leaves
    return all(_function_of(reader, node) and not obstacle(project, node, scope, True) for node, scope in leaves)


def _places(write: Write) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the indices at which a state is written, or read for that."""
    for part in walk(write.node):
        if isinstance(part, ast.Subscript) and ast.unparse(part.value) == write.name:
            yield part.slice, write.scope


def _is_own_place(project: Project, index: ast.expr, scope: Scope) -> bool:
    return BATCH in project.batch_values.sources_of(index, scope) or is_drawn(project, index, scope)


def obstacle(project: Project, node: ast.expr, scope: Scope, together: bool = False) -> str:
    """Return why not every rank would come to a node, or come to it equally often; "" where all do.

    `together`: tests of what a rank counts are made those of all ranks, so that all decide the same.
    """
    samples = plain_reader(project).samples
    for place, where in call_chains(project.analysis, node, scope):
        for outer in where.source.ancestors(place):
            is_last = outer is where.node or outer in project.batch_values.loops
            if not is_last and isinstance(outer, (*LOOPS, ast.ListComp, ast.GeneratorExp)):
                for iterable in () if _is_over_data(project, outer, where) else _iterables(outer):
                    if samples.goes_through(iterable, where):
                        return ONE_BY_ONE
                    is_of_batches = outer in project.batch_values.steps
                    if not is_of_batches and any(_may_be_samples(project, part, where) for part in _zipped(iterable)):
                        return MAYBE_ONE_BY_ONE
                    found = project.batch_values.sources_of(iterable, where)
                    if CHOSEN in found or (BATCH in found and has_own_lengths(project)):
                        return "processes may come to it a different number of times"
            if is_last:
                break
    tests = deciding_tests(project, node, scope)
    is_left_out = any(not together or total_in(project, *test) is None for test in tests)
    return "processes may not all come to it" if is_left_out else ""


def _is_over_data(project: Project, loop: ast.AST, scope: Scope) -> bool:
    """Return whether a loop that trains goes through all data of the script: `for i in range(0, len(data), size)`."""
    values = project.batch_values
    return loop in values.steps and not any(BATCH in values.sources_of(part, scope) for part in _iterables(loop))


def deciding_tests(project: Project, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the tests of a rank's own samples, or of what it draws, that decide whether it comes to a node."""
    from retrofit.training.steps.choosing_draws import is_made_together  # which reads losses
    from retrofit.training.steps.skipped_steps import tests_of_one

    for place, where in call_chains(project.analysis, node, scope):
        inner: ast.AST = place
        for outer in where.source.ancestors(place):
            is_last = outer is where.node or outer in project.batch_values.loops
            tests = list(exits_before(where.source, inner, (ast.Return, ast.Continue, ast.Break)))
            if not is_last and isinstance(outer, (ast.If, ast.IfExp, ast.While)) and inner is not outer.test:
                tests.append(outer.test)
            if not is_last and isinstance(outer, COMPREHENSIONS) and not isinstance(inner, ast.comprehension):
                tests += [test for generator in outer.generators for test in generator.ifs]
            for test in tests:
                is_own = is_drawn(project, test, where) and not is_made_together(project, test, where)
                if test not in tests_of_one(project) and (_reads_values(project, test, where) or is_own):
                    yield test, where
            if is_last:
                break
            inner = outer


def _may_be_samples(project: Project, iterable: ast.expr, scope: Scope) -> bool:
    """Return whether a list of a batch, not of what a model makes of it, can have an entry for each sample."""
    is_of_model = GRADIENT in project.batch_values.sources_of(iterable, scope)
    return not is_of_model and bool(plain_reader(project).samples.unclear(iterable, scope))


def _zipped(iterable: ast.expr) -> list[ast.expr]:
    return iterable.args if isinstance(iterable, ast.Call) and last_name(iterable) == "zip" else [iterable]


def _iterables(loop: ast.AST) -> list[ast.expr]:
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        return [loop.iter]
    return [part.iter for part in loop.generators] if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else []


def is_made_global(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is computed from sums over the batch that are made those of all ranks.

    A sum over what is computed from such sums is this rank's own.
    """
    known = coupled_nodes(project)
    sums = reader_of(project).reductions
    own = any(part in sums and part not in known for part in walk(node))
    return not own and any(leaf in known for leaf, _ in reader_of(project).kind(node, scope).leaves)


def _reads_values(project: Project, test: ast.expr, scope: Scope) -> bool:
    """Return whether a test depends on the values in a batch: not only on shapes, types, and whether there are any.

    How many elements a mask leaves depends on them.
    """
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return False
    if isinstance(test, ast.Attribute) and test.attr in SHAPE_ATTRIBUTES:
        return UNEVEN in project.batch_values.sources_of(test, scope)
    if isinstance(test, ast.Call):
        name = test.func.attr if isinstance(test.func, ast.Attribute) else getattr(test.func, "id", "")
        if name in ABOUT_SHAPES:
            return UNEVEN in project.batch_values.sources_of(test, scope)
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call)):
        return bool(project.batch_values.sources_of(test, scope))
    parts = (part for part in children(test) if isinstance(part, ast.expr))
    return any(_reads_values(project, part, scope) for part in parts)
