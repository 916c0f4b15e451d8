"""Statistics of the batch that a module of the project keeps, as batch normalisation does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance
from retrofit.training.data.carried_state import carried_writes
from retrofit.training.model.modules import is_module, only_in_training
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS, STATISTICS, SUMS_AND_MEANS, TRANSPOSES

from .first_batch import first_batch_writes
from .reductions.axes import axes_of
from .reductions.kept_counts import counted_in, kept_counts
from .writes import Write, writes_of

if TYPE_CHECKING:
    from retrofit.training import Project

OF_NUMBERS = (ast.Add, ast.Sub, ast.Div, ast.Pow)  # no B * T of a shape
COUNTS = SHAPE_METHODS | {"len", "numel"}


def kept_statistics(project: Project) -> Iterator[Write]:
    """Yield the first statistic that each class of modules keeps of what it is given, and computes its output from.

    A class counts however its objects are reached: by a loop over a container, or by a method of the model. Those
    whose states are found on the way to a loss are left to that, where sums and means are all that they compute.
    """
    known = {write.scope.parent for write in carried_writes(project)}
    at_first = {write.scope.parent for write in first_batch_writes(project)}
    for scope in project.analysis.scopes():
        if not isinstance(scope.node, ast.ClassDef) or scope in at_first:
            continue
        methods = [method for method in known_scopes(project.analysis) if method.parent is scope]
        methods = [method for method in methods if getattr(method.node, "name", "__init__") != "__init__"]
        if not is_module(project.analysis, Instance(scope)) or any(_is_of_all(project, method) for method in methods):
            continue
        if scope not in known or any(_takes_more_than_sums(project, method) for method in methods):
            methods.sort(key=lambda method: method.node.lineno)  # type: ignore[union-attr]
            yield from _first(project, methods)


def _takes_more_than_sums(project: Project, method: Scope) -> bool:
    """Return whether a method computes a spread over the batch, or computes with the number of its samples."""
    counted = {value for value, _ in kept_counts(project)}
    for node in own_nodes(method.node):
        is_sum = last_name(node) in SUMS_AND_MEANS
        if isinstance(node, ast.Call) and not is_sum and _is_statistic(project, node, method):
            return True
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, OF_NUMBERS) else []
        if any(part not in counted and _is_count(project, part, method) for part in parts):
            return True
    return False


def _is_count(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value is the number of samples itself, under a name or not."""
    steps = origins(project.analysis, [Origin(node, scope)], lambda step: sources(project.analysis, step))
    return any(step.scope is scope and any(counted_in(step.node)) for step in steps)


def means_of_training(project: Project, write: Write) -> list[ast.expr]:
    """Return the means over the batch of a method that keeps statistics, where all that it computes follows from them.

    None of them where it takes other statistics, counts samples, or also computes them while it is evaluated.
    """
    nodes = own_nodes(write.scope.node).of(ast.expr)
    found = [node for node in nodes if _is_statistic(project, node, write.scope)]
    means = [node for node in found if last_name(node) == "mean" and only_in_training(node, write.scope)]
    counted = any(isinstance(node, ast.Attribute) and node.attr in SHAPE_ATTRIBUTES for node in nodes)
    counted = counted or any(isinstance(node, ast.Call) and last_name(node) in COUNTS for node in nodes)
    return means if len(means) == len(found) and not counted else []


def _first(project: Project, methods: list[Scope]) -> Iterator[Write]:
    writes = [
        write for method in methods for node in own_nodes(method.node) for write in _updates(project, node, method)
    ]
    read = _read_for_outputs(project, methods) if writes else set()
    yield from [write for write in writes if write.name in read][:1]


def _read_for_outputs(project: Project, methods: list[Scope]) -> set[str]:
    """Return the attributes that the methods compute their results from, by way of others too: sums of a codebook."""
    read = {name for method in methods for name in _returned(project, method)}
    nodes = [(node, method) for method in methods for node in own_nodes(method.node)]
    written = [(ast.unparse(place), value, scope) for node, scope in nodes for place, value, _ in writes_of(node)]
    before: set[str] = set()
    while read - before:
        found, before = [each for each in written if each[0] in read - before], set(read)
        read |= {name for _, value, scope in found for name in _attributes_in(project, value, scope)}
    return read


def _updates(project: Project, node: ast.AST, scope: Scope) -> Iterator[Write]:
    """Yield the attributes of the object that a statement brings up to date with a statistic of an argument."""
    for place, value, is_in_place in writes_of(node):
        if not (isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == "self"):
            continue
        steps = _computed_within(project, value, scope)
        is_update = is_in_place or any(ast.unparse(step) == ast.unparse(place) for step in steps)
        if _is_set_before(project, place, scope.source.statement(node), scope):
            continue
        if is_update and any(_is_statistic(project, step, scope) for step in steps):
            yield Write(node, value, scope, ast.unparse(place))


def _is_set_before(project: Project, place: ast.expr, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether an attribute gets a new value before, in the same call: `self.loss = energy(x)`, then its mean."""
    name = ast.unparse(place)
    inner: ast.AST = statement
    while isinstance(inner, ast.stmt) and inner is not scope.node:
        block = block_of(scope.source, inner)
        for before in block[: block.index(inner)]:
            if not isinstance(before, ast.Assign) or name not in [ast.unparse(target) for target in before.targets]:
                continue
            if not any(ast.unparse(step) == name for step in _computed_within(project, before.value, scope)):
                return True
        inner = scope.source.parents[inner]
    return False


def _is_statistic(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a sum, a mean or a spread of what the function is given."""
    if not isinstance(node, ast.Call) or last_name(node) not in STATISTICS:
        return False
    is_method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "torch"
    rest = node.args if is_method else node.args[1:]
    axes = axes_of(node, rest, scope)[0]
    if axes and 0 not in axes and not any(_is_moved(step) for step in _computed_within(project, node, scope)):
        return False  # of each sample
    given = {name for name, bindings in scope.bindings.items() if any(b.kind == "parameter" for b in bindings)}
    names = (part.id for part in _computed_within(project, node, scope) if isinstance(part, ast.Name))
    return any(name in given - {"self"} for name in names)


def _returned(project: Project, scope: Scope) -> Iterator[str]:
    for node in own_nodes(scope.node).of(ast.Return):
        if node.value is not None:
            yield from _attributes_in(project, node.value, scope)


def _attributes_in(project: Project, value: ast.expr, scope: Scope) -> Iterator[str]:
    steps = _computed_within(project, value, scope)
    yield from (ast.unparse(step) for step in steps if isinstance(step, ast.Attribute))


def _computed_within(project: Project, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return what an expression is computed from in its own function."""

    def through(origin: Origin) -> list[Origin]:
        return [part for part in inputs(project.analysis, origin) if part.scope is scope]

    steps = origins(project.analysis, [Origin(node, scope)], through)
    return [step.node for step in steps if isinstance(step.node, ast.expr)]


def _is_of_all(project: Project, scope: Scope) -> bool:
    """Return whether a method brings the statistics of all processes together."""
    calls = own_nodes(scope.node).of(ast.Call)
    return any(project.leads_to_collective(call, scope) for call in calls)


def _is_moved(node: ast.expr) -> bool:
    """Return whether the first axis, of the samples, becomes another one; axes that cannot be read may be that."""
    if isinstance(node, ast.Attribute):
        return node.attr == "T"
    if not isinstance(node, ast.Call) or last_name(node) not in TRANSPOSES:
        return False
    is_function = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "torch"
    given = [*node.args[is_function:], *(k.value for k in node.keywords if k.arg != "input")]
    given = list(given[0].elts) if len(given) == 1 and isinstance(given[0], (ast.Tuple, ast.List)) else given
    texts = [ast.unparse(part) for part in given]
    if last_name(node) == "permute":
        return texts[:1] != ["0"]
    return not texts or "0" in texts or not all(text.lstrip("-").isdigit() for text in texts)
