"""Outputs of a model: rows of the samples, or figures of its batch that are computed in forward()."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import returns_of
from retrofit.analysis.interpreter.state import OTHER, Flow
from retrofit.analysis.scopes import Scope

from .. import Project
from ..losses.reductions import kinds as loss_kinds
from ..losses.reductions.kinds import Kind
from ..losses.reductions.reduction import reader_of
from ..losses.wrapped import functions_inside
from .kinds import BATCH, MEAN, SUM

REDUCED = {loss_kinds.MEAN: MEAN, loss_kinds.SUM: SUM}


def outputs_of(project: Project, call: ast.Call, scope: Scope) -> Flow:
    """Return what a call of a model gives: where it is a tuple that is written down, what each part of it is."""
    functions = functions_inside(project.analysis, call, scope)
    returned = [value for function in functions for value in returns_of(function.node)]
    sizes = {len(value.elts) if isinstance(value, ast.Tuple) else 0 for value in returned}
    starred = (part for value in returned if isinstance(value, ast.Tuple) for part in value.elts)
    if len(sizes) != 1 or 0 in sizes or any(isinstance(part, ast.Starred) for part in starred):
        return Flow(BATCH)
    reader = reader_of(project)
    return Flow(BATCH, parts=tuple(_flow(reader.kind(call, scope, None, (index,))) for index in range(sizes.pop())))


def _flow(kind: Kind) -> Flow:
    """Return how an output differs between ranks; a function of sums and means is not that of all ranks' samples."""
    if kind.has_rows or kind.parts & {loss_kinds.UNKNOWN, loss_kinds.PENALTY}:
        return Flow(BATCH)
    (part,) = kind.parts if len(kind.parts) == 1 else ("",)
    return Flow(REDUCED.get(part, OTHER))
