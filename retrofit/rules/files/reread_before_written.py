"""RF508 reread-before-written: a file of this run is read again, perhaps before rank 0 has written it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import insert_before
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.reachability import calls_within, reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import MAIN, side_of
from retrofit.training.placement import block_of
from retrofit.training.torch_api.distributed import BARRIERS

RULE = CATALOG["RF508"]
INVALID = [
    """\
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
model.load_state_dict(torch.load("best.pt"))
""",
    """\
def restore(path):
    model.load_state_dict(torch.load(path))


for images, labels in loader:
    criterion(model(images), labels).backward()
    if rd.is_main_process():
        torch.save(model.state_dict(), "best.pt")
restore("best.pt")  # RF508
""",
]
VALID = [
    """\
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
rd.barrier()
model.load_state_dict(torch.load("best.pt"))
""",
    # read before the training writes it
    """\
model.load_state_dict(torch.load("last.pt"))
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # read by the process that writes it
    """\
for images, labels in loader:
    criterion(model(images), labels).backward()
if rd.is_main_process():
    model.load_state_dict(torch.load("best.pt"))
""",
    # a run that reads it does not train
    """\
args = parser.parse_args()
if args.train:
    for images, labels in loader:
        criterion(model(images), labels).backward()
else:
    model.load_state_dict(torch.load("best.pt"))
""",
]


def find(project: Project) -> Iterator[Finding]:
    # What trains in each function that the training goes through.
    training = {f.scope: f.loops[-1] if f.loops else f.node for path in project.paths for f in path.frames}
    seen: set[ast.stmt] = set()
    for node, scope in reached_nodes(project.analysis):
        if scope not in training or not isinstance(node, ast.Call):
            continue
        end: int = training[scope].end_lineno  # type: ignore[attr-defined]
        statement = scope.source.statement(node)
        if node.lineno <= end or statement in seen or _is_instead(scope.source, node, training[scope]):
            continue
        if not _reads(project, node, scope) or side_of(project.analysis, scope, node) == MAIN:
            continue
        block = block_of(scope.source, statement)
        before = block[: block.index(statement)]
        later = [earlier for earlier in before if earlier.lineno > end]
        if not any(_waits(project, part, scope) for earlier in later for part in ast.walk(earlier)):
            seen.add(statement)
            edits = [insert_before(scope.source, statement, ["rd.barrier()"])]
            yield found(RULE, scope.source, node, "a checkpoint of this run is read by all processes", edits)


def _is_instead(source: Source, node: ast.AST, training: ast.AST) -> bool:
    """Return whether a run that comes to a node does not train: it is in the other branch of an `if`."""
    here, there = {node, *source.ancestors(node)}, {training, *source.ancestors(training)}
    forks = (outer for outer in here & there if isinstance(outer, ast.If))
    return any(any(part in here for part in fork.body) != any(part in there for part in fork.body) for fork in forks)


def _reads(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call loads a checkpoint, or a function that it runs on every process."""
    return any(
        project.analysis.called(node, where) & {"torch.load"} and side_of(project.analysis, where, node) != MAIN
        for node, where in calls_within(project.analysis, call, scope)
    )


def _waits(project: Project, node: ast.AST, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and bool(project.analysis.called(node, scope) & BARRIERS)
