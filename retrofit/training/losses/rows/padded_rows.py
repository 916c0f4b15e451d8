"""Losses over all positions of samples that are made as long as the longest one of their batch."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.data.batch_values import BATCH
from retrofit.training.data.made_before import of_losses

from ..terms import Term
from .uneven_rows import pads_samples

if TYPE_CHECKING:
    from retrofit.training import Project

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

    As far as is known: nothing that the loss is computed from has the name of a mask, of lengths or of padding.
    """
    if not isinstance(node, ast.Call) or last_name(node) not in REDUCING or not pads_samples(project):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node.func, ast.Attribute) and "torch" not in project.analysis.named(node.func.value, scope):
        given = [node.func.value, *given]
    is_of_all = len(given) == 1  # of no axis
    return is_of_all and BATCH in project.batch_values.sources_of(given[0], scope) and not _leaves_out(project)


def _leaves_out(project: Project, *parts: ast.expr) -> bool:
    """Return whether something in expressions, or in all that the losses are computed from, tells padding apart."""
    nodes = [inner for part in parts for inner in walk(part)] or list(of_losses(project))
    names = (word for node in nodes for word in (last_name(node), *_keywords(node)))
    return any(LEAVES_OUT.search(name) for name in names)


def _keywords(node: ast.AST) -> list[str]:
    return [keyword.arg or "" for keyword in node.keywords] if isinstance(node, ast.Call) else []
