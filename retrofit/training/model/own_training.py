"""Modules that train themselves: a method of theirs calls backward, as `model.fit(loader)` and `agent.learn(batch)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import is_method, is_own, method_of
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction

from ..loops import Path
from .gradients import has_gradients
from .modules import is_module, layer_run, runs_layer

Run = tuple[ast.Call, Scope, str]  # a call of a module's own layer, or of itself, with the name of what is run


def trained_by_methods(analysis: Analysis, paths: list[Path]) -> dict[Scope, list[Run]]:
    """Return the methods of modules that call backward, with what they run of their module."""
    methods = dict.fromkeys(frame.scope for path in paths for frame in path.frames if is_method(frame.scope))
    return {m: list(_runs(analysis, m)) for m in methods if m.parent and is_module(analysis, Instance(m.parent))}


def receivers(analysis: Analysis, method: Scope, seen: frozenset[Scope] = frozenset()) -> set[Variable]:
    """Return the variables of the objects that a method is called of: `model` of model.fit(loader)."""
    found: set[Variable] = set()
    for site in analysis.callers(method.node) if method not in seen else ():  # type: ignore[arg-type]
        function = site.call.func
        held = function.value if isinstance(function, ast.Attribute) else function
        if is_own(held, site.scope):
            found |= receivers(analysis, method_of(site.scope), seen | {method})
        else:
            found |= variables_of(analysis, held, site.scope)
    return found


def _runs(analysis: Analysis, method: Scope) -> Iterator[Run]:
    """Yield what a method runs with gradients of its module: in its own methods too, but not inside what is run.

    Of a part of it, whose method is called, what that runs: "encoder.embedding" of self.encoder.encode(x).
    """
    waiting, seen = [(method, "")], {(method, "")}
    while waiting:
        scope, part = waiting.pop()
        for node in own_nodes(scope.node).of(ast.Call):
            function = layer_run(analysis, node, scope)
            name = _own_name(function, scope)
            if name is None:
                continue
            functions = [v for v in analysis.evaluate(function, scope) if isinstance(v, LocalFunction)]
            if name in ("", "forward"):
                if has_gradients(analysis, scope, node):
                    yield node, scope, part.rstrip(".") or "forward"
            elif functions:
                inner = name[: name.rindex(".") + 1] if "." in name else ""
                if inner and not runs_layer(analysis, function.value, scope):  # type: ignore[attr-defined]
                    continue  # of an object outside the module
                run = [(f.scope, part + inner) for f in functions if isinstance(f.node, FUNCTIONS)]
                waiting += [place for place in run if place not in seen]
                seen.update(run)
            elif runs_layer(analysis, function, scope) and has_gradients(analysis, scope, node):
                yield node, scope, part + name


def _own_name(function: ast.expr, scope: Scope) -> str | None:
    """Return "encoder.head" of self.encoder.head[0](x), "" of self(x), None for what is not of the own object."""
    names: list[str] = []
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        names += [function.attr] if isinstance(function, ast.Attribute) else []
        function = function.value
    return ".".join(reversed(names)) if is_own(function, scope) else None
