"""RF303 in-batch-loss-per-rank: a loss that compares the samples of a batch with each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.nodes import walk
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.at_run_time import is_left_out
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.comparisons.comparisons import comparisons
from retrofit.training.losses.gathering.gathered import gathering
from retrofit.training.losses.gathering.kept_batches import has_only_kept_batches
from retrofit.training.losses.rows.sequences_of_samples import sequences_of_samples
from retrofit.training.torch_api.losses import RETURN_LOSS

RULE = CATALOG["RF303"]
MESSAGE = "the loss couples the samples of a batch"
INVALID = [
    """\
for images, labels in loader:
    z = model(images)  # RF303
    loss = criterion(z @ z.T, torch.arange(len(z)))
    loss.backward()
""",
    """\
def supervised(z, classes):
    same = classes[:, None] == classes[None]
    return (torch.cdist(z, z) * same).mean() - (torch.cdist(z, z) * ~same).mean()


for images, labels in loader:
    supervised(model(images), labels).backward()  # RF303
""",
    # gathered before their order changes
    """\
for images, labels in loader:
    z = model(images).view(-1, 2, 2).transpose(0, 1).flatten(0, 1)  # RF303
    loss = criterion(z @ z.T, torch.arange(len(z)))
    loss.backward()
""",
    # refused: each rank draws an order of its own
    """\
for images, labels in loader:
    z = model(images)[torch.randperm(len(images))]
    loss = criterion(z @ z.T, torch.arange(len(z)))  # RF303
    loss.backward()
""",
    """\
for images, labels in loader:
    a, b = model(images), model(labels)
    z = torch.cat([a, b])  # RF303
    losses = [
        torch.mm(z, z.t().contiguous()),
        torch.matmul(z, z.transpose(0, 1)),
        z.mm(torch.t(z)),
        a.matmul(b.permute(1, 0)),  # RF303
        torch.addmm(torch.zeros(len(z), len(z)), z, z.t()),
        torch.zeros(len(z), len(z)).addmm_(z, z.t(), beta=1, alpha=-2),
        torch.cdist(z, z, p=2),
        torch.pdist(z),
        torch.einsum("ic,jc->ij", a, b),  # RF303
        torch.einsum("ic, cj -> ij", z, z.T),
        F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=-1),
        nn.CosineSimilarity(dim=2)(a[:, None], b[None]),  # RF303
        (a.unsqueeze(0) - b.unsqueeze(1)).pow(2).sum(2),  # RF303
        torch.matmul(z.transpose(0, 1), z.permute(1, 2, 0)),
        torch.bmm(a.transpose(0, 1), b.transpose(0, 1).transpose(1, 2)),  # RF303
        torch.einsum("btc,dtc->tbd", a, b),  # RF303
    ]
    sum(losses).mean().backward()
""",
    # in the model itself
    """\
class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(4, 2), nn.Linear(4, 2), nn.Parameter(torch.ones(()))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return self.scale.exp() * a @ b.t()  # RF303


model = Pairs()
for images, labels in loader:
    criterion(model(images, images), torch.arange(len(images))).backward()  # RF303
""",
]
VALID = [
    # within each sample, and with weights
    """\
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.words = nn.Linear(4, 2), nn.Linear(4, 2), nn.Parameter(torch.randn(5, 2))

    def forward(self, x):
        q, k = self.query(x), self.key(x)
        scores = torch.matmul(q, k.permute(0, 2, 1)) + q @ k.transpose(-2, -1) + torch.cdist(q, k)
        steps = torch.arange(x.shape[0], device=x.device)
        return scores.mean((1, 2)) + (q.mean(1) @ self.words.t()).mean(1) + steps[:, None] * x.mean(0)[None]


model = Attention()
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
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
        torch.matmul(a, b.permute(0, 2, 1)),
        torch.einsum("btc,bsc->bts", a, b),
        torch.arange(n)[:, None] - torch.arange(n)[None],
        a.unsqueeze(1) * b.unsqueeze(2),
        torch.mm(a, model.weight),
    ]
    sum(losses).mean().backward()
""",
    """\
for images, labels in loader:
    z = rd.loss.batch_rows(model(torch.cat([images, images.flip(1)])), views=True)
    criterion(z @ z.T, torch.arange(len(z))).backward()
""",
    # next to a mean that is that of all ranks, which it would not be of the rows of all
    """\
for images, labels in loader:
    z = model(images)
    loss = torch.logsumexp(z, 0).mean() + rd.loss.batch_mean(z.mean(0)).pow(2).sum()
    loss.backward()
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
    if has_only_kept_batches(project):
        return  # each rank compares the samples of a batch that the script has composed
    yield from _losses_of_libraries(project)
    for call, scope, batch in sequences_of_samples(project):
        refusal = f"the samples of {ast.unparse(batch)} become the entries of one sequence: what follows mixes them"
        yield found(RULE, scope.source, call, MESSAGE, refusal=refusal, kind="in-batch-loss")
    whole = gathering(project)
    for pair in comparisons(project):
        reason = whole.reasons.get(pair.node)
        if reason is None and whole.rows:
            continue
        refusal = f"{pair}: in-batch negatives change with the batch" + (f"; {reason}" if reason else "")
        before = (place for place in pair.repeated_at if place[0] not in set(walk(pair.node)))
        node, scope = next((p for p in before if is_left_out(project, *p)), (pair.node, pair.scope))
        yield found(RULE, scope.source, node, MESSAGE, refusal=refusal, kind="in-batch-loss")
    for node, (scope, has_views) in whole.rows.items():
        edits = surround(scope.source, node, "rd.loss.batch_rows(", ", views=True)" if has_views else ")")
        yield found(RULE, scope.source, node, MESSAGE, edits)
    for size, scope in whole.sizes.items():
        function = "whole_batch_size" if (size, scope) in project.batch_sizes else "batch_count"
        function = function if size in project.nodes_in_batches else "global_batch"
        edits = surround(scope.source, size, f"rd.loss.{function}(", ")")
        yield found(RULE, scope.source, size, f"{ast.unparse(size)} counts this rank's samples alone", edits)


def _losses_of_libraries(project: Project) -> Iterator[Finding]:
    """Yield `model(images, texts, return_loss=True)` of transformers: CLIP's loss of the batch."""
    for model in project.models:
        for call in model.calls:
            asked = next((keyword for keyword in call.call.keywords if keyword.arg == RETURN_LOSS), None)
            is_asked = asked is not None and isinstance(asked.value, ast.Constant) and asked.value.value is True
            if is_asked and not project.analysis.functions_called(call.call, call.scope):
                refusal = "the loss that the model returns compares the samples of the batch, as that of CLIP does"
                yield found(
                    RULE,
                    call.scope.source,
                    call.call,
                    "the loss couples the samples of a batch",
                    refusal=refusal,
                    kind="in-batch-loss",
                )
