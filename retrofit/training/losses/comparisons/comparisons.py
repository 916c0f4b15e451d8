"""Comparisons of the samples of a batch with each other: products and distances of their rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance
from retrofit.training.data.batch_values import BATCH, draws_next
from retrofit.training.data.carried_state import carried_writes, has_samples_of_batch
from retrofit.training.data.sized.made_before import of_losses
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.distributed import GATHERS
from retrofit.training.torch_api.modules import PARAMETER_CLASSES
from retrofit.training.torch_api.tensors import (
    DISTANCES,
    DISTANCES_WITHIN,
    EINSUMS,
    RANGES,
    SHAPE_ATTRIBUTES,
    SHAPE_METHODS,
    TRANSPOSES,
)

from ..criteria.library import needs_no_gathering
from ..gathering.dimensions import number_of_axes
from ..gathering.numbers import is_of_numbers
from ..reductions.reduction import plain_reader
from .indexed_pairs import indexed_pair
from .meetings import one_and_all, pairs_in_loops, repeated_pairs
from .operands import Pair, pair_of
from .pairs import rows_across_axes, samples_that_meet
from .weights import is_of_weights

if TYPE_CHECKING:
    from retrofit.training import Project

STATES = {"to", "train", "load_state_dict", "zero_grad"}
OF_SHAPE = SHAPE_ATTRIBUTES | SHAPE_METHODS | {"device", "dtype", "len"}


@dataclass(frozen=True)
class Comparison:
    """An operation that compares the rows of `left` and `right`, in the training on a batch.

    `repeated_at`: where these are repeated, if it compares none without that.
    """

    node: ast.expr
    scope: Scope
    left: ast.expr
    right: ast.expr
    repeated_at: tuple[tuple[ast.AST, Scope], ...] = ()

    def __str__(self) -> str:
        left, right = ast.unparse(self.left), ast.unparse(self.right)
        return f"{left} is compared with {'itself' if left == right else right} over the batch"


def comparisons(project: Project) -> list[Comparison]:
    """Return where the samples of one rank's batch are compared with each other."""
    return project.analysis.fact("comparisons", lambda: list(_find(project)))


def _find(project: Project) -> Iterator[Comparison]:
    seen = set()
    for node, scope in project.in_batches.of(ast.BinOp, ast.Compare, ast.Call):
        pair = pair_of(project.analysis, node, scope) or _moved_pair(project, node, scope)
        if pair is None or node in seen or needs_no_gathering(project, node, scope):
            continue
        if not pair.is_moved and _is_of_each_matrix(project, node, pair, scope):
            continue
        seen.add(node)
        parts = (pair.left, pair.right)
        left, right = (ast.unparse(part) for part in parts)
        is_plain = not (pair.is_broadcast or pair.is_moved)
        is_same = left == right and is_plain and not is_of_weights(project, pair.left, scope)
        is_compared = any(_is_embedded(project, part, scope) for part in pair.drawn_from)
        is_compared |= all(_is_embedded(project, part, scope) for part in parts)
        if is_plain and not is_compared and _is_of_matrices(project, node, scope):
            is_compared = any(_is_embedded(project, part, scope) for part in parts)
            is_compared = is_compared and all(_is_of_this_batch(project, part, scope) for part in parts)
        if is_plain and not is_compared and _is_product(project, node, scope):
            is_compared = all(_is_of_inputs(project, part, scope) for part in parts)
        is_compared |= pair.is_broadcast and all(_is_of_layers(project, part, scope) for part in parts)
        if not is_compared and (not is_same or _is_of_no_loss(project, node, parts, scope)):
            continue
        if not pair.drawn_from and _are_of_one_sample(project, node, parts, scope):
            continue
        if _are_weights(project, pair, scope) or (
            not pair.drawn_from and any(is_of_numbers(project, part, scope) for part in parts)
        ):
            continue
        if pair.is_broadcast and not all(_has_samples(project, part, scope) for part in parts):
            continue
        if not any(_is_gathered(project, part, scope) for part in parts):
            yield Comparison(node, scope, pair.left, pair.right, pair.repeated_at)  # type: ignore[arg-type]


def _origins(project: Project, node: ast.expr, scope: Scope) -> list[tuple[ast.AST, Scope]]:
    """Return what an expression is computed from; of a tensor only its entries count, not its size or its place."""

    def through(origin: Origin) -> list[Origin]:
        part = origin.node
        named = part.attr if isinstance(part, ast.Attribute) else last_name(part) if isinstance(part, ast.Call) else ""
        return [] if named in OF_SHAPE else list(inputs(project.analysis, origin))

    return [(found.node, found.scope) for found in origins(project.analysis, [Origin(node, scope)], through)]


def _is_embedded(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this comes out of a model in training, which was given samples of the batch."""
    known: dict[tuple[ast.expr, Scope], bool] = project.analysis.fact("embedded operands", dict)
    if (node, scope) not in known:
        known[node, scope] = _comes_from_model(project, node, scope)
    return known[node, scope]


def _comes_from_model(project: Project, node: ast.expr, scope: Scope) -> bool:
    calls = project.analysis.fact("calls of models with samples", lambda: _given_samples(project))
    loops = {path.loops[0][0] for path in project.paths}
    found = _origins(project, node, scope)
    if not any(part in calls for inner, _ in found for part in walk(inner)):
        return False
    parts = [(part, where) for inner, where in found for part in walk(inner) if isinstance(part, (ast.Name, ast.Call))]
    if any(isinstance(part, ast.Call) and draws_next(part) for part, _ in parts):
        return True
    names = ((part, where) for part, where in parts if isinstance(part, ast.Name))
    drawn = (binding.node for part, where in names for binding in where.bindings.get(part.id, []))
    return project.draws.is_used or any(loop in loops for loop in drawn)


def _is_of_this_batch(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this has samples of the batch, and none that a queue or a memory bank keeps of those before."""
    kept = {write.name for write in carried_writes(project)}
    parts = (part for part, _ in _origins(project, node, scope) if isinstance(part, (ast.Name, ast.Attribute)))
    return has_samples_of_batch(project, node, scope) and kept.isdisjoint(map(ast.unparse, parts))


def _given_samples(project: Project) -> set[ast.Call]:
    in_batches = project.nodes_in_batches  # model.encoder(x) too; model.to(device) is before
    given = [call for model in project.models for call in model.calls if call.call in in_batches and call.call.args]
    return {call.call for call in given if call.method not in STATES}


def _is_of_no_loss(project: Project, node: ast.AST, parts: tuple[ast.expr, ...], scope: Scope) -> bool:
    """Return whether nothing of a batch is compared, and no loss is computed of it: points of a file, for a picture."""
    is_of_batch = any(project.batch_values.sources_of(part, scope) for part in parts)
    return not is_of_batch and node not in of_losses(project)


def _is_of_layers(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this comes out of a layer of a module's own, in the training on a batch."""
    in_batches = project.nodes_in_batches
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and ast.unparse(part.func.value) == "self"
        and part in in_batches
        and where.parent is not None
        and is_module(project.analysis, Instance(where.parent))
        and not project.analysis.functions_called(part, where)
        for part, where in _origins(project, node, scope)
    )


def _is_computed(project: Project, node: ast.expr, scope: Scope) -> bool:
    return _is_embedded(project, node, scope) or _is_of_layers(project, node, scope)


def _are_of_one_sample(project: Project, node: ast.AST, parts: tuple[ast.expr, ...], scope: Scope) -> bool:
    """Return whether both operands are computed, in a loop over the samples, from what the loop has of one of them."""
    samples = plain_reader(project).samples
    for loop in scope.source.ancestors(node):
        if loop is scope.node:
            return False
        if isinstance(loop, ast.For) and samples.goes_through(loop.iter, scope):
            names = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}
            return all(names & _names_within(project, part, scope, loop) for part in parts)
        if isinstance(loop, ast.For) and BATCH in project.batch_values.sources_of(loop.iter, scope):
            return all(_is_segment(project, part, scope, loop) for part in parts)
    return False


def _is_segment(project: Project, node: ast.expr, scope: Scope, loop: ast.For) -> bool:
    """Return whether an expression is computed from rows between two numbers that the batch has for each sample."""
    names = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}
    parts = [part for step in _steps_within(project, node, scope, loop) for part in walk(step)]
    cuts = [part.slice for part in parts if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice)]
    bounds = [(cut.lower, cut.upper) for cut in cuts if cut.lower is not None and cut.upper is not None]
    return any(all(names & _names_within(project, end, scope, loop) for end in ends) for ends in bounds)


def _names_within(project: Project, node: ast.expr, scope: Scope, loop: ast.For) -> set[str]:
    """Return the names in a loop that an expression is computed from."""
    return {step.id for step in _steps_within(project, node, scope, loop) if isinstance(step, ast.Name)}


def _steps_within(project: Project, node: ast.expr, scope: Scope, loop: ast.For) -> list[ast.AST]:
    """Return what an expression is computed from within a loop."""
    inside = set(walk(loop))

    def through(origin: Origin) -> list[Origin]:
        return [part for part in inputs(project.analysis, origin) if part.node in inside]

    return [step.node for step in origins(project.analysis, [Origin(node, scope)], through)]


def _are_weights(project: Project, pair: Pair, scope: Scope) -> bool:
    """Return whether rows of a table are compared: what a layer has for the numbers 0, 1, 2, ..., for no sample."""
    for part in (pair.left, pair.right):
        steps = _origins(project, part, scope)
        is_range = any(isinstance(n, ast.Call) and project.analysis.called(n, where) & RANGES for n, where in steps)
        if is_range and not has_samples_of_batch(project, part, scope):
            return True
    return False


def _has_samples(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this can have a row for each sample: not numbers of positions, frequencies, a table of weights."""
    if project.analysis.named(node, scope) & (RANGES | PARAMETER_CLASSES):
        return False
    return bool(plain_reader(project).kind(node, scope).parts)


def _is_product(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether rows are compared by a product of matrices, and not of a matrix for each sample.

    Distances are also those of the points of one sample.
    """
    names = project.analysis.called(node, scope) if isinstance(node, ast.Call) else set()
    calls = [part for part in walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
    dims = [dim for call in calls if call.func.attr in TRANSPOSES for dim in call.args]  # type: ignore[attr-defined]
    is_of_each = any(isinstance(dim, ast.UnaryOp) for dim in dims)  # transpose(-2, -1)
    return not is_of_each and not names & (DISTANCES | DISTANCES_WITHIN)


def _is_of_matrices(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a product takes two axes of each operand, so that none is of each sample: x @ y.t(), torch.mm."""
    names = project.analysis.called(node, scope) if isinstance(node, ast.Call) else set()
    parts = [part.attr for part in walk(node) if isinstance(part, ast.Attribute)]
    return bool(names & (EINSUMS | {"torch.mm"})) or bool({"t", "T", "mm"} & set(parts))


def _is_of_each_matrix(project: Project, node: ast.AST, pair: Pair, scope: Scope) -> bool:
    """Return whether a product is one of the matrices of each sample: w @ w.mT, where w has more than two axes."""
    is_of_matrices = any(
        (isinstance(part, ast.Attribute) and part.attr == "mT")
        or (isinstance(part, ast.Call) and last_name(part) in TRANSPOSES and _swaps_last(part))
        for part in walk(node)
    )
    return is_of_matrices and (number_of_axes(project.analysis, pair.left, scope) or 0) > 2


def _swaps_last(call: ast.Call) -> bool:
    return {ast.unparse(part) for part in call.args[-2:]} == {"-1", "-2"}


def _is_of_inputs(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is computed, in a method of a model, from what the method is given."""
    if not scope.is_function or scope.parent is None or not is_module(project.analysis, Instance(scope.parent)):
        return False
    if ast.unparse(node).startswith("self.") and not isinstance(node, (ast.Call, ast.BinOp)):
        return False  # a weight, or a state
    if is_of_weights(project, node, scope):
        return False
    given = {name for name, bindings in scope.bindings.items() if any(b.kind == "parameter" for b in bindings)}
    given -= {"self"}
    inner = [part for place, where in project.ranks.origins(node, scope) if where is scope for part in walk(place)]
    return any(isinstance(part, ast.Name) and part.id in given and not _tells_shape(part, scope) for part in inner)


def _tells_shape(node: ast.Name, scope: Scope) -> bool:
    """Return whether only the size, the type or the place of a tensor is read: x.shape, x.device, x.size(0)."""
    parent = scope.source.parents.get(node)
    return isinstance(parent, ast.Attribute) and parent.attr in OF_SHAPE


def _is_gathered(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether what is compared comes from all processes, with the gradients of this one's own part at least."""
    for expression, where in project.ranks.origins(node, scope):
        for part in walk(expression):
            if isinstance(part, ast.Call) and project.leads_to_collective(part, where):
                return not _drops_gradients(project, part, where)
            is_filled = isinstance(part, ast.Name) and part.id in where.entries  # parts[rank] = embeddings
            if is_filled and project.distribution.is_by_hand:
                return True
    return False


def _drops_gradients(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a function gathers by dist.all_gather and puts nothing with a gradient among what it gets."""
    for function in project.analysis.functions_called(call, scope):
        calls = own_nodes(function.node).of(ast.Call)
        names = {name for node in calls for name in project.analysis.called(node, function.scope)}
        if names & GATHERS and not function.scope.entries:
            return True
    return False


def _moved_pair(project: Project, node: ast.AST, scope: Scope) -> Pair | None:
    """Return what is compared row by row where the samples are not in the first axis, or are in loops, or repeated."""
    operands = indexed_pair(project, node, scope)
    if operands is not None:
        return Pair(*operands, is_moved=True)
    operands = samples_that_meet(project, node, scope, lambda part: _is_embedded(project, part, scope))
    if operands is not None:
        return Pair(*operands, is_moved=True)
    in_loops = pairs_in_loops(project, node, scope)
    if in_loops is not None:
        return Pair(*in_loops[0], is_broadcast=True, drawn_from=(*in_loops[0], *in_loops[1]))
    operands = one_and_all(project, node, scope)
    if operands is not None:
        return Pair(*operands, is_moved=True, drawn_from=operands)
    operands = rows_across_axes(project, node, scope, lambda part: _is_computed(project, part, scope))
    if operands is not None:
        return Pair(*operands, is_broadcast=True)
    repeated = repeated_pairs(project, node, scope)
    if repeated is None:
        return None
    return Pair(*repeated[0], is_broadcast=True, repeated_at=tuple((o.node, o.scope) for o in repeated[1]))
