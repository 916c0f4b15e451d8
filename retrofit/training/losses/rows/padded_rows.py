"""Losses over all positions of samples that are made as long as the longest one of their batch."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.data.batch_values import BATCH
from retrofit.training.data.sized.made_before import of_losses
from retrofit.training.torch_api.losses import COUNTED, ELEMENTWISE
from retrofit.training.torch_api.tensors import REDUCTIONS, RESHAPES

from ..gathering.dimensions import number_of_axes
from ..terms import MEAN, Term
from .chosen_elements import same_entries, values_of_mean
from .uneven_rows import pads_samples, pads_texts

if TYPE_CHECKING:
    from retrofit.training import Project

ROWS_OF_TOKENS = RESHAPES | {"transpose", "permute"}
REDUCING = frozenset({"mean", "sum"})
# In a name of what a loss is computed from: it leaves the padding out, or it is given the lengths.
LEAVES_OUT = re.compile(r"mask|ignore|pad|lens|lengths|valid|target_len|input_len", re.IGNORECASE)


def sums_padding(project: Project, term: Term) -> bool:
    """Return whether a loss of torch adds up all positions of padded samples, as far as is known."""
    if term.reduction != "sum" or "ignore_index" in term.options or not pads_samples(project):
        return False
    return not _leaves_out(project, *term.call.args)


def is_reduced_with_padding(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a mean, or a sum, that a training writes itself counts the padding of its samples.

    As far as is known: a sum along the positions does not where something that the losses are computed from has the
    name of a mask, of lengths or of padding; a mean over them does even if a mask makes the padding 0.
    """
    if not isinstance(node, ast.Call) or last_name(node) not in REDUCING or not pads_samples(project):
        return False
    if last_name(node) == "mean":
        values = values_of_mean(project.analysis, node, scope)
        if values is None or BATCH not in project.batch_values.sources_of(values, scope):
            return False
        return not _is_of_samples(project, values, scope) or not _leaves_out(project)
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node.func, ast.Attribute) and "torch" not in project.analysis.named(node.func.value, scope):
        given = [node.func.value, *given]
    is_of_all = len(given) == 1  # of no axis
    return is_of_all and BATCH in project.batch_values.sources_of(given[0], scope) and not _leaves_out(project)


def _is_of_samples(project: Project, values: ast.expr, scope: Scope) -> bool:
    """Return whether a tensor has one number for each sample, as after a sum or a mean along another axis."""
    made = (origin.node for origin in origins(project.analysis, [Origin(values, scope)]))
    calls = [part for whole in made for part in walk(whole) if isinstance(part, ast.Call)]
    is_reduced = any(last_name(call) in REDUCTIONS and (call.args or call.keywords) for call in calls)
    return is_reduced or number_of_axes(project.analysis, values, scope) == 1


def _leaves_out(project: Project, *parts: ast.expr) -> bool:
    """Return whether something in expressions, or in all that the losses are computed from, tells padding apart."""
    nodes = [inner for part in parts for inner in walk(part)] or list(of_losses(project))
    names = (word for node in nodes for word in (last_name(node), *_keywords(node)))
    return any(LEAVES_OUT.search(name) for name in names)


def _keywords(node: ast.AST) -> list[str]:
    return [keyword.arg or "" for keyword in node.keywords] if isinstance(node, ast.Call) else []


def is_over_padding(project: Project, term: Term) -> bool:
    """Return whether a loss can be over all positions of padded samples: of each entry, or of a row for each token."""
    is_padded = pads_samples(project)
    if sums_padding(project, term):
        return not project.distribution.is_by_hand and (term.name in ELEMENTWISE or _is_of_rows(project, term))
    if term.reduction != MEAN or project.distribution.is_by_hand or not (is_padded or pads_texts(project)):
        return False
    return (is_padded and term.name in ELEMENTWISE) or (term.name in COUNTED and _is_of_rows(project, term))


def _is_of_rows(project: Project, term: Term) -> bool:
    """Return whether what a loss is given has its tokens in rows: output.view(-1, n), made before too."""
    made = (origin.node for part in term.call.args for origin in same_entries(project.analysis, part, term.scope))
    return any(last_name(part) in ROWS_OF_TOKENS for part in (*walk(term.call), *made))
