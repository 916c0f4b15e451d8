"""Attributes that a program takes by a text: `getattr(callback, name)(step)`, `getattr(self, "loss_" + name)`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..values.attribute_names import methods_taken, names_taken
from ..values.kinds import Instance, LocalFunction
from .state import Cell, Flow

if TYPE_CHECKING:
    from .interpreter import Interpreter


def methods_by_text(run: Interpreter, taken: ast.Call) -> list[tuple[LocalFunction, Flow]]:
    """Return the methods that getattr(object, name) gives, each with its object."""
    found, asked = [], _with_text(run, taken)
    for cell in sorted(run.expressions.of(taken.args[0]).cells, key=cell_order):
        if cell.kind is None:
            continue
        methods = methods_taken(run.analysis, asked, [Instance(cell.kind, taken)])
        for name in dict.fromkeys(getattr(method.node, "name", "") for method in methods):
            method = run.analysis.classes.method(cell.kind, name)
            if method is not None:
                found.append((method, Flow(cells=frozenset([cell]))))
    return found


def attribute_by_text(run: Interpreter, taken: ast.Call, base: Flow) -> Flow | None:
    """Return what getattr(losses, name) gives: any of the attributes that it can be, None where it is not known."""
    held = dict(run.memory.state.held_by(base.cells))
    names = names_taken(run.analysis, _with_text(run, taken), [key for key in held if isinstance(key, str)], run.scope)
    return run.domain.either([held[name] for name in names]) if names else None


def _with_text(run: Interpreter, taken: ast.Call) -> ast.Call:
    """Return a call of getattr with the name that the caller of a function gives, where that is written down."""
    name = taken.args[1]
    pairs = run.frame.given.get(name.id, []) if isinstance(name, ast.Name) else []
    if len(pairs) != 1 or not isinstance(pairs[0][0], ast.Constant):
        return taken
    return ast.Call(taken.func, [taken.args[0], pairs[0][0]], [])


def cell_order(cell: Cell) -> tuple[int, int]:
    return getattr(cell.node, "lineno", 0), getattr(cell.node, "col_offset", 0)
