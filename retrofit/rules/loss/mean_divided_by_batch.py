"""RF308 mean-divided-by-batch: a mean over the batch is divided by the number of samples once more."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.divisions import COUNT, SIZE, Division
from retrofit.training.losses.input_gradients import input_gradients
from retrofit.training.losses.reductions.coupling import MAYBE_ONE_BY_ONE, ONE_BY_ONE, obstacle
from retrofit.training.losses.reductions.kinds import PENALTY
from retrofit.training.losses.reductions.reduction import (
    backward_kind,
    counts_outputs,
    is_sum,
    loss_kind,
    reader_of,
    sum_terms,
)
from retrofit.training.losses.terms import MEAN

RULE = CATALOG["RF308"]
HELP = "divide by rd.loss.batch_count(n) where it is a mean, by rd.loss.rank_share(rd.loss.batch_count(n)) a sum"
OF_WEIGHTS = "a term of the weights is divided by this process's part of the batch: it counts N times as much"
HELP_WEIGHTS = "write rd.loss.rank_share(term) for the term where it is divided by the samples of a process"
OF_SAMPLES = "the gradient of a mean over this process's samples, with respect to them, is used by its size"
HELP_SAMPLES = (
    "with RETROFIT_BATCH=global it is N times as large: write rd.loss.part_of_mean(loss) where its gradients with "
    "respect to weights are not used, else divide the gradient by N; a sum over the batch, or a step by the sign of "
    "the gradient, needs neither, nor does an evaluation, of which every process has the whole batches"
)
INVALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) / images.size(0)
    loss.backward()
""",
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss /= float(len(images))  # RF308
    loss.backward()
""",
    """\
for images, labels in loader:
    mask = labels > 0
    loss = criterion(model(images), labels) / mask.sum()  # RF308
    loss.backward()
""",
    # a term of the weights, next to a sum over the batch
    """\
for images, labels in loader:
    penalty = sum(weight.square().sum() for weight in model.parameters())
    loss = (F.mse_loss(model(images), labels, reduction="sum") + penalty) / len(images)  # RF308
    loss.backward()
""",
    # the step of an attack, by the size of the gradient
    """\
for images, labels in loader:
    images.requires_grad_()
    gradient = torch.autograd.grad(criterion(model(images), labels), images)[0]  # RF308
    loss = criterion(model((images + 0.1 * gradient).detach()), labels)
    loss.backward()
""",
    """\
for images, labels in loader:
    noise = torch.zeros_like(images, requires_grad=True)
    criterion(model(images + noise), labels).backward()  # RF308
    noise = (0.1 * noise.grad).detach()
    optimizer.zero_grad()
    loss = criterion(model(images + noise), labels)
    loss.backward()
    optimizer.step()
""",
    # one divided by it, as a factor
    """\
for images, labels in loader:
    loss = 0.5 / len(images) * criterion(model(images), labels)  # RF308
    loss.backward()
""",
    """\
for images, labels in loader:
    terms = []
    for output in [model(images), model(labels)]:
        norm = 1.0 / torch.tensor(torch.numel(output), dtype=torch.float32)
        terms.append(norm * F.mse_loss(output, labels))  # RF308
    loss = sum(terms)
    loss.backward()
""",
    """\
for images, labels in loader:
    norm = 1 / np.prod(images.shape)
    outputs = model(images)
    loss = norm * F.mse_loss(outputs, labels) + norm * F.l1_loss(outputs, labels)  # RF308
    loss.backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) / rd.loss.batch_count(images.size(0))
    loss.backward()
""",
    # a term of the weights, divided by a number that all processes have
    """\
for images, labels in loader:
    penalty = sum(weight.square().sum() for weight in model.parameters())
    loss = criterion(model(images), labels) + penalty / len(loader) + penalty / 100
    loss.backward()
""",
    # by its direction
    """\
for images, labels in loader:
    images.requires_grad_()
    gradient = torch.autograd.grad(criterion(model(images), labels), images)[0]
    changed = images + 0.1 * gradient.sign() + gradient / (gradient.norm(dim=1, keepdim=True) + 1e-8)
    loss = criterion(model(changed.detach()), labels)
    loss.backward()
""",
    # a sum, which becomes the mean
    """\
for images, labels in loader:
    loss = F.cross_entropy(model(images), labels, reduction="sum") / images.size(0)
    loss.backward()
""",
    # numbers that do not depend on the batch
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) / images.shape[1] / len(loader) / 4
    loss = loss / np.prod(images.shape[1:]) * (1 / images.shape[2])
    loss.backward()
""",
    # a mean of means over one sample each
    """\
for images, labels in loader:
    outputs, loss = model(images), 0
    for k in range(len(images)):
        loss += (outputs[k] - labels[k]).square().mean() / len(images)
    loss.backward()
""",
    # as many outputs whatever the batch is
    """\
class Scales(nn.Module):
    def forward(self, images):
        return {"whole": images, "half": images / 2}


scales = Scales()
for images, labels in loader:
    loss, outputs = 0, scales(model(images))
    for name in outputs:
        loss = loss + criterion(outputs[name], labels)
    loss = loss / len(outputs)
    loss.backward()
""",
    # a distributed script may mean its own batch
    """\
model = DDP(Net())
for images, labels in loader:
    loss = criterion(model(images), labels) / len(images)
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # there a step may be meant to be that of one process's batch
    for division in project.divisions:
        if counts_outputs(project, division.divisor, division.scope):
            continue
        if division.loss == MEAN and division.kind in (SIZE, COUNT) and not _is_sum(project, division):
            source = division.scope.source
            reason = obstacle(project, division.dividend, division.scope) if division.is_in_loop else ""
            if reason in (ONE_BY_ONE, MAYBE_ONE_BY_ONE):
                continue
            is_sure = division.is_settled and division.is_alone and not reason
            edits = surround(source, division.count, "rd.loss.batch_count(", ")") if is_sure else []
            message = "a mean is divided by this process's part of the batch: the gradient becomes N times as large"
            yield found(RULE, source, division.node, message, edits, help=HELP)
    yield from _of_penalties(project)
    for gradient in input_gradients(project):
        source = gradient.scope.source
        edits = surround(source, gradient.loss, "rd.loss.part_of_mean(", ")") if gradient.is_alone else []
        yield found(RULE, source, gradient.node, OF_SAMPLES, edits, help=HELP_SAMPLES)


def _of_penalties(project: Project) -> Iterator[Finding]:
    """Yield the terms of weights that are divided by the samples of a process, next to sums over them or alone."""
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        backward_kind(project, call, scope)  # type: ignore[arg-type]
    for quotient, scope in reader_of(project).divided_penalties.items():
        dividend = quotient.left if isinstance(quotient, ast.BinOp) else getattr(quotient, "func", quotient)
        dividend = dividend.value if isinstance(dividend, ast.Attribute) else dividend
        terms = sum_terms(project, dividend, scope, PENALTY)
        edits = [edit for t, where in terms or () for edit in surround(where.source, t, "rd.loss.rank_share(", ")")]
        yield found(RULE, scope.source, quotient, OF_WEIGHTS, edits, help=HELP_WEIGHTS)


def _is_sum(project: Project, division: Division) -> bool:
    """Return whether what is divided is a sum over the samples, added up in a loop over them: a mean of each."""
    return is_sum(loss_kind(project, division.dividend, division.scope))
