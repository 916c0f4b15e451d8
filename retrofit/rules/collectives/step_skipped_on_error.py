"""RF405 step-skipped-on-error: a process whose step fails continues with its next batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, indent_step, indentation, insert_before
from retrofit.analysis.files.source import Source
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.steps.caught_errors import caught_errors

RULE = CATALOG["RF405"]
INVALID = [
    """\
for images, labels in loader:
    try:
        loss = criterion(model(images), labels)
        loss.backward()
    except RuntimeError:
        continue
    optimizer.step()
""",
    """\
def step(images, labels):
    criterion(model(images), labels).backward()
    optimizer.step()


for images, labels in loader:
    try:
        step(images, labels)
    except (RuntimeError, ValueError):  # RF405
        print("skipped")
""",
    """\
from contextlib import suppress

for images, labels in loader:
    with suppress(RuntimeError):  # RF405
        criterion(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    try:
        images = images.float()
    except ValueError:  # RF405
        continue
    criterion(model(images), labels).backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    try:
        loss = criterion(model(images), labels)
        loss.backward()
    except RuntimeError:
        if rd.get_world_size() > 1:
            raise
        continue
    optimizer.step()
""",
    # the step is made all the same
    """\
for images, labels in loader:
    try:
        images = images.float()
    except ValueError:
        images = images * 1.0
    criterion(model(images), labels).backward()
""",
    # it ends the training
    """\
try:
    for images, labels in loader:
        criterion(model(images), labels).backward()
except RuntimeError:
    print("ended")
""",
    # the error ends this process too, or it is the same one on all processes
    """\
for images, labels in loader:
    try:
        criterion(model(images), labels).backward()
    except RuntimeError as error:
        if "memory" in str(error):
            exit(1)
        else:
            raise error
    except (TypeError, AttributeError):
        model(images).mean().backward()
    except KeyboardInterrupt:
        break
    finally:
        print("done")
""",
    # the processes tell each other
    """\
for images, labels in loader:
    try:
        criterion(model(images), labels).backward()
    except RuntimeError:
        failed = torch.ones(1)
        dist.all_reduce(failed)
""",
]


def find(project: Project) -> Iterator[Finding]:
    runs = {call.call for model in project.models for call in model.calls}
    seen: set[ast.AST] = set()
    for path in project.paths:
        for caught in caught_errors(project.analysis, path, runs):
            if caught.node in seen:
                continue
            seen.add(caught.node)
            source = caught.scope.source
            message = "a process that fails here leaves its step out, and the others wait for it"
            if isinstance(caught.node, ast.With):
                refusal = "errors in a training step are suppressed, so some processes would wait for others"
                yield found(RULE, source, caught.node, message, refusal=refusal)
            else:
                yield found(RULE, source, caught.node, message, [_raising(source, caught.node)])


def _raising(source: Source, handler: ast.ExceptHandler) -> Edit:
    """Return an edit that hands the error on where there are other processes."""
    first = handler.body[0]
    step = indent_step(source)
    lines = ["if rd.get_world_size() > 1:", f"{step}raise  # the others wait for this step"]
    start, _ = source.span(first)
    header = source.text[:start].rstrip()
    if source.line_of(len(header)) != source.line_of(start):
        return insert_before(source, first, lines)
    indent = indentation(source, source.parents[handler]) + step  # type: ignore[arg-type]
    text = "".join(f"{source.newline}{indent}{line}" for line in (*lines, ""))
    return Edit(source, len(header), start, text)
