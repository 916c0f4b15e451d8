"""Criteria of the project that are derived from one of torch: the loss that they compute, and the options it is given.

`class Weighted(nn.CrossEntropyLoss)` runs torch's own forward pass where it has none, or by `super().forward(x, y)`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, Instance
from retrofit.training.torch_api.losses import loss_class

RUNS = ("forward", "__call__")
Place = tuple[ast.Call, Scope]


@dataclass(frozen=True)
class Base:
    """A loss of torch that a call runs as the base class of a criterion of the project."""

    name: str  # CrossEntropyLoss
    owner: Scope  # the class of the project
    made: Place | None  # the call that makes the criterion; None in `super().forward(x, y)`
    set_up: tuple[Place, ...]  # what gives the options, nearest to the base class last


def bases_run(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[Base]:
    """Yield the losses of torch that a call runs in objects of classes of the project."""
    own = scope.enclosing_class() if _is_of_base(analysis, call, scope) else None
    if own is not None:
        for name in _losses(analysis, own):
            constructions: list[Place | None] = [*_constructions(analysis, own)]
            yield from (Base(name, own, None, tuple(_set_up(analysis, m, own))) for m in constructions or [None])
        return
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, Instance) and value.call is not None and _is_inherited(analysis, value.scope):
            where = analysis.scope_of(value.call, scope)
            for name in _losses(analysis, value.scope):
                made = (value.call, where)
                yield Base(name, value.scope, made, tuple(_set_up(analysis, made, value.scope)))


def _is_of_base(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `super().forward(x, y)`, or `nn.MSELoss.forward(self, x, y)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in RUNS:
        return False
    base = call.func.value
    is_class = isinstance(base, (ast.Name, ast.Attribute)) and bool(_named(analysis, base, scope))
    return is_of_super(call) or is_class


def is_of_super(call: ast.Call) -> bool:
    """Return whether this is a method of `super()`."""
    base = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(base, ast.Call) and last_name(base) == "super"


def _named(analysis: Analysis, node: ast.expr, scope: Scope) -> set[str]:
    """Return the losses of torch whose class this is."""
    values = analysis.evaluate(node, scope)
    return {name for value in values if isinstance(value, External) and (name := loss_class(value.name))}


def _losses(analysis: Analysis, owner: Scope) -> list[str]:
    return sorted({name for base in analysis.classes.bases(owner) if (name := loss_class(base))})


def _is_inherited(analysis: Analysis, owner: Scope) -> bool:
    """Return whether objects of a class run the forward pass of its base class."""
    return not any(analysis.classes.method(owner, name) for name in RUNS)


def _constructions(analysis: Analysis, owner: Scope) -> list[Place]:
    """Return the calls that make objects of a class, or of one that is derived from it."""
    kinds = {owner, *analysis.classes.derived(owner)}

    def compute() -> dict[Scope, list[Place]]:
        found: dict[Scope, list[Place]] = {}
        nodes = (node for source in analysis.modules.sources.values() for node in source.nodes)
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            where = analysis.scope_of(call, owner)
            for value in analysis.evaluate(call, where) if last_name(call)[:1].isupper() else ():
                if isinstance(value, Instance) and value.call is call:
                    found.setdefault(value.scope, []).append((call, where))
        return found

    made: dict[Scope, list[Place]] = analysis.fact("calls that make objects", compute)
    return [place for kind in kinds for place in made.get(kind, [])]


def _set_up(analysis: Analysis, made: Place | None, owner: Scope) -> Iterator[Place]:
    """Yield the calls that give a criterion its options: of its own constructor, then of that of its base class."""
    own = analysis.classes.method(owner, "__init__")
    calls = own_nodes(own.node).of(ast.Call) if own is not None else []
    inner = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"]
    is_handed_on = any(isinstance(a, ast.Starred) for c in inner for a in c.args) or any(
        keyword.arg is None for c in inner for keyword in c.keywords
    )
    if made is not None and (own is None or is_handed_on):
        yield made
    yield from ((call, own.scope) for call in inner if own is not None)
