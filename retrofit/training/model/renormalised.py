"""Embeddings that scale the rows which they look up, in place: max_norm."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.modules import RENORMALISES, WITH_MAX_NORM

if TYPE_CHECKING:
    from retrofit.training import Project


def renormalised(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that make, or run, an embedding with max_norm: what may be None as well."""
    analysis = project.analysis
    for node, scope in reached_nodes(analysis):
        if not isinstance(node, ast.Call):
            continue
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
    return any(not isinstance(end.node, ast.Constant) or end.node.value is not None for end in ends)
