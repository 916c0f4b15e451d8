"""Places where a figure of one rank is shown, kept, or decides something."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from retrofit.analysis.interpreter.state import Root
from retrofit.analysis.scopes import Scope


@dataclass(eq=False)
class Shown:
    """A place where a value that differs between ranks is shown, kept or decides something."""

    node: ast.AST
    scope: Scope
    kind: str
    values: dict[ast.expr, None] = field(default_factory=dict)
    roots: set[Root] = field(default_factory=set)
    is_unknown: bool = False  # something in it has come in a way that was not followed
