"""Evaluations that compute losses with gradients, as a training does: no torch.no_grad() is around them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes

from ..loops import LoopNode
from ..losses.terms import terms_at
from ..model.gradients import has_gradients

if TYPE_CHECKING:
    from retrofit.training import Project


def loss_like_in_training(project: Project, loop: LoopNode, scope: Scope) -> bool:
    """Return whether an evaluation may take the loss of its batches for that of a training's, part of all ranks' batch.

    It computes with gradients, and in a function by which a training loss is divided, or while a training batch is in
    use.
    """
    analysis = project.analysis
    calls = [(n, scope) for n in walk(loop) if isinstance(n, ast.Call) and has_gradients(analysis, scope, n)]
    reached = [function.scope for function in functions_reached(analysis, calls)]
    if not {division.scope for division in project.divisions if not division.is_in_loop}.isdisjoint(reached):
        return True
    inner = [(node, where) for where in reached for node in own_nodes(where.node)]
    return loop in project.nodes_in_batches and any(terms_at(analysis, *place) for place in (*calls, *inner))
