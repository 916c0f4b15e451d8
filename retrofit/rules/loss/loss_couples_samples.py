"""RF309 loss-couples-samples: Dice over a batch, or the root of a mean, computed on this rank's own samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, insert_after, surround
from retrofit.analysis.files.source import Source
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.tests_together import tests_together
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.criteria.library import calls_of_criterion, library_couplings
from retrofit.training.losses.gathering.gathered import gathering, is_given_whole_rows
from retrofit.training.losses.gathering.kept_batches import has_only_kept_batches
from retrofit.training.losses.reductions.coupling import IN_MODEL, OF_NUMPY, Coupling, couplings, is_brought_together
from retrofit.training.losses.reductions.kept_counts import kept_counts
from retrofit.training.losses.rows.rows_by_place import rows_by_place
from retrofit.training.losses.rows.sequences_of_samples import layers_over_samples

RULE = CATALOG["RF309"]
HELP_MODEL = "while it trains, rd.loss.batch_mean(x.mean(0)) or rd.loss.batch_sum(x.sum(0)) of all processes"
HELP_LAYER = "batch_first=True in the layer, or the samples along the second axis of what it is given"
HELP_WHOLE = "rd.loss.whole_batch_loss(criterion)(output, target), which gathers the outputs of all processes"
HELP_PLACE = "gather the rows of all processes before they are taken apart: rd.loss.batch_rows(outputs)"
INVALID = [
    """\
for images, labels in loader:
    output = model(images)
    loss = criterion(output, labels) + (output[1:] - output[:-1]).abs().mean()  # RF309
    loss.backward()
""",
    """\
for images, labels in loader:
    output = model(images)
    overlap = (output * labels).sum()
    loss = 1 - (2 * overlap + 1) / (output.sum() + labels.sum() + 1)
    loss.backward()
""",
    """\
import monai
import segmentation_models_pytorch as smp
from pytorch_metric_learning import losses

both = monai.losses.DiceCELoss(sigmoid=True, batch=True)  # RF309
dice = smp.losses.DiceLoss(mode="multilabel")  # RF309
hinge = smp.losses.LovaszLoss(mode="multilabel")  # RF309
pairs = losses.NTXentLoss(temperature=0.1)  # RF309
for images, labels in loader:
    loss = dice(model(images), labels) + hinge(model(images), labels) + pairs(model(images), labels)
    loss = loss + both(model(images), labels)
    loss.backward()
""",
    """\
center, sums = torch.zeros(2), torch.zeros(2)
for images, labels in loader:
    output = model(images)
    criterion(output - center - sums, labels).backward()
    with torch.no_grad():
        center = 0.9 * center + 0.1 * output.mean(0)  # RF309
        sums.mul_(0.9).add_(output.sum(0), alpha=0.1)  # RF309
""",
    """\
for images, labels in loader:
    loss = F.mse_loss(model(images), labels) * len(images[0])  # RF309
    loss = loss + F.mse_loss(model(images), labels) * images[0].numel()  # RF309
    loss = loss + F.mse_loss(model(images), labels) * len(images) ** 0.5  # RF309
    loss = loss + F.mse_loss(model(images), labels) * len(labels[labels > 0.5])  # RF309
    loss = loss + F.mse_loss(model(images), labels) * (len(images) + 1)  # RF309
    loss.backward()
""",
]
VALID = [
    # without gradients
    """\
center = torch.zeros(2)
for images, labels in loader:
    output = model(images)
    criterion(output - center, labels).backward()
    with torch.no_grad():
        center = 0.9 * center + 0.1 * rd.loss.batch_mean(output.mean(0), learns=False)
""",
    """\
for images, labels in loader:
    output = model(images)
    overlap = rd.loss.batch_sum((output * labels).sum())
    loss = 1 - (2 * overlap + 1) / (rd.loss.batch_sum(output.sum()) + rd.loss.batch_sum(labels.sum()) + 1)
    loss.backward()
""",
    # criteria that are a mean over the samples
    """\
import monai
import segmentation_models_pytorch as smp

hinge = smp.losses.LovaszLoss(mode="multilabel", per_image=True)
bce = smp.losses.SoftBCEWithLogitsLoss()
dice = monai.losses.DiceLoss(sigmoid=True)
for images, labels in loader:
    loss = hinge(model(images), labels) + bce(model(images), labels) + dice(model(images), labels)
    loss.backward()
""",
    # Dice per sample
    """\
for images, labels in loader:
    output = model(images)
    overlap = (output * labels).sum(1)
    loss = 1 - ((2 * overlap + 1) / (output.sum(1) + labels.sum(1) + 1)).mean()
    loss.backward()
""",
    # factors that the batch does not change
    """\
weight = float(os.environ["WEIGHT"])
for images, labels in loader:
    loss = F.mse_loss(model(images), labels) * weight * (1 - 3 / images.shape[1])
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    made_global = [coupling for coupling in couplings(project) if coupling.function]
    yield from tests_together(project, ((coupling.node, coupling.scope) for coupling in made_global), RULE)
    for coupling in couplings(project):
        if is_brought_together(project, coupling.scope):
            continue
        source = coupling.scope.source
        message = "the loss couples the samples of a batch"
        if coupling.function:
            yield found(RULE, source, coupling.node, message, _of_all_ranks(source, coupling))
        else:
            help_text = HELP_MODEL if coupling.reason == IN_MODEL else HELP_WHOLE
            yield found(RULE, source, coupling.node, f"{message}, and {coupling.reason}", help=help_text)
    if has_only_kept_batches(project):
        return
    for call, scope, name in layers_over_samples(project):
        message = f"the {name} runs over the samples of this process's batch, which it takes for one sequence"
        yield found(RULE, scope.source, call, message, help=HELP_LAYER)
    for node, scope in [] if project.distribution.is_by_hand else rows_by_place(project):
        message = f"{ast.unparse(node)} takes samples by their place in the batch, of which each process has a part"
        yield found(RULE, scope.source, node, message, help=HELP_PLACE)
    for value, scope in kept_counts(project):
        message = f"{ast.unparse(value)} counts this rank's samples, and a sum is over those of all ranks"
        yield found(RULE, scope.source, value, message, surround(scope.source, value, "rd.loss.batch_count(", ")"))
    for builder, scope, name, takes_more in library_couplings(project):
        whole = {is_given_whole_rows(project, *call) for call in calls_of_criterion(project, builder)}
        if whole == {True}:
            continue  # it compares the samples of all ranks already
        is_gathered = True in whole or (not whole and bool(gathering(project).rows))
        is_open = takes_more or is_gathered  # gathered again, the rows of some calls would be there twice
        edits = surround(scope.source, builder, "rd.loss.whole_batch_loss(", ")") if not is_open else []
        yield found(RULE, scope.source, builder, f"{name} couples the samples of a batch", edits, help=HELP_WHOLE)


def _of_all_ranks(source: Source, coupling: Coupling) -> list[Edit]:
    """Return the edits that make a sum or mean that of all ranks: for `total /= n` in a line after it."""
    takes_numbers = coupling.function in OF_NUMPY.values()
    end = ")" if coupling.learns or takes_numbers else ", learns=False)"
    if isinstance(coupling.node, ast.Name):
        name = coupling.node.id
        return [insert_after(source, source.statement(coupling.node), [f"{name} = {coupling.function}({name}{end}"])]
    return surround(source, coupling.node, f"{coupling.function}(", end)
