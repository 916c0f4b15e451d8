"""Sources of the rank and of the number of processes: calls, variables of the environment, and names."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.files.runtime_names import RUNTIME
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.data import SHARDING_SAMPLERS
from retrofit.training.torch_api.distributed import (
    COLLECTIVES,
    JOINS_GROUP,
    RANK,
    RANK_CALLS,
    RANK_VARIABLES,
    SPAWNS,
    WORLD_SIZE,
    WORLD_SIZE_NAMES,
)
from retrofit.training.torch_api.frameworks import SHARDING, TRAINERS
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS

DISTRIBUTES = {
    *COLLECTIVES, *JOINS_GROUP, *SPAWNS, *SHARDING_SAMPLERS, *AVERAGING_WRAPPERS, *SHARDING, *TRAINERS,
}  # fmt: skip


def asked_for(analysis: Analysis, node: ast.AST, scope: Scope) -> str:
    """Return RANK or WORLD_SIZE if this very expression asks for it, a call or `os.environ["RANK"]`, else ""."""
    if isinstance(node, ast.Call):
        found = next((RANK_CALLS[name] for name in sorted(analysis.called(node, scope)) if name in RANK_CALLS), "")
        is_read = not found and bool(node.args) and last_name(node) in ("get", "getenv")
        return _variable(node.args[0]) if is_read else found
    return _variable(node.slice) if isinstance(node, ast.Subscript) else ""


def called_so(analysis: Analysis, node: ast.AST) -> str:
    """Return RANK or WORLD_SIZE if a name, an attribute or a function is called so: `args.local_rank`, `hvd.rank()`.

    In a project that is not distributed a rank is that of a matrix, or a place in a list.
    """
    name = last_name(node).lower()
    found = RANK if name.rpartition("_")[2] == "rank" else WORLD_SIZE if name in WORLD_SIZE_NAMES else ""
    return found if found and is_distributed(analysis) else ""


def is_distributed(analysis: Analysis) -> bool:
    """Return whether the code that runs makes a call, or reads a variable, of a training on several processes."""
    return analysis.fact(
        "is distributed", lambda: any(_distributes(analysis, *place) for place in reached_nodes(analysis))
    )


def _distributes(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    if asked_for(analysis, node, scope):
        return True
    names = analysis.called(node, scope) if isinstance(node, ast.Call) else frozenset()
    return any(name in DISTRIBUTES and not name.startswith(f"{RUNTIME}.") for name in names)


def _variable(node: ast.expr) -> str:
    return RANK_VARIABLES.get(node.value, "") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
