"""Outputs of a model: rows of the samples, figures of its batch, and what it gives next to the loss.

Next to a loss: `losses, pictures = trainer(batch)`, `out["pictures"]`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.keys import Keys, may_be
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.interpreter.state import OTHER, Flow, Root
from retrofit.analysis.scopes import Scope

from .. import Project
from ..data.batch_values import GRADIENT
from ..losses.reductions import kinds as loss_kinds
from ..losses.reductions.kinds import Kind
from ..losses.reductions.reduction import has_rows, reader_of
from ..losses.wrapped import functions_inside
from .kinds import BATCH, KEEPING, MEAN, SUM
from .loss_names import LossNames

NUMBERS = frozenset({"float", "int", "len"})
REDUCED = {loss_kinds.MEAN: MEAN, loss_kinds.SUM: SUM}


def outputs_of(project: Project, call: ast.Call, scope: Scope) -> Flow:
    """Return what a call of a model gives: where it is a tuple that is written down, what each part of it is."""
    functions = functions_inside(project.analysis, call, scope)
    returned = [value for function in functions for value in returns_of(function.node)]
    sizes = {len(value.elts) if isinstance(value, ast.Tuple) else 0 for value in returned}
    starred = (part for value in returned if isinstance(value, ast.Tuple) for part in value.elts)
    if returned and all(_is_number(value) for value in returned):
        return Flow(OTHER, is_read=True)
    if len(sizes) != 1 or 0 in sizes or any(isinstance(part, ast.Starred) for part in starred):
        return Flow(BATCH)
    reader = reader_of(project)
    return Flow(BATCH, parts=tuple(_flow(reader.kind(call, scope, None, (index,))) for index in range(sizes.pop())))


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression surely is a number of Python: (outputs == targets).sum().item()."""
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) or _is_number(node.right)
    if not isinstance(node, ast.Call):
        return False
    return last_name(node) == "item" if isinstance(node.func, ast.Attribute) else last_name(node) in NUMBERS


def _flow(kind: Kind) -> Flow:
    """Return how an output differs between ranks; a function of sums and means is not that of all ranks' samples."""
    if kind.has_rows or kind.parts & {loss_kinds.UNKNOWN, loss_kinds.PENALTY}:
        return Flow(BATCH)
    (part,) = kind.parts if len(kind.parts) == 1 else ("",)
    return Flow(REDUCED.get(part, OTHER))


def may_be_loss(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value can have gradients, and has no row for each sample: labels as one-hot are not a loss."""
    return GRADIENT in project.batch_values.sources_of(node, scope) and not has_rows(project, node, scope)


def is_next_to_loss(project: Project, losses: LossNames, root: Root) -> bool:
    """Return whether an expression is another entry of what a term of a loss gives than the loss is."""

    def kept(origin: Origin) -> Iterable[Origin] | None:
        node = origin.node
        if node in losses.terms:
            return ()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
            return [origin.to(node.func.value)]
        is_kept = isinstance(node, ast.Attribute) and node.attr in KEEPING
        return [origin.to(node.value)] if is_kept else None  # type: ignore[union-attr]

    found = [o for o in origins(project.analysis, [Origin(root.node, root.scope)], kept) if o.node in losses.terms]
    return bool(found) and not any(
        _meets(origin.keys, losses.entries[origin.node]) or _is_mean(project, origin) for origin in found
    )


def _meets(keys: Keys, of_loss: Collection[Keys]) -> bool:
    """Return whether one of the entries of a loss can be, hold, or be in an entry."""
    return any(all(may_be(one, other) for one, other in zip(keys, known)) for known in of_loss)


def _is_mean(project: Project, origin: Origin) -> bool:
    """Return whether an entry of what a model gives is written down as a mean over its batch."""
    assert isinstance(origin.node, ast.Call)
    parts, (first, *_) = outputs_of(project, origin.node, origin.scope).parts, (*origin.keys, None)
    return isinstance(first, int) and -len(parts) <= first < len(parts) and parts[first].kind == MEAN
