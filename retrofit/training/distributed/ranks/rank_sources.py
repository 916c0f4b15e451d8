"""Sources of the rank and of the number of processes: calls, variables of the environment, and names."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.distributed import RANK, RANK_CALLS, RANK_VARIABLES, WORLD_SIZE, WORLD_SIZE_NAMES


def asked_for(analysis: Analysis, node: ast.AST, scope: Scope) -> str:
    """Return RANK or WORLD_SIZE if this very expression asks for it, a call or `os.environ["RANK"]`, else ""."""
    if isinstance(node, ast.Call):
        found = next((RANK_CALLS[name] for name in sorted(analysis.called(node, scope)) if name in RANK_CALLS), "")
        is_read = not found and bool(node.args) and last_name(node) in ("get", "getenv")
        return _variable(node.args[0]) if is_read else found
    return _variable(node.slice) if isinstance(node, ast.Subscript) else ""


def called_so(node: ast.AST) -> str:
    """Return RANK or WORLD_SIZE if a name, an attribute or a function is called so: `args.local_rank`, `hvd.rank()`."""
    name = last_name(node).lower()
    return RANK if name.rpartition("_")[2] == "rank" else WORLD_SIZE if name in WORLD_SIZE_NAMES else ""


def _variable(node: ast.expr) -> str:
    return RANK_VARIABLES.get(node.value, "") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
