"""Tell a loss that is a sum over the samples of a batch from a mean, and how all ranks' losses become one."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.flow.sources import MOST_ORIGINS, Origin, closure, entries, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from . import kinds
from .kinds import Kind
from .reader import LossReader

if TYPE_CHECKING:
    from retrofit.training import Project

MEAN_OF_RANKS, SUM_OF_RANKS, MEAN_OF_LAST = "rd.reduce_loss", "rd.loss.reduce_summed_loss", "rd.loss.reduce_last_loss"

UNREAD = (
    "what the training computes has too many branches and calls to be read to its end; look in its losses for sums "
    "over the samples of a batch, and for samples that are compared with each other"
)


def plain_reader(project: Project) -> LossReader:
    """Return what reads losses as they are written, before rows are gathered over the ranks."""
    return project.analysis.fact("loss reader", lambda: LossReader(project))


def reader_of(project: Project) -> LossReader:
    """Return what reads losses as they are computed from the rows of all ranks, where these are gathered."""

    def reader() -> LossReader:
        from ..gathering.gathered import gathering

        gathered = gathering(project).rows
        return LossReader(project, gathered) if gathered else plain_reader(project)

    return project.analysis.fact("loss reader of ranks", reader)


def unread_losses(project: Project) -> list[str]:
    """Return, for the user, from where on losses of many branches and calls were not read; empty where all were."""
    readers = dict.fromkeys([plain_reader(project), reader_of(project)])
    unread = dict.fromkeys(reader.first_unread for reader in readers if reader.first_unread is not None)
    return [f"{scope.source.place(node)}: {UNREAD}" for node, scope in unread]


def loss_kind(project: Project, node: ast.expr, scope: Scope) -> Kind:
    """Return how a loss depends on the samples of its batch."""
    return reader_of(project).kind(node, scope)


def counts_outputs(project: Project, number: ast.expr, scope: Scope) -> bool:
    """Return whether a number counts outputs of layers, scales or heads, `len(outputs)`: no samples."""
    return reader_of(project).samples.lists.is_fixed(number, scope)


def backward_kind(project: Project, backward: ast.Call, scope: Scope, reader: LossReader | None = None) -> Kind:
    """Return how what a backward call starts from depends on the samples; with a gradient for each it is their sum."""
    assert isinstance(backward.func, ast.Attribute)
    kind = (reader or reader_of(project)).kind(backward.func.value, scope)
    has_gradient = bool(backward.args) or any(keyword.arg == "gradient" for keyword in backward.keywords)
    return replace(kinds.summed_up(kind), coupled=kind.coupled) if has_gradient and kind.has_rows else kind


def is_sum(kind: Kind) -> bool:
    """Return whether a loss is made of sums over the batch only."""
    return kind.parts == {kinds.SUM}


def reduction_for(project: Project, node: ast.expr, scope: Scope) -> str:
    """Return the function of the runtime that makes one figure of all ranks' values of a loss: "rd.reduce_loss".

    What is computed from sums over all ranks is the same on each, and so is the mean of it.
    """
    return SUM_OF_RANKS if is_summed(project, node, scope) else MEAN_OF_RANKS


def is_summed(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value of a loss, as it is written there, is a sum over the batch."""
    return is_sum(loss_kind(project, node, scope))


def has_rows(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value has an entry for each sample, as it is written."""
    return plain_reader(project).kind(node, scope).has_rows


def sum_terms(
    project: Project, loss: ast.expr, scope: Scope, part: str = kinds.SUM
) -> list[tuple[ast.expr, Scope]] | None:
    """Return the terms of a loss that are sums over the batch, where others are not; None where they are not apart.

    `part`: or of another kind, as penalties of weights.
    """
    found: list[tuple[ast.expr, Scope]] = []
    is_apart = True

    def within(origin: Origin) -> list[Origin]:
        """Return the parts that a loss is linear in, and that have sums in them."""
        nonlocal is_apart
        node, scope, keys = origin
        kind = kinds.CONSTANT if isinstance(node, ast.AugAssign) else reader_of(project).kind(node, scope, None, keys)
        is_one = is_sum(kind) if part == kinds.SUM else kind.parts == {part}
        if is_one:
            found.append((node, scope))  # type: ignore[arg-type]
        if not isinstance(node, ast.AugAssign) and (part not in kind.parts or is_one):
            return []
        inner = _linear_parts(project.analysis, origin)
        is_apart &= bool(inner) or isinstance(node, ast.AugAssign)
        return inner

    seen = list(closure([Origin(loss, scope)], within))
    return found if is_apart and len(seen) < MOST_ORIGINS else None


def _linear_parts(analysis: Analysis, origin: Origin) -> list[Origin]:
    """Return the expressions that a loss is linear in."""
    node = origin.node
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        operands = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
        if isinstance(node.op, (ast.Add, ast.Sub)) or (isinstance(node.op, ast.Mult) and len(operands) == 2):
            return [origin.to(part) for part in operands]
        return [origin.to(operands[0])] if isinstance(node.op, ast.Div) and len(operands) == 2 else []
    if isinstance(node, ast.UnaryOp):
        return [origin.to(node.operand)]
    inner = list(entries(origin)) or list(sources(analysis, origin))
    if isinstance(node, ast.Call) and not inner:
        is_method = isinstance(node.func, ast.Attribute) and not node.args
        return [origin.to(part) for part in ([node.func.value] if is_method else node.args[:1])]  # type: ignore[attr-defined]
    return inner
