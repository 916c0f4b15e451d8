"""Losses that leave out some labels: by an option, or the labels -100, which torch ignores without one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.training.torch_api.losses import COUNTED, IGNORED_LABEL, IGNORING_COLLATORS

from ..terms import MEAN, Term

if TYPE_CHECKING:
    from retrofit.training import Project


def counts_labels(project: Project, term: Term) -> bool:
    """Return whether a mean is, as far as is known, over what is not ignored, or by the weights of the classes."""
    if term.counts:
        return True
    is_default = term.name in COUNTED and term.reduction == MEAN and "ignore_index" not in term.options
    return is_default and project.analysis.fact("labels that are ignored", lambda: _has_ignored_labels(project))


def ignores_padding(project: Project, term: Term) -> bool:
    """Return whether a mean leaves out what is added to samples to make them as long as the longest one.

    As far as is known: not where it leaves out the labels that torch ignores, and padding has others.
    """
    if term.counts or not counts_labels(project, term):
        return True
    return project.analysis.fact("padding that is ignored", lambda: _has_ignored_padding(project))


def _has_ignored_padding(project: Project) -> bool:
    nodes = [node for source in project.analysis.modules.sources.values() for node in source.nodes]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return any(last_name(node) in IGNORING_COLLATORS for node in nodes) or any(
        "pad" in last_name(call) + (keyword.arg or "") and _is_ignored(keyword.value)
        for call in calls
        for keyword in call.keywords
    )


def _has_ignored_labels(project: Project) -> bool:
    """Return whether something in the project can give a label the number that is ignored."""
    nodes = (node for source in project.analysis.modules.sources.values() for node in source.nodes)
    return any(_is_ignored(node) or last_name(node) in IGNORING_COLLATORS for node in nodes)


def _is_ignored(node: ast.AST) -> bool:
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if is_negative else None  # type: ignore[attr-defined]
    return isinstance(value, ast.Constant) and type(value.value) is int and -value.value == IGNORED_LABEL
