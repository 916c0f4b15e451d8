"""The dimension of the samples: of what is drawn at random, and of data that are cut into slices."""

from __future__ import annotations

import ast
import re

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.operands import computed_from, operands
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import ScopedName, own_variable
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.draws import SHUFFLES
from retrofit.training.torch_api.modules import SEQUENCE_FIRST
from retrofit.training.torch_api.runtime import DRAW_TOGETHER
from retrofit.training.torch_api.tensors import CONVERTS, SAME_ENTRIES

from ..sized_draws import dimensions_of, gives_indices, is_order, names_of
from .slices import Slice, bounds_of

NAMED_AS_BATCH = re.compile(r"batch|^b_?(s?z?|size)$|n_?rand|num_?samples|n_?samples", re.IGNORECASE)
SAME_ROWS = SAME_ENTRIES | CONVERTS | {"array", "asarray", "list"}


def is_named(analysis: Analysis, size: ast.expr, scope: Scope) -> bool:
    """Return whether a size is called one of a batch, or is given as one: n = batch_size."""
    names = (o.node for o in computed_from(analysis, size, scope) if isinstance(o.node, (ast.Name, ast.Attribute)))
    return any(NAMED_AS_BATCH.search(last_name(name)) for name in names)


def is_by_rows(analysis: Analysis, node: ast.expr, scope: Scope, size: ast.expr) -> bool:
    """Return whether the first dimension of a draw is that of the samples."""
    dimensions = dimensions_of(analysis, node, scope)
    if (dimensions == 1 and gives_indices(analysis, node, scope)) or is_named(analysis, size, scope):
        return True
    return dimensions == 2 and not _has_sequence_first(analysis)


def cuts_samples(analysis: Analysis, found: Slice, loop_nodes: frozenset[ast.AST]) -> bool:
    """Return whether a slice is one of samples, or of indices of samples, and not of one long sequence."""
    if is_in_random_order(analysis, found.node.value, found.scope):
        return True
    return any(is_named(analysis, *size) for size in found.sizes) and not _has_shifted(found, loop_nodes)


def columns_of(node: ast.AST) -> list[ast.expr]:
    """Return the indices by which an expression chooses in other dimensions than the first, which it keeps whole."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    parts = index.elts if isinstance(index, ast.Tuple) else []
    whole = [isinstance(part, (ast.Slice, ast.Constant)) for part in parts]
    return [part for part in parts if not isinstance(part, (ast.Slice, ast.Constant))] if whole[:1] == [True] else []


def is_in_random_order(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a random order, of indices or of the data."""
    for origin in origins(analysis, [Origin(node, scope)], _same_rows):
        if is_order(analysis, origin.node, origin.scope) or _is_shuffled(analysis, origin):
            return True
        if isinstance(origin.node, ast.Call) and DRAW_TOGETHER in analysis.called(origin.node, origin.scope):
            return True
    return False


def _is_shuffled(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a variable is brought into a random order in place: random.shuffle(rows)."""

    def compute() -> set[ScopedName | None]:
        calls = [(node, scope) for node, scope in reached_calls(analysis) if node.args]
        return {
            own_variable(node.args[0], scope) for node, scope in calls if names_of(analysis, node, scope) & SHUFFLES
        }

    variable = own_variable(origin.node, origin.scope) if isinstance(origin.node, (ast.Name, ast.Attribute)) else None
    return variable is not None and not origin.keys and variable in analysis.fact("shuffled in place", compute)


def _same_rows(origin: Origin) -> list[Origin] | None:
    """Return what has the rows of an expression, in another order: `x` and `order` of x[order]."""
    node = origin.node
    if isinstance(node, ast.Subscript):
        return [origin.to(node.value, keys=()), origin.to(node.slice, keys=())]
    if isinstance(node, ast.Call) and last_name(node) in SAME_ROWS:
        return [origin.to(part, keys=()) for part in operands(node)]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):  # the method of such a call
        return [origin.to(node.value, keys=())]
    return None


def _has_sequence_first(analysis: Analysis) -> bool:
    """Return whether a layer takes the samples along the second dimension: nn.LSTM without batch_first=True."""
    given = (argument_for(call, [], "batch_first") for call, _ in calls_named(analysis, SEQUENCE_FIRST))
    return any(not isinstance(value, ast.Constant) or not value.value for value in given)


def _has_shifted(found: Slice, loop_nodes: frozenset[ast.AST]) -> bool:
    """Return whether the same data are also cut one further: inputs and targets of one sequence."""
    base, bounds = ast.dump(found.node.value), bounds_of(found.node)
    assert bounds is not None
    cut = ((node, other) for node in loop_nodes if (other := bounds_of(node)) is not None)
    starts = {ast.dump(other[0]) for node, other in cut if ast.dump(node.value) == base}  # type: ignore[attr-defined]
    return len(starts | {ast.dump(bounds[0])}) > 1
