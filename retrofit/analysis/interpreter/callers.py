"""Arguments of callers for a value that a function only passes on: `log(message)` shows what its callers pass."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..nodes import walk
from ..scopes import Scope
from .frames import Frame
from .state import Flow

if TYPE_CHECKING:
    from .interpreter import Interpreter

Given = list[tuple[ast.expr, Flow]]


def arguments_by_name(
    call: ast.AST, names: list[str], rest: ast.arg | None, given: list[Flow], named: list[Flow]
) -> dict[str, Given]:
    """Return the expressions of a call that become the parameters `names` of a function, and `*rest` after these."""
    if not isinstance(call, ast.Call) or any(isinstance(part, ast.Starred) for part in call.args):
        return {}
    found = {name: [(part, flow)] for name, part, flow in zip(names, call.args, given)}
    if rest is not None:
        found[rest.arg] = [*zip(call.args, given)][len(names) :]
    found.update({k.arg: [(k.value, flow)] for k, flow in zip(call.keywords, named) if k.arg is not None})
    return found


def shown_by(run: Interpreter, node: ast.AST, flows: Given) -> tuple[ast.AST, Scope, Given]:
    """Return where values are shown: the outermost call that gives them to functions that only hand them on."""
    level = len(run.frames) - 1
    while level > 0:
        outer = _given_for(run, run.frames[level], [value for value, _ in flows])
        if not outer:
            break
        node, flows = run.frames[level].calls[-1], outer
        level -= 1
    return node, run.frames[level].scope, flows


def _given_for(run: Interpreter, frame: Frame, values: list[ast.expr]) -> Given:
    """Return what a function was given for the parameters that values consist of; nothing if they hold more."""
    found: Given = []
    for name in (part for value in values for part in walk(value) if isinstance(part, (ast.Name, ast.Attribute))):
        if isinstance(name, ast.Attribute):
            if isinstance(name.value, ast.Name) and run.memory.load(name.value.id, frame.scope).cells:
                return []  # of an object, which may have got it elsewhere
            continue
        flow = run.expressions.whole(run.memory.load(name.id, frame.scope))
        is_parameter = {binding.kind for binding in frame.scope.bindings.get(name.id, [])} == {"parameter"}
        if flow.differs and not (is_parameter and name.id in frame.given):
            return []
        given = frame.given.get(name.id, []) if is_parameter and flow.differs else []
        found += [(part, value) for part, value in given if run.expressions.whole(value).differs]
    return found
