"""Ask for a value to be reduced over all ranks: the one call for rules that find a figure of one rank.

A rule puts `reduce_value(scope, node)` into the edits of its finding, next to ordinary edits:

    found(CODE, source, node, message, HELP, [reduce_value(scope, node)])
    found(CODE, source, node, message, HELP, [reduce_value(scope, node, "rd.reduce_loss")])

and says nothing about the place. When all rules have spoken, `placement.place_reductions` decides for all requests
together: in the expression itself, or in a variable before the first read where the value is read several times or
where some ranks would not come to it. A request that has no correct place leaves its finding without edits, so that
the finding is listed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.files.source import Source
from retrofit.analysis.scopes import Scope

REDUCE_LOSS = "rd.reduce_loss"


@dataclass(frozen=True)
class Reduction:
    """The request that every rank reads `function(value)` where `scope` reads `value`.

    `call`: that call, where it is there already and only has to be shared with other reads.
    """

    scope: Scope
    value: ast.expr
    function: str = REDUCE_LOSS
    call: ast.Call | None = None

    @property
    def read(self) -> ast.expr:
        """What is read now: the value, or the call that reduces it."""
        return self.call or self.value

    @property
    def source(self) -> Source:
        return self.scope.source


def reduce_value(scope: Scope, value: ast.expr, function: str = REDUCE_LOSS) -> Reduction:
    """Return an edit for a finding: reduce `value`, an expression in `scope`, with a function of the runtime.

    `function` takes the value as its only argument and is collective; the value's own attributes and methods are read
    from what it returns (`loss.item()` becomes `rd.reduce_loss(loss).item()`).
    """
    return Reduction(scope, value, function)
