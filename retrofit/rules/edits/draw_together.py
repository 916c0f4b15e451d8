"""Let a call draw the random numbers of rank 0 on every rank."""

from __future__ import annotations

import ast

from retrofit.analysis.edits import Edit
from retrofit.analysis.scopes import Scope


def draw_together(call: ast.Call, scope: Scope) -> list[Edit]:
    """Return the edits that make `model.apply(f)` rd.data.draw_together(model.apply, f)."""
    source = scope.source
    start, _ = source.span(call)
    name_end = source.span(call.func)[1]
    opening = source.text.index("(", name_end)
    separator = ", " if call.args or call.keywords else ""
    return [
        Edit(source, start, start, "rd.data.draw_together("),
        Edit(source, name_end, opening + 1, separator),
    ]
