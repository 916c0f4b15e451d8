"""RF303 in-batch-loss-per-rank: a loss that compares the samples of a batch with each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project

from .finding import Finding, found

CODE = "RF303"
NAME = "in-batch-loss-per-rank"
WHY = "Each process compares its own samples only: fewer negatives per sample, which is another loss."
HELP = "gather the embeddings of all processes before the comparison"
BAD = """\
for images, labels in loader:
    z = model(images)
    loss = criterion(z @ z.T, torch.arange(len(z)))
    loss.backward()
"""
GOOD = """\
for images, labels in loader:
    z = model(images)
    loss = criterion(z, labels)
    loss.backward()
"""
PRODUCTS = {"torch.matmul", "torch.mm", "torch.cdist"}


def find(project: Project) -> Iterator[Finding]:
    seen = set()
    for node, scope in project.in_batches:
        pair = _pair(project, node, scope)
        if pair and pair[0] == pair[1] and node not in seen:
            seen.add(node)
            refusal = f"{pair[0]} is compared with itself over the batch: in-batch negatives change with the batch"
            yield found(CODE, scope.source, node, "the loss couples the samples of a batch", HELP, refusal=refusal)


def _pair(project: Project, node: ast.AST, scope) -> tuple[str, str] | None:  # type: ignore[no-untyped-def]
    """Return the names on both sides of a product with a transposed matrix."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        left, right = node.left, _untransposed(node.right)
    elif isinstance(node, ast.Call) and len(node.args) == 2 and project.analysis.called(node, scope) & PRODUCTS:
        is_distance = project.analysis.called(node, scope) & {"torch.cdist"}
        left, right = node.args[0], node.args[1] if is_distance else _untransposed(node.args[1])
    else:
        return None
    return (ast.unparse(left), ast.unparse(right)) if right is not None else None


def _untransposed(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose"):
        return node.func.value
    return None
