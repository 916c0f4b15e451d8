"""Batches that lose the axis of the samples where a process has one row of them: `labels.squeeze()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround_inside
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training import Project
from retrofit.training.data.batch_values import BATCH
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.shards import drops_last
from retrofit.training.losses.reductions.kinds import FLAT
from retrofit.training.losses.reductions.reduction import plain_reader

LEAVES_LOSS = {"numpy", "cpu", "detach", "item"}


class Squeezed(NamedTuple):
    """A call of squeeze() without an axis, and the edits that keep the axis of the samples; none where that is open."""

    call: ast.Call
    scope: Scope
    edits: list[Edit]


def squeezed_rows(project: Project) -> Iterator[Squeezed]:
    """Yield what is squeezed of a batch in training, if the last one can have a single row in a process."""
    if all(drops_last(project.analysis, loader) for loader in project.loaders if TRAIN in loader.roles):
        return
    for node, scope in project.in_batches.of(ast.Call):
        name = last_name(node)
        if name not in ("squeeze", "squeeze_") or node.keywords or not isinstance(node.func, ast.Attribute):
            continue
        is_torch = "torch.squeeze" in project.analysis.called(node, scope)
        if len(node.args) != is_torch:
            continue
        value = node.args[0] if is_torch else node.func.value
        if BATCH not in project.batch_values.sources_of(value, scope):
            continue
        edits = _keeping(scope, node, value) if name == "squeeze" and _has_rows_first(project, value, scope) else []
        if edits or not {last_name(part) for part in walk(value)} & LEAVES_LOSS:
            yield Squeezed(node, scope, edits)


def _has_rows_first(project: Project, value: ast.expr, scope: Scope) -> bool:
    reader = plain_reader(project)
    kind = reader.kind(value, scope)
    is_one = any(_is_place(part) for part in walk(value)) or reader.samples.may_be_within(value, scope)
    return kind.has_rows and kind.axis in (0, FLAT) and not is_one


def _is_place(node: ast.AST) -> bool:
    """Return whether this is an entry by its number, which is one sample of a batch: x[0], not x.max(1)[1]."""
    is_entry = isinstance(node, ast.Subscript) and not isinstance(node.value, ast.Call)
    return is_entry and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int  # type: ignore[attr-defined]


def _keeping(scope: Scope, call: ast.Call, value: ast.expr) -> list[Edit]:
    """Return the edits of x.squeeze(), or of torch.squeeze(x), to rd.data.squeeze_rows(x)."""
    source = scope.source
    if value in call.args:
        start, end = source.span(call.func)
        return [Edit(source, start, end, "rd.data.squeeze_rows")]
    before, _ = surround_inside(source, value, "rd.data.squeeze_rows(", ")")
    return [before, Edit(source, source.span(value)[1], source.span(call)[1], ")")]
