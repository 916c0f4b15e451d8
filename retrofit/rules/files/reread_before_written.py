"""RF508 reread-before-written: a file of this run is read again, perhaps before rank 0 has written it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator

from retrofit.analysis.edits import insert_before, whole_branches
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.reachability import calls_within, reached_calls, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.main_first import has_group
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.workers import run_elsewhere
from retrofit.training.distributed.ranks.even_places import is_come_to_by_all
from retrofit.training.distributed.ranks.own_clocks import is_by_own_clock
from retrofit.training.distributed.ranks.rank_guards import MAIN, side_of
from retrofit.training.files.guards import runs_on_some
from retrofit.training.files.outputs import SAVE, WRITE
from retrofit.training.files.rereads import Rereads
from retrofit.training.placement import block_of
from retrofit.training.torch_api.distributed import BARRIERS

RULE = CATALOG["RF508"]
AT_READ = "every process reads what rank 0 writes just before"
AT_END = "the others end with a status, and the launcher ends rank 0, while it may still write"
INVALID = [
    # a folder that rank 0 makes, and all go to
    """\
if rd.is_main_process():
    os.makedirs("run", exist_ok=True)
os.chdir("run")  # RF508
""",
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
    # of the first of two trainings
    """\
def train(network, name):
    for images, labels in loader:
        criterion(network(images), labels).backward()
        optimizer.step()
    torch.save(network.state_dict(), name + ".pt")


train(model, "teacher")
model.load_state_dict(torch.load("teacher.pt"))  # RF508
train(nn.Linear(4, 2), "student")
""",
    # the launcher ends rank 0 with the others
    """\
import sys

for step, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    if step % 100 == 0:
        torch.save(model.state_dict(), "last.pt")
    if step > 1000:
        sys.exit("trained")
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
    seen: set[ast.stmt] = set()
    yield from _after_training(project, seen)
    if not project.distribution.is_by_hand:
        yield from _written_by_main(project, seen)


def _written_by_main(project: Project, seen: set[ast.stmt]) -> Iterator[Finding]:
    """Yield where every process reads what rank 0 has just written, as it is known or as a command writes it."""
    analysis = project.analysis
    own = run_elsewhere(analysis)
    training = {node for path in project.paths for node, _ in path.loops[:1]}

    met = seen | {statement for preparation in project.preparations for statement in preparation.statements}

    def is_alone(scope: Scope, node: ast.AST) -> bool:
        is_of_some = scope in own or runs_on_some(analysis, scope, node) or not has_group(project, scope, node)
        return is_of_some or _is_left_to_main(project, scope, node) or project.runs_in_turn(scope, node)

    functions = dict.fromkeys(scope for _, scope in reached_nodes(analysis) if isinstance(scope.node, FUNCTIONS))
    rereads = Rereads(analysis, project.outputs, training, met, is_alone)
    for reread in rereads.run(analysis.module_scopes[project.entry], functions):
        source, statement = reread.scope.source, reread.statement
        place = _outside_guarded(project, source, whole_branches(source, statement))
        is_even = is_come_to_by_all(project, reread.scope, statement, place)
        if (reread.is_end and not is_even) or _is_by_clock(project, reread.scope, place):
            continue  # some ranks alone may end there, or come there
        edits = [insert_before(source, place, ["rd.barrier()"])] if is_even else []
        yield found(RULE, source, reread.call, AT_END if reread.is_end else AT_READ, edits)


def _is_left_to_main(project: Project, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node is in a statement that another call writes by: np.save(path, np.load(other))."""
    statement = scope.source.statement(node)
    written = (output.call for output in project.outputs if output.kind in (SAVE, WRITE))
    return any(scope.source.parents.get(call) is statement and call is not node for call in written)


def _after_training(project: Project, seen: set[ast.stmt]) -> Iterator[Finding]:
    """Yield where a checkpoint of this run is read after the training."""
    training: defaultdict[Scope, set[ast.AST]] = defaultdict(set)  # what trains in each function on the way
    for frame in (frame for path in project.paths for frame in path.frames):
        training[frame.scope].add(frame.loops[-1] if frame.loops else frame.node)
    for node, scope in reached_calls(project.analysis):
        end = _end_before(node, scope.source, training.get(scope, set()))
        statement = scope.source.statement(node)
        if end is None or statement in seen:
            continue
        if (
            _is_left_to_main(project, scope, node)
            or not _reads(project, node, scope)
            or side_of(project.analysis, scope, node) == MAIN
        ):
            continue
        block = block_of(scope.source, statement)
        before = block[: block.index(statement)]
        later = [earlier for earlier in before if earlier.lineno > end]
        if not any(_waits(project, part, scope) for earlier in later for part in walk(earlier)):
            seen.add(statement)
            edits = [insert_before(scope.source, statement, ["rd.barrier()"])]
            yield found(RULE, scope.source, node, "a checkpoint of this run is read by all processes", edits)


def _end_before(node: ast.Call, source: Source, training: Collection[ast.AST]) -> int | None:
    """Return the last line of the training that a call follows; None for a call that follows none."""
    before = [trains for trains in training if trains.end_lineno < node.lineno]  # type: ignore[attr-defined]
    ends = (trains.end_lineno for trains in before if not _is_instead(source, node, trains))  # type: ignore[attr-defined]
    return max(ends, default=None)


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


def _is_by_clock(project: Project, scope: Scope, place: ast.stmt) -> bool:
    """Return whether a process comes to a statement of a step by its own clock: a checkpoint every ten minutes."""
    tests = [outer.test for outer in scope.source.ancestors(place) if isinstance(outer, ast.If)]
    is_own = any(is_by_own_clock(project.analysis, test, scope) for test in tests)
    return is_own and place in project.nodes_in_batches


def _outside_guarded(project: Project, source: Source, place: ast.stmt) -> ast.stmt:
    """Return the `if` around a statement that rank 0 alone enters in the converted project, or the statement itself."""
    guarded = {guard.statement for guard in project.guards.values()}
    outer = source.parents[place]
    is_alone = isinstance(outer, ast.If) and not outer.orelse and all(isinstance(each, ast.Expr) for each in outer.body)
    return outer if place in guarded and is_alone else place  # type: ignore[return-value]
