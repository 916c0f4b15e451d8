"""Sources of the rank and of the number of processes: calls, variables of the environment, and names."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ..distribution import RUNTIME

RANK, WORLD_SIZE = "rank", "world_size"
CALLS = {
    "torch.distributed.get_rank": RANK, "torch.distributed.get_node_local_rank": RANK,
    f"{RUNTIME}.get_rank": RANK, f"{RUNTIME}.get_local_rank": RANK,
    "torch.distributed.get_world_size": WORLD_SIZE, f"{RUNTIME}.get_world_size": WORLD_SIZE,
}  # fmt: skip
VARIABLES = {
    "RANK": RANK, "LOCAL_RANK": RANK, "SLURM_PROCID": RANK, "SLURM_LOCALID": RANK, "OMPI_COMM_WORLD_RANK": RANK,
    "WORLD_SIZE": WORLD_SIZE, "SLURM_NTASKS": WORLD_SIZE, "OMPI_COMM_WORLD_SIZE": WORLD_SIZE,
}  # fmt: skip
ASKING_MAIN = {f"{RUNTIME}.is_main_process", "torch.distributed.is_main_process"}
NAMES = {"world_size": WORLD_SIZE, "ngpus_per_node": WORLD_SIZE, "nprocs": WORLD_SIZE}


def asked_for(analysis: Analysis, node: ast.AST, scope: Scope) -> str:
    """Return RANK or WORLD_SIZE if this very expression asks for it, a call or `os.environ["RANK"]`, else ""."""
    if isinstance(node, ast.Call):
        found = next((CALLS[name] for name in sorted(analysis.called(node, scope)) if name in CALLS), "")
        is_read = not found and bool(node.args) and last_name(node) in ("get", "getenv")
        return _variable(node.args[0]) if is_read else found
    return _variable(node.slice) if isinstance(node, ast.Subscript) else ""


def called_so(node: ast.AST) -> str:
    """Return RANK or WORLD_SIZE if a name, an attribute or a function is called so: `args.local_rank`, `hvd.rank()`."""
    name = last_name(node).lower()
    return RANK if name.rpartition("_")[2] == "rank" else NAMES.get(name, "")


def _variable(node: ast.expr) -> str:
    return VARIABLES.get(node.value, "") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
