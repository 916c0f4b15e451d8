"""RF113 evaluation-repeated: every process evaluates all samples, although each could take its part of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import Edit, insert_after, surround
from retrofit.project.evaluation import LIST, METER, SUM, Accumulator, Evaluation
from retrofit.project.source import Source
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found

RULE = CATALOG["RF113"]
INVALID = [
    """\
model.eval()
correct = 0
with torch.no_grad():
    for images, labels in test_loader:
        correct += (model(images).argmax(1) == labels).sum().item()
print(correct)
"""
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
"""
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # the evaluation is shared out by hand too, or not on purpose
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
    """Yield the lines that put together what the processes have accumulated; `of` a loader, if that is shared out."""
    only = f", of={of}" if of else ""
    for kind, function in ((SUM, "sum_over_ranks"), (LIST, "gather_batches")):
        names = ", ".join(ast.unparse(a.target) for a in accumulators if a.kind == kind)
        if names:
            yield f"{names} = rd.{function}({names}{only})"
    for accumulator in accumulators:
        if accumulator.kind == METER and accumulator.meter is not None:
            meter = accumulator.meter
            arguments = [repr(name).replace("'", '"') for name in meter.sums]
            arguments += [f"{name}=lambda {meter.receiver}: {text}" for name, text in meter.derived.items()]
            yield f"rd.sum_attributes({', '.join([ast.unparse(accumulator.target), *arguments])}{only})"
