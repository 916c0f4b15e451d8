"""Embeddings that scale the rows which they look up, in place: max_norm."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import class_of_own
from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalClass, Value
from retrofit.training.torch_api.modules import RENORMALISES, WITH_MAX_NORM

if TYPE_CHECKING:
    from retrofit.training import Project

BEFORE_MAX_NORM = 3  # arguments of an embedding


def renormalised(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that make, or run, an embedding with max_norm: what may be None as well."""
    analysis = project.analysis
    for node, scope in reached_calls(analysis):
        names = analysis.called(node, scope)
        if names & RENORMALISES:
            yield node, scope
            continue
        for parameters in (WITH_MAX_NORM[name] for name in names & WITH_MAX_NORM.keys()):
            given = arguments_given(analysis, node, scope, parameters, "max_norm")
            if any(_is_set(analysis, Origin(value, where)) for value, where in given):
                yield node, scope


def _is_set(analysis: Analysis, value: Origin) -> bool:
    """Return whether a value may be anything but None."""
    ends = [origin for origin in origins(analysis, [value]) if not sources(analysis, origin)]
    return any(not _is_none(end.node) and not _is_never_given(analysis, end) for end in ends)


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_never_given(analysis: Analysis, origin: Origin) -> bool:
    """Return whether this is `self.max_norm` of a class of embeddings that no call gives one, so that it is None."""
    node = origin.node
    owner = class_of_own(node, origin.scope) if isinstance(node, ast.Attribute) and node.attr == "max_norm" else None
    if owner is None or not analysis.classes.bases(owner) & WITH_MAX_NORM.keys():
        return False
    kinds = {owner, *analysis.classes.derived(owner)}
    calls = [node for kind in kinds for node in walk(kind.node) if isinstance(node, ast.Call)]
    set_up = [call for call in calls if last_name(call) == "__init__"]
    made = [
        node
        for node, scope in reached_calls(analysis)
        if any(_is_class(value, kinds) for value in analysis.evaluate(node.func, scope))
    ]
    return not any(_may_give(call) for call in made) and not any(_gives(call) for call in set_up)


def _is_class(value: Value, kinds: Collection[Scope]) -> bool:
    return isinstance(value, LocalClass) and value.scope in kinds


def _gives(call: ast.Call) -> bool:
    plain = [part for part in call.args if not isinstance(part, ast.Starred)]
    is_named = any(keyword.arg == "max_norm" and not _is_none(keyword.value) for keyword in call.keywords)
    return is_named or len(plain) > BEFORE_MAX_NORM


def _may_give(call: ast.Call) -> bool:
    is_spread = any(isinstance(part, ast.Starred) for part in call.args) or any(k.arg is None for k in call.keywords)
    return is_spread or _gives(call)
