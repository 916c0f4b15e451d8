"""RF215 gradient-hooked-per-rank: a hook changes the gradient of one rank's samples, not the mean over the ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.nodes import walk
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.gradient_hooks import gradient_hooks

RULE = CATALOG["RF215"]
INVALID = [
    """\
model = rd.distribute_model(Net())
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: torch.clamp(gradient, -1, 1))  # RF215
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    """\
def cut(gradient):
    gradient = gradient.clone()
    return gradient / max(gradient.norm(), 1)


model = rd.distribute_model(Net())
for name, parameter in model.named_parameters():
    if "weight" in name:
        parameter.register_hook(cut)  # RF215
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # what is kept is to be the gradient of all samples
    """\
norms = []
model = rd.distribute_model(Net())
next(model.parameters()).register_hook(lambda gradient: norms.append(gradient.norm()))  # RF215
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
]
VALID = [
    # of multiples the mean is the multiple of the mean
    """\
def first_rows(gradient):
    gradient = gradient.clone()
    gradient[5:] = 0
    return gradient


model = rd.distribute_model(Net())
mask = torch.ones(2)
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: gradient * mask)
    parameter.register_hook(lambda gradient: -0.5 * gradient.mul(2))
    parameter.register_hook(first_rows)
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # of each sample
    """\
model = rd.distribute_model(Net())
for images, labels in loader:
    out = model(images)
    out.register_hook(lambda gradient: gradient.clamp(-1, 1))
    criterion(out, labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    for call, scope in gradient_hooks(project.analysis):
        hook = call.args[0]
        if any(isinstance(part, ast.Call) and project.leads_to_collective(part, scope) for part in walk(hook)):
            continue
        message = "the hook gets the gradient of one process's samples"
        # As a default, it is the function that the name has here, also where a loop defines it again.
        opening, closing = ("(", ")") if isinstance(hook, ast.Lambda) else ("", "")
        before, after = "lambda gradient, hook=", ": hook(rd.collectives.reduce_mean(gradient))"
        edits = surround(scope.source, hook, before + opening, closing + after)
        yield found(RULE, scope.source, hook, message, edits)
