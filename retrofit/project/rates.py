"""Learning rates that a project sets by hand, and whether they are computed from the optimizer's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .analysis import Analysis
from .scopes import Scope, own_nodes
from .values import Display, Item, Member, Value, name_of

SETTINGS = ("argparse.", "yaml.", "json.", "toml.", "omegaconf.", "vars")  # what reads the settings of a run
MOST_STEPS = 4


def sets_rate(node: ast.Assign, scope: Scope) -> bool:
    """Return whether this is `group["lr"] = ...` for a group of an optimizer."""
    target = node.targets[0]
    return isinstance(target, ast.Subscript) and _key(target) == "lr" and _is_group(target.value, scope)


def follows_optimizer(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_STEPS) -> bool:
    """Return whether a rate is computed from the optimizer's own."""
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript):
            if _key(part) == "initial_lr" or (_key(part) == "lr" and not _is_setting(analysis, part.value, scope)):
                return True
        elif isinstance(part, ast.Attribute) and part.attr in ("get_last_lr", "get_lr", "base_lrs"):
            return True
        if isinstance(part, (ast.Name, ast.Attribute)) and depth:
            given = _given(analysis, part, scope)
            if any(follows_optimizer(analysis, value, where, depth - 1) for value, where in given):
                return True
    return False


def _key(node: ast.Subscript) -> object:
    return node.slice.value if isinstance(node.slice, ast.Constant) else None


def _is_group(node: ast.expr, scope: Scope) -> bool:
    if not isinstance(node, ast.Name):
        return _reads_groups(node)
    sources = (binding.value or getattr(binding.node, "iter", None) for binding in scope.bindings.get(node.id, []))
    return any(_reads_groups(source) for source in sources if source is not None)


def _reads_groups(node: ast.expr) -> bool:
    """Return whether this is `optimizer.param_groups`, or an element of it."""
    return any(isinstance(part, ast.Attribute) and part.attr == "param_groups" for part in ast.walk(node))


def _is_setting(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether `node["lr"]` is what the user has chosen: an entry of a dict, of a file of settings."""
    return not _is_group(node, scope) and any(_is_chosen(value) for value in analysis.evaluate(node, scope))


def _is_chosen(value: Value) -> bool:
    while isinstance(value, (Item, Member)):
        value = value.base
    if isinstance(value, Display):
        return isinstance(value.node, (ast.Dict, ast.DictComp))
    return name_of(value).startswith(SETTINGS)


def _given(analysis: Analysis, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a name, or an attribute of self, is set to or drawn from, and what is appended to it."""
    if isinstance(node, ast.Name):
        bindings = [(b, scope) for b in scope.bindings.get(node.id, []) if b.kind in ("value", "item")]
        scopes = {scope}
    else:
        owner = scope.enclosing_class()
        if owner is None or not isinstance(node.value, ast.Name) or node.value.id != "self":
            return
        bindings = analysis.classes.attribute_bindings(owner, node.attr)
        scopes = {where for where in owner.walk() if where is not owner}
    yield from ((binding.value, where) for binding, where in bindings if binding.value is not None)
    calls = ((call, where) for where in scopes for call in own_nodes(where.node) if isinstance(call, ast.Call))
    for call, where in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append":
            is_this = ast.unparse(call.func.value) == ast.unparse(node)
            yield from ((value, where) for value in call.args if is_this)
