"""Draws that give one or several of what they are given: random.choice(losses)."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING

from ..scopes import Scope
from .kinds import NOTHING, Result, Values

if TYPE_CHECKING:
    from .inference import Analysis


def one_picked(analysis: Analysis, function: str, call: ast.Call, scope: Scope) -> Values:
    """Return what a call gives that takes one of several."""
    given = _taken_from(analysis, function, call, scope, analysis.library.picking)
    return NOTHING if given is None else analysis.containers.elements(given, scope, ())


def several_picked(analysis: Analysis, value: Result) -> Values:
    """Return what is in a list of some of several: random.sample(losses, 2)."""
    given = _taken_from(analysis, value.builder, value.call, value.scope, analysis.library.picking_several)
    return NOTHING if given is None else analysis.containers.elements(given, value.scope, ())


def _taken_from(
    analysis: Analysis, function: str, call: ast.Call, scope: Scope, picking: Collection[str]
) -> ast.expr | None:
    """Return what a draw takes from, also where another function makes it: draw_together(random.choice, losses)."""
    given, names = call.args, {function}
    if given and function in analysis.library.calling:
        names, given = analysis.named(given[0], scope), given[1:]
    return given[0] if given and names & set(picking) else None
