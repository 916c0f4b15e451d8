"""RF503 no-map-location: a checkpoint goes to the GPU that it was saved from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import add_argument
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_texts import mentions_rank
from retrofit.training.torch_api.distributed import RANK

RULE = CATALOG["RF503"]
INVALID = [
    """\
model.load_state_dict(torch.load("model.pt"))
""",
    """\
def resume(path):
    state = torch.load(path, weights_only=True)  # RF503
    model.load_state_dict(state["model"])


resume("last.pt")
""",
]
VALID = [
    """\
model.load_state_dict(torch.load("model.pt", map_location=rd.devices.own_storage))
""",
    # it says where to, or may say it
    """\
options = {"map_location": "cpu"}
state = torch.load("model.pt", "cpu")
state = torch.load("model.pt", **options)
""",
    # samples stay in main memory
    """\
class Samples(Dataset):
    def __getitem__(self, index):
        return torch.load(f"{index}.pt")


loader = rd.distribute_loader(DataLoader(Samples(), 8))
""",
    # each process reads what it has written
    """\
state = torch.load(f"state_{rd.get_rank()}.pt")
""",
    # one process reads it, or a run of one process
    """\
if rd.get_rank() == 0:
    model.load_state_dict(torch.load("model.pt"))
if torch.cuda.device_count() > 1:
    state = torch.load("model.pt", map_location=rd.devices.own_storage)
else:
    state = torch.load("model.pt")
""",
]


def find(project: Project) -> Iterator[Finding]:
    for node, scope in calls_named(project.analysis, {"torch.load"}):
        if argument_for(node, ["f", "map_location"], "map_location") is not None or _is_unclear(node):
            continue
        is_distributed = bool(project.distribution.joins)
        if is_distributed and any(mentions_rank(project.analysis, argument, scope) for argument in node.args):
            continue  # each process reads what it has written itself
        if not (_is_data(project, scope) or _is_for_one(project, node, scope) or _is_for_one_process(scope, node)):
            edits = add_argument(scope.source, node, "map_location=rd.devices.own_storage")
            yield found(RULE, scope.source, node, "every process loads onto the GPU it was saved from", edits)


def _is_data(project: Project, scope: Scope) -> bool:
    """Return whether a data set loads its samples here, which stay in main memory."""
    owner = scope.enclosing_class()
    return owner is not None and any(name.endswith("Dataset") for name in project.analysis.classes.bases(owner))


def _is_for_one(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is left to a certain process, or to a script that has only one: under a test for the rank."""
    tests = [outer.test for outer in scope.source.ancestors(node) if isinstance(outer, ast.If)]
    return any(RANK in project.ranks.sources_of(test, scope) for test in tests)


def _is_unclear(call: ast.Call) -> bool:
    """Return whether arguments that cannot be seen may hold a map_location."""
    return any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def _is_for_one_process(scope: Scope, node: ast.AST) -> bool:
    """Return whether the other branch of an `if` loads with a map_location: this one is for a run without ranks."""
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            break
        if isinstance(outer, ast.If) and outer.orelse:
            keywords = [part for part in walk(outer) if isinstance(part, ast.keyword)]
            if any(keyword.arg == "map_location" for keyword in keywords):
                return True
    return False
