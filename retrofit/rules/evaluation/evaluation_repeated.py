"""RF113 evaluation-repeated: every process evaluates all samples, although each could take its part of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, insert_after, surround
from retrofit.analysis.files.source import Source
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.evaluation import LIST, METER, SUM, Accumulator, Evaluation

RULE = CATALOG["RF113"]
INVALID = [
    """\
model.eval()
correct = 0
with torch.no_grad():
    for images, labels in test_loader:
        correct += (model(images).argmax(1) == labels).sum().item()
print(correct)
""",
    """\
model.eval()
scores = []
with torch.no_grad():
    for images, labels in tqdm(test_loader):
        scores.append(model(images))
print(torch.cat(scores).std())
""",
    """\
def predict(images):
    return model(images).argmax(1)


@torch.no_grad()
def evaluate(batches):
    model.eval()
    hits = torch.zeros(2)
    for images, labels in batches:
        hits += torch.bincount(predict(images), minlength=2)
    return hits / len(dataset)


print(evaluate(test_loader))
""",
]
VALID = [
    """\
model.eval()
correct = 0
with torch.no_grad():
    for images, labels in rd.share_batches(test_loader):
        correct += (model(images).argmax(1) == labels).sum().item()
    correct = rd.sum_over_ranks(correct)
print(correct)
""",
    # a running maximum is not a sum
    """\
model.eval()
best = 0
with torch.no_grad():
    for images, labels in test_loader:
        best = max(best, model(images).max().item())
""",
    # the batches are paired with others
    """\
model.eval()
total = 0
with torch.no_grad():
    for (images, _), (others, _) in zip(test_loader, DataLoader(dataset, 8)):
        total += (model(images) - model(others)).sum().item()
""",
    # in training mode the statistics of BatchNorm depend on the earlier batches
    """\
total = 0
with torch.no_grad():
    for images, labels in test_loader:
        total += model(images).sum().item()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # the evaluation is split by hand too, or not on purpose
    for evaluation in project.evaluations:
        source = evaluation.scope.source
        if evaluation.reason:
            continue
        message = f"every process evaluates all of {source.segment(evaluation.batches)}"
        yield found(RULE, source, evaluation.loop, message, _edits(source, evaluation))


def _edits(source: Source, evaluation: Evaluation) -> list[Edit]:
    lines = [*reductions(evaluation.accumulators)]
    return [
        *surround(source, evaluation.batches, "rd.share_batches(", ")"),
        insert_after(source, evaluation.loop, lines),
    ]


def reductions(accumulators: tuple[Accumulator, ...], of: str = "") -> Iterator[str]:
    """Yield the lines that put together what the processes have accumulated; `of` a loader, if that is sharded."""
    only = f", of={of}" if of else ""
    for kind, function in ((SUM, "sum_over_ranks"), (LIST, "evaluation.gather_batches")):
        names = ", ".join(ast.unparse(a.target) for a in accumulators if a.kind == kind)
        if names:
            yield f"{names} = rd.{function}({names}{only})"
    for accumulator in accumulators:
        if accumulator.kind == METER and accumulator.meter is not None:
            meter = accumulator.meter
            arguments = [repr(name).replace("'", '"') for name in meter.sums]
            arguments += [f"{name}=lambda {meter.receiver}: {text}" for name, text in meter.derived.items()]
            yield f"rd.evaluation.sum_attributes({', '.join([ast.unparse(accumulator.target), *arguments])}{only})"
