"""RF408 decided-by-own-clock: a test of the time, by which one process leaves the training before the others do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.own_clocks import is_by_own_clock
from retrofit.training.files.guards import runs_on_one
from retrofit.training.steps.shared_branches import all_come_to, concerns_all, leaves_or_trains

RULE = CATALOG["RF408"]
INVALID = [
    """\
start = time.time()
for images, labels in loader:
    criterion(model(images), labels).backward()
    if time.time() - start > 3600:
        break
""",
    """\
def is_over(start):
    return time.monotonic() - start > 60


def train(start):
    for images, labels in loader:
        criterion(model(images), labels).backward()
        if is_over(start):  # RF408
            return


train(time.monotonic())
""",
    """\
last = time.time()
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    elapsed = time.time() - last
    if elapsed > 10:  # RF408
        print(rd.reduce_loss(loss).item())
""",
    """\
start = time.perf_counter()
while time.perf_counter() - start < 60:  # RF408
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    """\
import sys

start = time.time()
for images, labels in loader:
    criterion(model(images), labels).backward()
    if len(labels) > 1 and time.time() - start > 60:  # RF408
        sys.exit(3)
""",
]
VALID = [
    """\
start = time.time()
for images, labels in loader:
    criterion(model(images), labels).backward()
    if rd.collectives.broadcast_object(time.time() - start > 3600):
        break
""",
    # no process waits for what is done here
    """\
last = time.time()
for images, labels in loader:
    criterion(model(images), labels).backward()
    if time.time() - last > 10:
        print("still at it")
        last = time.time()
""",
    # a progress bar, which ranks with other numbers of samples may not come to
    """\
last = time.time()
for images, labels in loader:
    criterion(model(images), labels).backward()
    if len(images) > 4:
        if time.time() - last > 10:
            print("slow", len(images))
""",
    # an end by a count
    """\
start, step = time.time(), 0
for images, labels in loader:
    criterion(model(images), labels).backward()
    step += 1
    print("took", time.time() - start)
    if step > 100:
        break
""",
]


def find(project: Project) -> Iterator[Finding]:
    loops = {(loop, frame.scope) for path in project.paths for loop, frame in path.loops}
    tests = dict.fromkeys((*project.in_loops, *loops))
    for node, scope in tests:
        if not isinstance(node, (ast.If, ast.While)) or not is_by_own_clock(project.analysis, node.test, scope):
            continue
        if runs_on_one(project.analysis, scope, node):
            continue
        is_even = all_come_to(project, node, scope)
        if (node, scope) in loops or (concerns_all if is_even else leaves_or_trains)(project, node, scope):
            message = "each process decides by its own clock, and others wait for it"
            edits = surround(scope.source, node.test, "rd.collectives.broadcast_object(", ")") if is_even else []
            yield found(RULE, scope.source, node.test, message, edits)
