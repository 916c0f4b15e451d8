"""Attributes that a program sets on an object where it uses it, and calls: `args.criterion = Dice()`."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from ..calls import is_method
from ..python_api import NAMESPACES
from ..scopes import Scope, own_nodes, parameters
from .kinds import NOTHING, Display, Instance, LocalClass, LocalModule, Member, Result, Value, Values

if TYPE_CHECKING:
    from .inference import Analysis

Store = tuple[ast.Attribute, ast.expr, Scope]


def set_outside(analysis: Analysis, base: Value, name: str) -> Values:
    """Return what else the attribute `name` of a value can be: what statements outside of its methods set it to.

    Numbers, texts and lists are left out: they are options, which the user of a program sets as well.
    """
    if not isinstance(base, (Instance, LocalClass, LocalModule, Result, Member)):
        return NOTHING
    stores: dict[str, list[Store]] = analysis.fact("attributes set outside", lambda: _stores(analysis))
    given = [store for store in stores.get(name, []) if _is_of(analysis, store, base)]
    found: Values = frozenset().union(*(analysis.evaluate(value, scope) for _, value, scope in given))
    if isinstance(base, Result) and base.builder in NAMESPACES:
        kept = [keyword.value for keyword in base.call.keywords if keyword.arg == name]
        found = found.union(*(analysis.evaluate(value, base.scope) for value in kept))
    return frozenset(value for value in found if not isinstance(value, (Display, Member)))


def _is_of(analysis: Analysis, store: Store, base: Value) -> bool:
    target, _, scope = store
    values = analysis.evaluate(target.value, scope)
    if isinstance(base, (Instance, LocalClass)):
        kinds = analysis.classes.mro(base.scope)
        return any(isinstance(value, (Instance, LocalClass)) and value.scope in kinds for value in values)
    return base in values


def _stores(analysis: Analysis) -> dict[str, list[Store]]:
    found: dict[str, list[Store]] = defaultdict(list)
    for scope in analysis.scopes():
        names = parameters(scope.node) if is_method(scope) else []  # type: ignore[arg-type]
        own = names[0] if names else ""  # of which the class says what its attributes are
        for node in own_nodes(scope.node).of(ast.Assign):
            for target in node.targets:
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == own
                if isinstance(target, ast.Attribute) and not is_own:
                    found[target.attr].append((target, node.value, scope))
    return found
