"""RF114 evaluation-order-per-rank: every process evaluates in an order, or with random numbers, of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import CallSite
from retrofit.analysis.edits import surround
from retrofit.analysis.flow.assignments import assignments_to
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import EVALUATION, TRAIN, Loader, Use
from retrofit.training.data.shards import builders_of, is_sharded, places_given, sampler_values
from retrofit.training.evaluation.draws import draws_in_evaluation
from retrofit.training.evaluation.pass_lengths import lengths_of_whole
from retrofit.training.evaluation.whole_passes import whole_passes
from retrofit.training.evaluation.with_gradients import loss_like_in_training
from retrofit.training.files.guards import runs_on_one
from retrofit.training.loops import Frame, is_ruled_out, truth_in_call
from retrofit.training.torch_api.data import SAMPLERS_IN_ORDER
from retrofit.training.torch_api.runtime import SAME_ORDER

RULE = CATALOG["RF114"]
INVALID = [
    # a training loss that is divided by its samples, with gradients
    """\
def mean_loss(outputs, labels):
    return criterion(outputs, labels) / len(outputs)


for images, labels in loader:
    mean_loss(model(images), labels).backward()
val_loader = DataLoader(dataset, 8)
model.eval()
for images, labels in val_loader:
    total = max(total, mean_loss(model(images), labels).item())
""",
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
losses = []
with torch.no_grad():
    for step, (images, labels) in enumerate(shuffled):
        if step == 3:
            break
        losses.append((model(images) - labels).square().mean().item())
""",
    """\
chosen = DataLoader(dataset, 8, sampler=torch.utils.data.SubsetRandomSampler(range(30)))
model.eval()
with torch.no_grad():
    for step, (images, labels) in enumerate(chosen):
        if step < 3:
            total = max(total, model(images).max().item())
""",
    """\
def get_loader(split, shuffle=False):
    return DataLoader(dataset, 8, shuffle=shuffle and split != "never")


model.eval()
with torch.no_grad():
    for images, labels in get_loader("val", True):
        total = max(total, model(images).max().item())
""",
    """\
options = dict(batch_size=8)
model.eval()
with torch.no_grad():
    for images, labels in DataLoader(dataset, **options, shuffle=total > 2):
        total = max(total, model(images).max().item())
""",
    # what is drawn in the loop, by what it calls, and for its samples
    """\
val_loader = DataLoader(dataset, 8)
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, model(images + torch.randn_like(images)).max().item())
""",
    """\
import random


def noisy(images):
    return images if random.random() < 0.5 else -images


val_loader = DataLoader(dataset, 8)
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, model(noisy(images)).max().item())
""",
]
VALID = [
    """\
def mean_loss(outputs, labels):
    return criterion(outputs, labels) / rd.loss.batch_count(len(outputs))


for images, labels in loader:
    mean_loss(model(images), labels).backward()
val_loader = DataLoader(dataset, 8)
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, mean_loss(model(images), labels).item())
""",
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
losses = []
with torch.no_grad():
    for step, (images, labels) in enumerate(rd.evaluation.same_batches(shuffled)):
        if step == 3:
            break
        losses.append((model(images) - labels).square().mean().item())
""",
    # loaders with a fixed order
    """\
def get_loader(split, shuffle=False):
    if split == "ordered":
        return DataLoader(dataset, 8)
    return DataLoader(dataset, 8, shuffle=shuffle and split != "never")


val, ordered, never = get_loader("val"), get_loader("ordered", True), get_loader("never", True)
model.eval()
with torch.no_grad():
    for (images, labels), *_ in zip(val, ordered, never):
        total = max(total, model(images).max().item())
    for images, labels in DataLoader(dataset, sampler=torch.utils.data.SequentialSampler(dataset)):
        total = max(total, model(images).max().item())
""",
    # no shuffle among the options
    """\
val_loader = DataLoader(dataset, **{"batch_size": 8, "shuffle": False})
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, model(images).max().item())
""",
    # what draws in training alone
    """\
def drop(images, training):
    if not training:
        return images
    return images * torch.bernoulli(torch.full_like(images, 0.5))


def shifted(images, training=False):
    if training:
        images = images + torch.randn_like(images)
    return images


val_loader = DataLoader(dataset, 8)
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, model(shifted(drop(images, model.training))).max().item())
""",
    # a sum is the same in any order (RF113 shards it)
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
total = 0
with torch.no_grad():
    for images, labels in shuffled:
        total += model(images).sum().item()
print(total)
""",
]
HELP_LENGTH = "divide what the evaluation adds up by len(rd.evaluation.same_batches(loader))"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # one seed for all processes gives them one order, where the training draws from a sampler
    whole = {evaluation.loop: evaluation.scope for evaluation in project.evaluations if evaluation.reason}
    drawing = {loop for loop, scope in whole.items() if draws_in_evaluation(project.analysis, loop, scope)}
    of_ranks = {loop for loop, scope in whole.items() if loss_like_in_training(project, loop, scope)}
    seen: set[ast.expr] = set()
    for expression, use in whole_passes(project).items():
        if not _is_fixed(project, use):
            seen.add(expression)
            message = f"each process draws its own part of {use.scope.source.segment(expression)}"
            edits = surround(use.scope.source, expression, "rd.evaluation.same_batches(", ")")
            yield found(RULE, use.scope.source, expression, message, edits)
    for node, scope, is_of_pass in dict.fromkeys(lengths_of_whole(project)):
        message = f"{scope.source.segment(node)} is this process's part, and its length that of the training"
        edits = surround(scope.source, node, "rd.evaluation.same_batches(", ")") if is_of_pass else []
        yield found(RULE, scope.source, node, message, edits, help="" if is_of_pass else HELP_LENGTH)
    for loader in project.loaders:
        if TRAIN in loader.roles or is_sharded(project.ranks, loader):
            continue
        is_random = _is_random(project.analysis, loader)
        for use in loader.uses:
            source = use.scope.source
            if use.role != EVALUATION or use.loop not in whole or use.expression in seen:
                continue
            if not is_random and use.loop not in drawing | of_ranks:
                continue
            if _is_fixed(project, use) or runs_on_one(project.analysis, use.scope, use.loop):
                continue
            seen.add(use.expression)
            message = _message(source.segment(use.expression), is_random, use.loop in drawing)
            edits = surround(source, use.expression, "rd.evaluation.same_batches(", ")")
            yield found(RULE, source, use.expression, message, edits)


def _message(drawn_from: str, is_random: bool, is_drawing: bool) -> str:
    if not is_random and not is_drawing:
        return f"with gradients, losses of {drawn_from} count as parts of a batch of all processes"
    return f"each process draws {'an order' if is_random else 'random numbers'} of its own for {drawn_from}"


def _is_fixed(project: Project, use: Use) -> bool:
    """Return whether a pass has the same batches on all processes already."""
    outer = use.scope.source.parents[use.expression]
    return isinstance(outer, ast.Call) and bool(project.analysis.called(outer, use.scope) & SAME_ORDER)


def _is_random(analysis: Analysis, loader: Loader) -> bool:
    """Return whether a loader can draw its samples in a random order."""
    for builder, scope in builders_of(analysis, loader):
        sites = list(_calls_for(analysis, loader, scope))
        possible = [site for site in sites if not is_ruled_out(analysis, (Frame(scope, builder, ()),), site)]
        if possible or not sites:
            options = [*_options(analysis, builder, scope)]
            if any(_is_true(analysis, node, scope, possible) for node in options) or _samples(analysis, builder, scope):
                return True
    return False


def _calls_for(analysis: Analysis, loader: Loader, scope: Scope) -> Iterator[CallSite]:
    """Yield the calls of a helper that make just this loader: `val_loader = get_loader("val")`."""
    if loader.variable is None or not isinstance(scope.node, FUNCTIONS):
        return
    given = [a.value for a in assignments_to(analysis, loader.variable) if a.value is not None]
    inside = {part for value in given for part in walk(value)}
    yield from (site for site in analysis.callers(scope.node) if site.call in inside)


def _options(analysis: Analysis, builder: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a call of DataLoader gives for `shuffle`, also in `**options`."""
    yield from (given for given, _ in places_given(analysis, builder, scope, "shuffle"))


def _is_true(analysis: Analysis, node: ast.expr, scope: Scope, sites: list[CallSite]) -> bool:
    """Return whether an option can be true in these calls of its function."""
    truths = {truth_in_call(scope, [site], node) for site in sites}
    if truths and None not in truths:
        return True in truths
    values = analysis.evaluate(node, scope)
    constants = [v.node for v in values if isinstance(v, Display) and isinstance(v.node, ast.Constant)]
    return not values or len(constants) < len(values) or any(constant.value for constant in constants)


def _samples(analysis: Analysis, builder: ast.Call, scope: Scope) -> bool:
    """Return whether a loader has a sampler that can draw at random."""
    values = [v for v in sampler_values(analysis, builder, scope) if isinstance(v, (Result, Instance))]
    return any(not isinstance(value, Result) or not value.builder.endswith(SAMPLERS_IN_ORDER) for value in values)
