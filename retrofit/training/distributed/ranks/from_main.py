"""Values that rank 0 gives to all processes: rd.collectives.broadcast_object(...)."""

from __future__ import annotations

import ast

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import FROM_MAIN


def is_from_main(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether an expression, or a part of it, is the same on all processes, as rank 0 has it."""
    calls = (part for part in walk(node) if isinstance(part, ast.Call))
    return any(analysis.called(call, scope) & FROM_MAIN for call in calls)
