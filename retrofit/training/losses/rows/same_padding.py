"""Batches that each rank makes whole, so that its samples are as long as those of the other ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.shards import builders_of
from retrofit.training.torch_api.tensors import PACK_SEQUENCE, PADS_TO_LONGEST, TRANSPOSED, TRANSPOSES

from ..criteria.ignored_labels import counts_labels, ignores_padding
from ..flow import loss_parts
from ..terms import loss_expressions, terms_at
from .padded_rows import is_over_padding, is_reduced_with_padding
from .uneven_rows import is_longest, is_padded_by, is_padding_of_texts, run_by_collate

if TYPE_CHECKING:
    from retrofit.training import Project

MOST_IN_LIST = 3  # tensors of a batch that is a list: more may be an entry per sample


def needs_same_padding(project: Project) -> bool:
    """Return whether a loss counts the padding of its batch, which each rank can make whole and take its rows of."""
    return project.analysis.fact("same padding", lambda: _needs_same_padding(project))


def _needs_same_padding(project: Project) -> bool:
    if project.distribution.is_by_hand or not any(_counts_padding(project, *place) for place in _of_losses(project)):
        return False
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    built = [(builders_of(project.analysis, loader), loader) for loader in loaders]
    calls = [node for node, _ in project.in_batches.of(ast.Call)]
    if project.calls_any([PACK_SEQUENCE]) or any(is_padding_of_texts(call) or is_longest(call) for call in calls):
        return False  # something is as long as the longest of the samples that a rank has then
    return all(places and all(_has_samples_first(project, *place) for place in places) for places, _ in built)


def _of_losses(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    for path in project.paths:
        yield from loss_parts(project.analysis, path)
        yield from ((part, scope) for whole, scope in loss_expressions(path) for part in ast.walk(whole))


def _counts_padding(project: Project, node: ast.AST, scope: Scope) -> bool:
    terms = terms_at(project.analysis, node, scope)
    if terms:
        counting = [t for t in terms if not counts_labels(project, t) or not ignores_padding(project, t)]
        return any(is_over_padding(project, term) for term in counting)
    return is_reduced_with_padding(project, node, scope)


def _has_samples_first(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether the collate_fn of a loader pads its samples, and gives tensors with a row for each of them."""
    run = run_by_collate(project, call, scope)
    calls = [(node, where) for node, where in run if isinstance(node, ast.Call)]
    if not is_padded_by(project, run) and not any(is_padding_of_texts(node) for node, _ in calls):
        return False
    return not any(_puts_samples_elsewhere(project, node, where) for node, where in run)


def _puts_samples_elsewhere(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a node can make a batch whose first dimension is not that of the samples, or a list of many."""
    if isinstance(node, ast.Attribute):
        return node.attr in TRANSPOSED | TRANSPOSES
    if isinstance(node, ast.Return):
        return isinstance(node.value, ast.List) and len(node.value.elts) > MOST_IN_LIST
    if not isinstance(node, ast.Call):
        return False
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
    if project.analysis.called(node, scope) & PADS_TO_LONGEST:
        is_first = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else False
        return not given.get("batch_first", is_first)
    axes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg in ("dim", "axis"))]
    is_stack = last_name(node) == "stack" and any(getattr(axis, "value", None) != 0 for axis in axes)
    return is_stack or last_name(node) in TRANSPOSES
