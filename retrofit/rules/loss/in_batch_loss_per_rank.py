"""RF303 in-batch-loss-per-rank: a loss that compares the samples of a batch with each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.library import is_gathered_for
from retrofit.training.losses.pairs import pair_of
from retrofit.training.torch_api.distributed import GATHERS
from retrofit.training.torch_api.tensors import RANGES

RULE = CATALOG["RF303"]
INVALID = [
    """\
for images, labels in loader:
    z = model(images)
    loss = criterion(z @ z.T, torch.arange(len(z)))
    loss.backward()
""",
    """\
for images, labels in loader:
    a, b = model(images), model(labels)
    z = torch.cat([a, b])
    losses = [
        torch.mm(z, z.t().contiguous()),  # RF303
        torch.matmul(z, z.transpose(0, 1)),  # RF303
        z.mm(torch.t(z)),  # RF303
        a.matmul(b.permute(1, 0)),  # RF303
        torch.addmm(torch.zeros(len(z), len(z)), z, z.t()),  # RF303
        torch.zeros(len(z), len(z)).addmm_(z, z.t(), beta=1, alpha=-2),  # RF303
        torch.cdist(z, z, p=2),  # RF303
        torch.pdist(z),  # RF303
        torch.einsum("ic,jc->ij", a, b),  # RF303
        torch.einsum("ic, cj -> ij", z, z.T),  # RF303
        F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=-1),  # RF303
        nn.CosineSimilarity(dim=2)(a[:, None], b[None]),  # RF303
        (a.unsqueeze(0) - b.unsqueeze(1)).pow(2).sum(2),  # RF303
    ]
    sum(losses).mean().backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    z = model(images)
    loss = criterion(z, labels)
    loss.backward()
""",
    # per sample: with its own views, a queue, a weight, or its position
    """\
queue = torch.zeros(2, 100)
for images, labels in loader:
    a, b = model(images), model(labels)
    z, n = torch.cat([a, b]), len(images)
    losses = [
        a @ queue,
        torch.einsum("nc,ck->nk", a, queue),
        torch.einsum("nc,nc->n", a, b),
        F.cosine_similarity(a, b),
        torch.bmm(a.unsqueeze(1), b.unsqueeze(2)),
        torch.matmul(z.view(n, 2, 2), z.view(n, 2, 2).transpose(1, 2)),
        torch.arange(n)[:, None] - torch.arange(n)[None],
        a.unsqueeze(1) * b.unsqueeze(2),
        torch.mm(a, model.weight),
    ]
    sum(losses).mean().backward()
""",
    # gathered from all processes, with gradients
    """\
import torch.distributed.nn

for images, labels in loader:
    z = torch.cat(torch.distributed.nn.all_gather(model(images)))
    criterion(z @ z.T, torch.arange(len(z))).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen = set()
    for node, scope in project.in_batches:
        pair = pair_of(project.analysis, node, scope)
        if pair is None or node in seen or is_gathered_for(project, node, scope):
            continue
        seen.add(node)
        parts = (pair.left, pair.right)
        left, right = (ast.unparse(part) for part in parts)
        is_same = left == right and not pair.is_broadcast and not _is_parameter(project, pair.left, scope)
        if not is_same and not all(_is_embedded(project, part, scope) for part in parts):
            continue
        if pair.is_broadcast and any(_is_of_numbers(project, part, scope) for part in parts):
            continue
        if not any(_is_gathered(project, part, scope) for part in parts):
            other = "itself" if left == right else right
            refusal = f"{left} is compared with {other} over the batch: in-batch negatives change with the batch"
            yield found(RULE, scope.source, node, "the loss couples the samples of a batch", refusal=refusal)


def _is_parameter(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a weight of the model, which is the same on every process."""
    variables = {model.variable for model in project.models}
    nodes = [node, *(b.value for b in scope.bindings.get(getattr(node, "id", ""), []) if b.value is not None)]
    for part in nodes:
        while isinstance(part, ast.Attribute):
            part = part.value
            if variables_of(project.analysis, part, scope) & variables:
                return True
    return False


def _is_embedded(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this comes out of a model in training, which was given samples of the batch."""
    calls = {call.call for model in project.models for call in model.calls if call.method in ("", "forward")}
    loops = {path.loops[0][0] for path in project.paths}
    parts = [(part, where) for inner, where in project.ranks.origins(node, scope) for part in ast.walk(inner)]
    drawn = (b.node for part, where in parts if isinstance(part, ast.Name) for b in where.bindings.get(part.id, []))
    return any(part in calls for part, _ in parts) and any(loop in loops for loop in drawn)


def _is_of_numbers(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this counts positions: `torch.arange(len(z))`."""
    return bool(project.analysis.named(node, scope) & RANGES)


def _is_gathered(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether what is compared comes from all processes, with the gradients of this one's own part at least."""
    for expression, where in project.ranks.origins(node, scope):
        for part in ast.walk(expression):
            if isinstance(part, ast.Call) and project.leads_to_collective(part, where):
                return not _drops_gradients(project, part, where)
            if isinstance(part, ast.Name) and part.id in where.entries:  # parts[rank] = embeddings
                return True
    return False


def _drops_gradients(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a function gathers by dist.all_gather and puts nothing with a gradient among what it gets."""
    for function in project.analysis.functions_called(call, scope):
        calls = [node for node in own_nodes(function.node) if isinstance(node, ast.Call)]
        names = {name for node in calls for name in project.analysis.called(node, function.scope)}
        if names & GATHERS and not function.scope.entries:
            return True
    return False
