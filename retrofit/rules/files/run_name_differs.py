"""RF509 run-name-differs: each process names the run by its own clock, its own dice, or what it finds in a folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, block_of, insert_after, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.name_uses import stored_names
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.edits.early_names import broadcast_edits, is_broadcast, is_early
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.workers import run_elsewhere
from retrofit.training.files.guards import runs_on_one
from retrofit.training.files.own_names import expressions_around, is_imported, makes_name, named_by_import, read_back
from retrofit.training.files.run_numbers import Numbered
from retrofit.training.launch.commands import run_folder_decorator
from retrofit.training.torch_api.output import LOGGER_METHODS, PRINTS
from retrofit.training.torch_api.runtime import FROM_MAIN, SHARE_HYDRA_RUN

RULE = CATALOG["RF509"]
EARLY_HELP = "make the name after rd.setup_distributed(), with rd.collectives.broadcast_object(...)"
MESSAGE = "this is another name in every process"
HYDRA_MESSAGE = "every process names the run's folder by its own clock"
HYDRA_HELP = "before the function with @hydra.main is called: rd.setup_distributed(), rd.output.share_hydra_run()"
INVALID = [
    """\
folder = "runs/" + time.strftime("%Y%m%d_%H%M%S")
""",
    """\
import uuid

folder = f"runs/{uuid.uuid4()}"
""",
    """\
number = len(os.listdir("runs"))
os.makedirs(f"runs/{number}")
""",
    """\
folder = f"runs/{int(time.time())}"
""",
    """\
def run_folder():
    return "runs/%s" % time.strftime("%H%M%S")  # RF509


os.makedirs(run_folder())
""",
    """\
def train_in(folder):
    os.makedirs(folder, exist_ok=True)


train_in("runs/" + time.strftime("%H%M%S"))
""",
    # rank 0 saves under this name, and every process loads it
    """\
def keep(model):
    path = "saved/" + time.strftime("%H%M%S")  # RF509
    if rd.is_main_process():
        torch.save(model.state_dict(), path)
    return path


for epoch in range(3):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    last = keep(model)
rd.barrier()
model.load_state_dict(torch.load(last, map_location="cpu"))
""",
]
VALID = [
    """\
folder = "runs/" + rd.collectives.broadcast_object(time.strftime("%Y%m%d_%H%M%S"))
""",
    # a time that names nothing
    """\
start = time.time()
print("began at", time.strftime("%H:%M"))
message = f"took {time.time() - start:.1f} s"
""",
    # the content of a folder names no run
    """\
size = len(os.listdir("."))
print(size)
for name in os.listdir("."):
    torch.save(name, f"{name}_{len(name)}.pt")
texts = [open(file).read() for file in sorted(os.listdir("."))]
while not os.path.exists("."):
    time.sleep(1)
""",
    # one process has it
    """\
if rd.is_main_process():
    folder = "runs/" + time.strftime("%H%M%S")
    os.makedirs(folder)
""",
]


def find(project: Project) -> Iterator[Finding]:
    yield from _named_by_hydra(project)
    in_loops = project.nodes_in_loops
    whole: set[ast.AST] = set()  # statements whose value is handed out as it is
    for numbered in project.numbered_names:
        place = numbered.node
        if place in in_loops or not _runs_on_all(project, place, numbered.scope) or _is_agreed(project, numbered):
            continue
        edits = _agreeing(numbered)
        whole |= {place} if edits else set()
        yield found(RULE, numbered.scope.source, place, MESSAGE, edits)
    for node, scope in reached_calls(project.analysis):
        if not makes_name(project.analysis, node, scope):
            continue
        if node in in_loops and node not in read_back(project.analysis):
            continue
        statement = scope.source.statement(node)
        if _is_printed(project, statement, scope):
            continue
        early = is_early(project, statement, scope)  # in the script itself
        if not (early or _is_kept(project, node, scope)) or not _runs_on_all(project, statement, scope):
            continue
        agrees = _agrees(project, node, scope) or is_broadcast(project, statement, scope, FROM_MAIN)
        if statement not in whole and not agrees:
            name = _formatted(scope.source, node)
            edits = surround(scope.source, name, "rd.collectives.broadcast_object(", ")")
            edits = broadcast_edits(project, statement, scope) if early else edits
            yield found(RULE, scope.source, node, MESSAGE, edits, help="" if edits else EARLY_HELP)


def _named_by_hydra(project: Project) -> Iterator[Finding]:
    """Yield the decorators that make the run's folder, named by the time of each process, before the function runs."""
    if project.calls_any({SHARE_HYDRA_RUN}):
        return
    for scope in dict.fromkeys(frame.scope for path in project.paths for frame in path.frames):
        decorator = run_folder_decorator(project.analysis, scope)
        if decorator is None:
            continue
        edits: list[Edit] = []
        if not project.distribution.joins:
            source, joining, edit = edit_after_setup(project, "rd.output.share_hydra_run()")
            edits = [edit] if project.analysis.scope_at(source, joining) is not scope else []
        yield found(RULE, scope.source, decorator, HYDRA_MESSAGE, edits, help="" if edits else HYDRA_HELP)


def _agreeing(numbered: Numbered) -> list[Edit]:
    """Return edits that give all processes the name of the first one; none where not all of them get there."""
    source, node = numbered.scope.source, numbered.node
    if not numbered.is_common:
        return []
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return surround(source, node.value, "rd.collectives.broadcast_object(", ")") if node.value is not None else []
    return [
        insert_after(source, node, [f"{name} = rd.collectives.broadcast_object({name})" for name in numbered.names])
    ]


def _is_agreed(project: Project, numbered: Numbered) -> bool:
    """Return whether a statement, the next one or a later one for the name hands out the name of one process."""
    block = block_of(numbered.scope.source, numbered.node)
    position = block.index(numbered.node)
    later = [s for s in block[position + 2 :] if isinstance(s, ast.Assign) and stored_names([s]) & {*numbered.names}]
    parts = (part for statement in [*block[position : position + 2], *later] for part in walk(statement))
    return any(isinstance(p, ast.Call) and project.leads_to_collective(p, numbered.scope) for p in parts)


def _is_printed(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement shows what is made of a value, and nothing else: print("began at", now)."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    is_of_logger = isinstance(call.func, ast.Attribute) and call.func.attr in LOGGER_METHODS
    return bool(project.analysis.called(call, scope) & PRINTS) or is_of_logger


def _is_kept(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether what is made of a value is assigned, returned, or handed to a function of the project."""
    statement = scope.source.statement(node)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
        return True
    around = (outer for outer in expressions_around(node, scope) if isinstance(outer, ast.Call))
    return any(project.analysis.functions_called(outer, scope) for outer in around)


def _runs_on_all(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether every process runs this, and not while modules are imported, before the group is there."""
    is_early = not isinstance(scope.node, FUNCTIONS) and is_imported(project, scope)
    is_early &= not any(part in named_by_import(project) for part in walk(statement))  # for these they join before
    is_alone = runs_on_one(project.analysis, scope, statement) or project.runs_in_turn(scope, statement)
    return not is_early and not is_alone and scope not in run_elsewhere(project.analysis)


def _agrees(project: Project, node: ast.AST, scope: Scope) -> bool:
    around = (outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call))
    return any(project.analysis.called(outer, scope) & FROM_MAIN for outer in around)


def _formatted(source: Source, call: ast.Call) -> ast.expr:
    """Return the f-string around a call, inside which Python before 3.12 does not tell positions, or the call."""
    return next((outer for outer in source.ancestors(call) if isinstance(outer, ast.JoinedStr)), call)
