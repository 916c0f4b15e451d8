"""Elements of a batch that a mask leaves, of which ranks have different numbers: means over them, losses of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.sources import Origin, Part, origins
from retrofit.analysis.flow.stored import literal_key
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Member, Result
from retrofit.training.torch_api.losses import COUNTED, ELEMENTWISE
from retrofit.training.torch_api.tensors import COMPARISONS, INTEGER_CASTS, PACK_SEQUENCE, RESHAPES, SAME_ENTRIES

from ...data.batch_values import BATCH, GRADIENT, UNEVEN, gives_places
from ..terms import MEAN, Term
from .uneven_rows import has_uneven_rows

if TYPE_CHECKING:
    from retrofit.training import Project

COMPARING = COMPARISONS | {"bool"}
MEANS = {"mean", "nanmean"}
MASKED = "torch.masked"  # means of the elements that a mask leaves
KEEPING = SAME_ENTRIES | INTEGER_CASTS | RESHAPES


def values_of_mean(analysis: Analysis, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return what a mean is over, of all elements or along the first axis; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in MEANS:
        return None
    is_torch = bool(analysis.named(node.func.value, scope) & {"torch", MASKED})
    given = node.args[:1] if is_torch else [node.func.value]
    return given[0] if given and _is_over_the_first_axis(node, is_torch) else None


def is_mean_of_chosen(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is the mean of all of `errors[mask]`, or of what that is computed from."""
    values = values_of_mean(project.analysis, node, scope)
    if values is None:
        return False
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    is_masked = node.func.attr == "nanmean" or MASKED in project.analysis.named(node.func.value, scope)
    is_chosen = has_uneven_rows(project) or is_masked
    wanted = {BATCH, GRADIENT} if is_chosen else {BATCH, GRADIENT, UNEVEN}
    return wanted <= project.batch_values.sources_of(values, scope)


def is_of_chosen(project: Project, term: Term) -> bool:
    """Return whether a loss is of sequences without their padding, or of what a mask leaves of outputs or targets."""
    given, target = (argument_for(term.call, ["input", "target"], name) for name in ("input", "target"))
    if term.reduction != MEAN or term.name not in COUNTED | ELEMENTWISE:
        return False
    if any(part is not None and _is_selected(project, part, term.scope) for part in (given, target)):
        return True
    values = list(project.analysis.evaluate(target, term.scope))
    while values:
        value = values.pop()
        if isinstance(value, (Item, Member)):
            values.append(value.base)
        elif isinstance(value, Result) and value.builder == PACK_SEQUENCE:
            return True
    return False


def _is_over_the_first_axis(node: ast.Call, is_torch: bool) -> bool:
    """Return whether a mean is over all axes or the first one, in which chosen elements are."""
    axes = argument_for(node, ["input", "dim"] if is_torch else ["dim"], "dim")
    if axes is None:
        return not any(keyword.arg == "axis" for keyword in node.keywords)
    parts = axes.elts if isinstance(axes, (ast.Tuple, ast.List)) else [axes]
    return any(isinstance(part, ast.Constant) and part.value in (0, None) for part in parts)


def _is_selected(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression can be what a mask leaves of a tensor."""
    for part, where, _ in same_entries(project.analysis, node, scope):
        if isinstance(part, ast.Call) and _method(part) == "masked_select":
            return True
        if isinstance(part, ast.Subscript):
            indices = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]  # errors[mask, task]
            given = (o.node for i in indices for o in same_entries(project.analysis, i, where, is_index=True))
            if any(map(_is_mask, given)) or project.batch_values.chooses(part, where):
                return True
    return False


def same_entries(analysis: Analysis, node: ast.expr, scope: Scope, is_index: bool = False) -> Iterator[Origin]:
    """Yield an expression and what has the same entries, in another order or of another type: `x` of x.view(-1).

    Of an index, also the places that a part of it is of: torch.where(mask)[0].
    """

    def through(origin: Origin) -> list[Origin] | None:
        if isinstance(origin.node, ast.Call) and _method(origin.node) in KEEPING:
            return [origin.to(origin.node.func.value)]  # type: ignore[attr-defined]
        if is_index and isinstance(origin.node, ast.Subscript):
            return [origin.to(origin.node.value, keys=())]
        is_of_tensor = isinstance(origin.node, ast.Subscript) and not isinstance(literal_key(origin.node.slice), str)
        return [] if is_of_tensor else None

    return origins(analysis, [Origin(node, scope)], through)


def _is_mask(node: Part) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return True
    is_chosen = isinstance(node, ast.Call) and (_method(node) in COMPARING or gives_places(node))
    return isinstance(node, ast.Compare) or is_chosen


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
