"""Uses of the batch size of the settings, and of multiples of it, by which a figure depends on the batch."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.interpreter.state import Flow, Root, escaped
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import COUNTERS, SETS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.distributed import WORLD_SIZE
from retrofit.training.torch_api.tensors import DISTINCT, WITHOUT_HISTORY

from ...data.drawn import builders_of_value, loaders_in
from ...data.loaders import TRAIN
from ...losses.reductions.kinds import GLOBAL
from ...losses.reductions.reduction import loss_kind
from ...optimizer.schedules import rate_terms
from ..kinds import BATCH_SIZE, SIZE

if TYPE_CHECKING:
    from ... import Project

ONCE = SETS | COUNTERS  # functions of which the result has equal entries once
IN_SETS, AS_UNIQUE = "in sets", "as unique"


def is_changed(node: ast.expr, scope: Scope) -> bool:
    """Return whether a name is the one that `batch_size *= 2` changes, where no call can be written."""
    outer = scope.source.parents[node]
    return isinstance(outer, ast.AugAssign) and node is not outer.value


def is_batch_size(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a batch size of the settings, or a multiple of one that is counted or timed.

    Also a number as large as that.
    """
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return project.batch_sizes.is_number(node, scope)
    known: dict[tuple[ast.expr, Scope], bool] = project.analysis.fact("batch sizes read", dict)
    if (node, scope) not in known:
        known[node, scope] = _is_batch_size(project, node, scope)
    return known[node, scope]


def _is_batch_size(project: Project, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    sizes = project.batch_sizes
    is_one = (node, scope) in sizes and not is_changed(node, scope)
    product = sizes.product(node, scope) if not is_one and is_counted_or_timed(node, scope) else None
    if product is None or WORLD_SIZE in project.ranks.sources_of(node, scope):
        return is_one
    return product not in rate_terms(project)  # what trains by it has it scaled elsewhere


def is_multiplied(root: Root) -> bool:
    """Return whether a batch size is a factor, or is added to what was counted before."""
    outer = root.scope.source.parents[root.node]
    is_factor = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult)
    return is_factor or (isinstance(outer, ast.AugAssign) and isinstance(outer.op, ast.Add))


def is_counted_or_timed(node: ast.expr, scope: Scope) -> bool:
    """Return whether something is multiplied, added to a count, or divided by: tokens_per_step / seconds."""
    outer = scope.source.parents.get(node)
    if isinstance(outer, ast.AugAssign):
        return isinstance(outer.op, ast.Add) and node is outer.value
    is_divided = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Div) and node is outer.left
    return is_divided or (isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult))


def adds_to_count(root: Root) -> bool:
    """Return whether samples are added to what was counted in the batches before: `alpha += len(images) / total`."""
    statement = root.scope.source.statement(root.node)
    is_sum = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add)
    return is_sum and root.kind in (SIZE, BATCH_SIZE)


def is_carried_count(flow: Flow) -> bool:
    """Return whether a value is computed of numbers of samples that were counted over the batches."""
    roots = escaped(flow)
    return bool(roots) and all(adds_to_count(root) for root in roots)


def held_once(analysis: Analysis, length: ast.Call, scope: Scope, given: list[Flow]) -> str:
    """Return how what is counted holds equal entries of samples once: IN_SETS, or as torch.unique gives it; else ""."""
    held = [value for part in length.args for one in _united(part) for value in analysis.evaluate(one, scope)]
    calls = [value for value in held if isinstance(value, Result)]
    made = [*(cell.node for flow in given for cell in flow.cells), *(value.call for value in calls)]
    if any(_is_set(node) for node in made):
        return IN_SETS
    return AS_UNIQUE if any(value.builder.rpartition(".")[2] in DISTINCT for value in calls) else ""


def _is_set(node: ast.AST) -> bool:
    """Return whether this makes a set, or counts by entry."""
    return isinstance(node, (ast.Set, ast.SetComp)) or (isinstance(node, ast.Call) and last_name(node) in ONCE)


def _united(node: ast.expr) -> list[ast.expr]:
    """Return the sets that a union, or another operation on sets, is made of."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)):
        return [*_united(node.left), *_united(node.right)]
    return [node]


def counts_epoch(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a batch size is multiplied by the number of batches of a training loader: len(loader) * size."""
    outer = scope.source.parents.get(node)
    if not isinstance(outer, ast.BinOp) or not isinstance(outer.op, ast.Mult):
        return False
    length = outer.left if outer.right is node else outer.right
    if not isinstance(length, ast.Call) or last_name(length) != "len" or not length.args:
        return False
    held = loaders_in(project.analysis, length.args[0], scope) or [(length.args[0], scope)]
    made = {builder for place in held for builder in builders_of_value(project.analysis, *place)}
    sharded = {b for loader in project.loaders if loader.roles == {TRAIN} for b in loader.builders}
    return bool(made) and made <= sharded


def divides_by_open_size(project: Project, node: ast.BinOp) -> bool:
    """Return whether a batch's count is divided by what may be the size of batches that an object makes itself.

    The object does not say it, and several ranks have as many samples in a step: `correct / args.batch_size`.
    """
    if not project.takes_ready_batches or not isinstance(node.op, ast.Div) or node not in project.nodes_in_batches:
        return False
    parts = list(walk(node.right))
    is_scale = isinstance(node.right, ast.Constant) and str(node.right.value).strip("0.") in ("", "1")  # to a unit
    return not is_scale and not any(isinstance(part, ast.Call) and last_name(part) == "len" for part in parts)


def divides_whole_figure(project: Project, node: ast.BinOp, sides: list[Flow]) -> bool:
    """Return whether a batch size divides what a batch gave that every rank has whole, and no number of steps."""
    dividend, divisor = sides
    if dividend.differs or divisor.kind != BATCH_SIZE or divisor.place is None or not isinstance(node.op, ast.Div):
        return False
    origins = project.ranks.origins(node.left, divisor.place.scope)
    parts = ((part, scope) for node, scope in origins for part in walk(node))
    read = [
        (part.value, scope) for part, scope in parts if isinstance(part, ast.Attribute) and part.attr in WITHOUT_HISTORY
    ]
    is_of_all_ranks = any(GLOBAL in loss_kind(project, *place).parts for place in read)
    return bool(read) and not is_of_all_ranks
