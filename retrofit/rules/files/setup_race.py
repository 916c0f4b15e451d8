"""RF504 setup-race: all processes prepare folders and data at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import call_through
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.main_first import main_first
from retrofit.rules.finding import Finding, found, guarded
from retrofit.training import Project
from retrofit.training.distributed.distribution import Distribution
from retrofit.training.distributed.rank_ordered import runs_in_turn
from retrofit.training.distributed.ranks.even_places import is_come_to_by_all
from retrofit.training.files.answers import asked_before, asked_per_process
from retrofit.training.files.guards import runs_on_one
from retrofit.training.files.missing_files import is_asking
from retrofit.training.files.outputs import FOLDER
from retrofit.training.steps.shared_branches import all_come_to, leaves_or_trains
from retrofit.training.torch_api.distributed import ASKS_FOR_GROUP, GET_RANK, JOIN_GROUP
from retrofit.training.torch_api.files import COMMANDS

RULE = CATALOG["RF504"]
ASKED_HELP = "rd.output.answer_of_main(os.path.exists, path): all processes go by what rank 0 finds"
EARLY_HELP = "join the process group first, or read the rank from os.environ['RANK']"
INVALID = [
    """\
os.makedirs("checkpoints")
if not os.path.exists("samples.pt"):
    torch.save(torch.randn(100, 4), "samples.pt")
samples = torch.load("samples.pt")
""",
    """\
made = os.popen("mkdir out").read()  # RF504
listed = os.popen("ls > files.txt").read()  # RF504
pulled = os.popen("git pull").read()  # RF504
""",
    """\
import subprocess

os.popen("nvidia-smi")  # RF504
subprocess.run(["nvidia-smi", "-L"])  # RF504
""",
    """\
if os.path.exists("out"):  # RF504
    raise SystemExit("there is one")
os.makedirs("out")  # RF504
""",
    # a person makes the file while the training runs
    """\
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    if os.path.exists("stop"):  # RF504
        break
""",
    """\
rank = dist.get_rank() if dist.is_initialized() else 0  # RF504
dist.init_process_group("gloo")
""",
]
VALID = [
    """\
if rd.is_main_process():
    os.makedirs("checkpoints")
with rd.output.main_process_first():
    if not os.path.exists("samples.pt"):
        torch.save(torch.randn(100, 4), "samples.pt")
samples = torch.load("samples.pt")
""",
    # commands of which only the answer is read
    """\
import subprocess

commit = os.popen("git rev-parse HEAD").read()
gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout
user = subprocess.Popen("whoami", stdout=subprocess.PIPE).communicate()
""",
    # safe when several processes do it at once
    """\
dist.init_process_group("gloo")
os.makedirs("checkpoints", exist_ok=True)
""",
    # only asks for a file that the script does not make
    """\
if os.path.exists("last.pt"):
    model.load_state_dict(torch.load("last.pt", map_location="cpu"))
""",
    # the others wait for rank 0
    """\
dist.init_process_group("gloo")
if dist.get_rank() != 0:
    dist.barrier()
if not os.path.exists("samples.pt"):
    torch.save(torch.randn(100, 4), "samples.pt")
if dist.get_rank() == 0:
    dist.barrier()
samples = torch.load("samples.pt")
""",
]


def find(project: Project) -> Iterator[Finding]:
    analysis = project.analysis
    for output in project.outputs:
        if output.kind != FOLDER or runs_on_one(analysis, output.scope, output.call):
            continue
        is_shared = project.distribution.is_by_hand and (output.name in COMMANDS or _may_exist(output.call))
        if not is_shared and not project.runs_in_turn(output.scope, output.call):
            message = f"{output.name} runs on every process"
            yield found(RULE, output.scope.source, output.call, message, guarded(project, output))
    edits_of = main_first(project)
    for preparation in project.preparations:
        yield found(RULE, preparation.scope.source, preparation.node, preparation.message, edits_of[preparation])
    asked = dict.fromkeys(_asked_per_process(project), "rank 0 makes what is asked for here: another process finds it")
    for place in _asked_to_leave(project):
        asked.setdefault(place, "each process looks for the file by itself")
    for (call, scope), reason in asked.items():
        message = f"{reason}, and decides something else"
        edits = [] if project.distribution.is_by_hand else call_through(scope.source, call, "rd.output.answer_of_main")
        yield found(RULE, scope.source, call, message, edits, help=ASKED_HELP)
    for call, scope in _asked_too_early(analysis, project.distribution):
        message = "the rank is asked before the process group exists: every process is told 0"
        yield found(RULE, scope.source, call, message, help=EARLY_HELP)


def _asked_per_process(project: Project) -> list[tuple[ast.Call, Scope]]:
    statements = [statement for p in project.preparations for statement in p.statements]
    statements += [numbered.node for numbered in project.numbered_names]
    known = {part for statement in statements for part in walk(statement)}
    in_loops = project.nodes_in_loops
    early = [output for output in project.outputs if output.call not in in_loops]
    asked = list(asked_per_process(project.analysis, early, known | in_loops))
    later = [place for place in asked_per_process(project.analysis, project.outputs, known) if place not in asked]
    for call, scope in later:  # of what the training makes: in its steps, and after it, to load the best weights
        if (is_come_to_by_all if call in in_loops else _is_after_training)(project, scope, call):
            asked.append((call, scope))
    deciding = asked_before(project.analysis, known, {call for call, _ in asked})
    asked += [place for place in deciding if place[0] not in in_loops or is_come_to_by_all(project, place[1], place[0])]
    return [(call, scope) for call, scope in asked if not runs_in_turn(project.analysis, scope, call, statements)]


def _asked_to_leave(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the questions for a file by which a process leaves the training: `if os.path.exists("stop"): break`."""
    for node, scope in project.in_loops.of(ast.If, ast.While):
        if not leaves_or_trains(project, node, scope):
            continue
        calls = [part for part in walk(node.test) if isinstance(part, ast.Call)]
        asking = [call for call in calls if is_asking(project.analysis, call, scope)]
        if asking and all_come_to(project, node, scope):
            yield from ((call, scope) for call in asking)


def _is_after_training(project: Project, scope: Scope, call: ast.AST) -> bool:
    frames = (frame for path in project.paths for frame in path.frames if frame.scope is scope)
    return any(place_of(frame.node) < place_of(call) for frame in frames)


def _may_exist(call: ast.Call) -> bool:
    """Return whether a folder is made in a way that several processes may go at once."""
    return any(keyword.arg == "exist_ok" and getattr(keyword.value, "value", True) for keyword in call.keywords)


def _asked_too_early(analysis: Analysis, distribution: Distribution) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls, before the one that joins the group and in the same function, that ask for the rank.

    Only those with an answer for the time without a group: `dist.get_rank() if dist.is_initialized() else 0`.
    """
    for join in distribution.joins:
        if _is_under_condition(analysis, join.scope, join.call):
            continue
        for node in own_nodes(join.scope.node):
            if (
                isinstance(node, ast.Call)
                and place_of(node) < place_of(join.call)
                and _asks(analysis, node, join.scope)
            ):
                yield node, join.scope


def _is_under_condition(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether the group may exist already: `if not dist.is_initialized(): dist.init_process_group(...)`."""
    tests = [outer.test for outer in scope.source.ancestors(node) if isinstance(outer, ast.If)]
    return any(_calls(analysis, test, scope) & ASKS_FOR_GROUP for test in tests)


def _asks(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    if GET_RANK in analysis.called(call, scope):
        outer = scope.source.parents.get(call)
        return isinstance(outer, ast.IfExp) and _calls(analysis, outer.test, scope) & ASKS_FOR_GROUP != set()
    return any(
        GET_RANK in names and names & ASKS_FOR_GROUP and JOIN_GROUP not in names
        for names in _called_inside(analysis, call, scope)
    )


def _called_inside(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[set[str]]:
    """Yield what each function of the project that a call can run calls itself."""
    for function in analysis.functions_called(call, scope):
        calls = own_nodes(function.node).of(ast.Call)
        yield {name for inner in calls for name in analysis.called(inner, function.scope)}


def _calls(analysis: Analysis, node: ast.expr, scope: Scope) -> set[str]:
    """Return what an expression calls, itself or in functions of the project."""
    calls = [part for part in walk(node) if isinstance(part, ast.Call)]
    own = {name for call in calls for name in analysis.called(call, scope)}
    return own.union(*(names for call in calls for names in _called_inside(analysis, call, scope)))
